"""Availability models: which clients are available in which round. They compose with every selector."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from ..core.formatting import format_value
from ..core.rounding import floor_of
from ..core.validation import below_one, check, count, integer, share
from ..rng import Purpose, choose, draws, fold, stream


class Availability:
    """Base class of availability models. Subclass it as a frozen dataclass with `available`.

    Example:
        >>> class EvenRounds(fm.Availability):  # odd clients are available in even rounds only
        ...     def available(self, seed, round, N):
        ...         return (torch.arange(N) % 2 == 0) | (round % 2 == 0)
        >>> result = fm.run(
        ...     model, data, fm.FedAvg(lr=0.1), fm.Uniform(m=3), rounds=2, local_steps=2, batch_size=8,
        ...     availability=EvenRounds(),
        ... )
        >>> [record.available for record in result.history]
        [10, 5]
    """

    def available(self, seed: int, round: int, N: int) -> Tensor:
        """Return which clients are available in a round. A pure function.

        Args:
            seed: The seed of the run.
            round: The round, from 0.
            N: Number of clients in the federation.

        Returns:
            A bool tensor of shape (N,).
        """
        raise TypeError(f"{type(self).__name__} must define available(seed, round, N)")

    def validate(self, N: int) -> None:
        """Raise ValueError if the model does not support a federation of N clients."""


@dataclass(frozen=True, kw_only=True)
class Always(Availability):
    """Every client is available in every round.

    Example:
        >>> fm.Always().available(seed=0, round=0, N=3)
        tensor([True, True, True])
    """

    def available(self, seed: int, round: int, N: int) -> Tensor:
        return torch.ones(N, dtype=torch.bool)


@dataclass(frozen=True, kw_only=True)
class Alternating(Availability):
    """Fixed random groups take turns; a random fraction of the group is unavailable (Power-of-Choice, Appendix G.3).

    Args:
        groups: Number of groups; one group is available per round.
        drop: Fraction of the group that is unavailable, drawn in every round.

    Example:
        >>> model = fm.Alternating(groups=2, drop=0.2)
        >>> int(model.available(seed=0, round=0, N=10).sum())
        4
    """

    groups: int = 2
    drop: float = 0.1

    def __post_init__(self) -> None:
        check(self, groups=count, drop=below_one)

    def validate(self, N: int) -> None:
        if self.groups > N:
            raise ValueError(f"Alternating: 'groups' must be ≤ the number of clients ({N}), got {self.groups}")

    def available(self, seed: int, round: int, N: int) -> Tensor:
        order = choose(stream(seed, 0, 1, Purpose.AVAILABILITY), N, N)
        group = torch.tensor_split(order, self.groups)[round % self.groups]
        away = choose(stream(seed, round, 0, Purpose.AVAILABILITY), len(group), len(group))
        present = group[away[floor_of(self.drop, len(group)) :]]
        return torch.zeros(N, dtype=torch.bool).index_fill(0, present, True)


@dataclass(frozen=True)
class RandomAvailability(Availability):
    """Each client is available with probability p, independently in every round.

    Args:
        p: Probability that a client is available.

    Example:
        >>> fm.RandomAvailability(0.5).available(seed=0, round=0, N=10).shape
        torch.Size([10])
    """

    p: float

    def __post_init__(self) -> None:
        check(self, p=share)

    def available(self, seed: int, round: int, N: int) -> Tensor:
        return draws(fold(stream(seed, round, 0, Purpose.AVAILABILITY), 1), N) < self.p


@dataclass(frozen=True)
class Trace(Availability):
    """Availability from a list of intervals: rows (client, from, to), with the client available in from ≤ t < to.

    Rounds t count from 0.

    Args:
        rows: The rows, or the path of a CSV or Parquet file with columns "client", "from" and "to".

    Raises:
        ValueError: If a row is invalid or the file cannot be parsed.
        FileNotFoundError: If the file does not exist.

    Example:
        >>> trace = fm.Trace([(0, 0, 10), (2, 5, 10)])
        >>> trace.available(seed=0, round=0, N=3)
        tensor([ True, False, False])
        >>> trace.available(seed=0, round=5, N=3)
        tensor([ True, False,  True])
    """

    rows: Sequence[tuple[int, int, int]] | str | Path

    def __post_init__(self) -> None:
        try:
            rows = _read(Path(self.rows)) if isinstance(self.rows, str | Path) else [tuple(row) for row in self.rows]
        except TypeError:
            raise ValueError(f"Trace: 'rows' must be a list of rows or a file, got {format_value(self.rows)}") from None
        for row in rows:
            if len(row) != 3 or not all(integer.test(v) for v in row) or row[0] < 0 or row[1] > row[2]:
                raise ValueError(f"Trace: 'rows' must be of (client ≥ 0, from, to ≥ from), got {format_value(row)}")
        if not rows:
            raise ValueError("Trace: 'rows' must hold at least one row")
        object.__setattr__(self, "rows", tuple(tuple(map(int, row)) for row in rows))

    def validate(self, N: int) -> None:
        highest = max(row[0] for row in self._rows)
        if highest >= N:
            raise ValueError(f"Trace: 'rows' must hold client numbers < {N}, got {highest}")

    @property
    def _rows(self) -> Sequence[tuple[int, int, int]]:
        assert not isinstance(self.rows, str | Path)
        return self.rows

    def available(self, seed: int, round: int, N: int) -> Tensor:
        present = [client for client, start, end in self._rows if start <= round < end]
        return torch.zeros(N, dtype=torch.bool).index_fill(0, torch.tensor(present, dtype=torch.int64), True)


def _read(path: Path) -> list[tuple[int, ...]]:
    columns = ("client", "from", "to")
    try:
        if path.suffix == ".parquet":
            import pyarrow.parquet

            table = pyarrow.parquet.read_table(path).to_pydict()
            rows = list(zip(*(table[column] for column in columns), strict=True))
            if not all(isinstance(v, int) for row in rows for v in row):
                raise ValueError("not whole numbers")
            return rows
        with path.open(newline="", encoding="utf-8-sig") as file:
            return [tuple(int(row[column]) for column in columns) for row in csv.DictReader(file)]
    except ModuleNotFoundError:
        raise ValueError(f"Cannot read the trace {path} because pyarrow is not installed; use CSV") from None
    except FileNotFoundError:
        raise FileNotFoundError(f"Cannot read the trace {path} because it does not exist") from None
    except (KeyError, ValueError, TypeError, OSError, csv.Error) as error:
        raise ValueError(f"Cannot read the trace {path}: it needs whole numbers in columns client, from, to") from error
