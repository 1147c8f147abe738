"""Who is there in which round. An availability model composes with every selector."""

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
    """Subclass it as a frozen dataclass and write `available`."""

    def available(self, seed: int, round: int, N: int) -> Tensor:
        """(N,) bool: who can be chosen in a round, counted from 0. A pure function."""
        raise TypeError(f"{type(self).__name__} must define available(seed, round, N)")

    def validate(self, N: int) -> None:
        """Refuse a federation of N clients that the model does not fit."""


@dataclass(frozen=True, kw_only=True)
class Always(Availability):
    """Everyone, always."""

    def available(self, seed: int, round: int, N: int) -> Tensor:
        return torch.ones(N, dtype=torch.bool)


@dataclass(frozen=True, kw_only=True)
class Alternating(Availability):
    """Fixed random groups take turns; a random share `drop` of the group is away (Power-of-Choice, Appendix G.3)."""

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
    """Each client on its own with probability p, anew in every round."""

    p: float

    def __post_init__(self) -> None:
        check(self, p=share)

    def available(self, seed: int, round: int, N: int) -> Tensor:
        return draws(fold(stream(seed, round, 0, Purpose.AVAILABILITY), 1), N) < self.p


@dataclass(frozen=True)
class Trace(Availability):
    """Rows (client, from, to): the client is there in rounds from ≤ t < to, counted from 0.

    Given as rows, or as a CSV or Parquet file with columns of those names.
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
        with path.open(newline="", encoding="utf-8") as file:
            return [tuple(int(row[column]) for column in columns) for row in csv.DictReader(file)]
    except ModuleNotFoundError:
        raise ValueError(f"Cannot read the trace {path} because pyarrow is not installed; use CSV") from None
    except FileNotFoundError:
        raise FileNotFoundError(f"Cannot read the trace {path} because it does not exist") from None
    except (KeyError, ValueError, TypeError, OSError, csv.Error) as error:
        raise ValueError(f"Cannot read the trace {path}: it needs whole numbers in columns client, from, to") from error
