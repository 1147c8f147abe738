"""System heterogeneity: speeds and bandwidths of clients, deadlines, and the simulated clock."""

from __future__ import annotations

import csv
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor

from ..core.formatting import format_value, one_line
from ..core.validation import Rule, at_least_one, below_one, check, fraction, non_negative, none, positive, require
from ..rng import Purpose, draws, fold, stream, uniform

LOSS_COST = 1 / 3
"""Computing a sample's loss takes this share of the time of its gradient."""


class Profile(Protocol):
    """Gives each client a positive number."""

    def values(self, N: int, key: Tensor) -> Tensor:
        """Return the numbers of N clients, (N,), float64, drawn from the stream `key`."""


@dataclass(frozen=True)
class Constant:
    """The same number for every client.

    Args:
        value: The number, > 0.

    Example:
        >>> fm.System(speed=fm.Constant(500.0), deadline=60)  # doctest: +ELLIPSIS
        System(speed=Constant(value=500.0), ...)
    """

    value: float

    def __post_init__(self) -> None:
        check(self, value=positive)

    def values(self, N: int, key: Tensor) -> Tensor:
        return torch.full((N,), float(self.value), dtype=torch.float64)


@dataclass(frozen=True, kw_only=True)
class LogNormal:
    """exp(N(ln median, sigma²)), drawn once for each client from the run's seed.

    Args:
        median: The median over clients, > 0.
        sigma: The standard deviation of the logarithm, 0 to 20.

    Example:
        >>> fm.System(speed=fm.LogNormal(median=1000, sigma=0.5)).speed.sigma
        0.5
    """

    median: float
    sigma: float = 1.0

    def __post_init__(self) -> None:
        check(self, median=positive, sigma=non_negative.up_to(20))

    def values(self, N: int, key: Tensor) -> Tensor:
        u = draws(key, 2 * N).view(2, N)  # Box and Muller's transform
        normal = (-2 * torch.log(1 - u[0])).sqrt() * torch.cos(2 * math.pi * u[1])
        return self.median * torch.exp(self.sigma * normal)


@dataclass(frozen=True)
class PerClient:
    """A number for each client, from a sequence or from a column of a CSV file, in the order of clients.

    Args:
        numbers: The numbers, all > 0, or the path of a CSV file.
        column: The column of the CSV file.

    Raises:
        ValueError: If a number is not positive, or the file has no such column.

    Example:
        >>> fm.PerClient([100, 50, 25]).numbers
        (100.0, 50.0, 25.0)
    """

    numbers: Sequence[float] | str | Path
    column: str = "value"

    def __post_init__(self) -> None:
        numbers = self.numbers
        if isinstance(numbers, str | Path):
            try:
                with Path(numbers).open(newline="", encoding="utf-8-sig") as file:
                    numbers = [float(row[self.column]) for row in csv.DictReader(file)]
            except (KeyError, ValueError, TypeError, OSError, csv.Error) as error:
                raise ValueError(
                    f"PerClient: {one_line(str(numbers), 100)} must have numbers in a column '{self.column}'"
                ) from error
        elif not _is_listed(numbers):
            raise ValueError(f"PerClient: 'numbers' must be a list of numbers or a file, got {format_value(numbers)}")
        numbers = numbers.tolist() if isinstance(numbers, Tensor) else list(numbers)
        if not numbers:
            raise ValueError("PerClient: 'numbers' must hold at least one number, got none")
        for number in numbers:
            require("PerClient", "numbers", number, positive)
        object.__setattr__(self, "numbers", tuple(float(v) for v in numbers))

    def values(self, N: int, key: Tensor) -> Tensor:
        numbers = torch.tensor(self.numbers, dtype=torch.float64)
        if len(numbers) != N:
            raise ValueError(f"PerClient: 'numbers' must hold one for each of {N} clients, got {len(numbers)}")
        return numbers


def _is_listed(v: Any) -> bool:
    """Whether a value is a list, or an array with one axis."""
    return isinstance(v, Iterable) and not isinstance(v, Mapping | bytes) and getattr(v, "ndim", 1) == 1


def _is_profile(v: object) -> bool:
    return positive.test(v) or (callable(getattr(v, "values", None)) and not isinstance(v, type | Mapping | Tensor))


_profile = Rule("> 0 or a profile", _is_profile)


def _values(v: float | Profile, N: int, key: Tensor) -> Tensor:
    """Return the numbers of N clients, (N,), float64.

    Raises:
        ValueError: If a profile does not return a positive number for each client.
    """
    if positive.test(v):
        return Constant(float(v)).values(N, key)  # type: ignore[arg-type]
    found: Any = v.values(N, key)  # type: ignore[union-attr]
    owner = f"{type(v).__name__}: 'values' must return"
    try:
        numbers = torch.as_tensor(found, dtype=torch.float64, device="cpu")
    except (TypeError, ValueError, RuntimeError):
        raise ValueError(f"{owner} a tensor of {N} numbers, got {format_value(found)}") from None
    if numbers.shape != (N,):
        raise ValueError(f"{owner} a number for each of {N} clients, got a tensor of shape {tuple(numbers.shape)}")
    if not bool(((numbers > 0) & numbers.isfinite()).all()):
        fault = numbers[~((numbers > 0) & numbers.isfinite())][0]
        raise ValueError(f"{owner} numbers > 0, got {format_value(fault.item())}")
    return numbers


@dataclass(frozen=True, kw_only=True)
class System:
    """A simulated clock with deadlines.

    A client needs its bytes divided by its bandwidth, down and up, plus its per-sample gradients divided by its speed.
    A round lasts until its last client is done, or until the deadline. Late clients are left out as if they had not
    been selected; the weights of the others are scaled up to the same sum. A client that drops out counts as late; the
    server notices at the deadline or, without one, when the update is due.

    With the option `buffer`, the deadline is counted from the start of each client, and `over_select` and `quorum`,
    which are about cohorts, have no effect.

    Args:
        speed: Per-sample gradients per second: a number or a profile (`Constant`, `LogNormal`, `PerClient`).
        down: Bytes per second that a client receives.
        up: Bytes per second that a client sends.
        deadline: Seconds after which a round closes; None for no deadline.
        over_select: The factor by which more clients than the selector's m are selected, ≥ 1.
        quorum: If fewer than `quorum` · m clients are in time, the round is abandoned and the model stays.
        dropout: The probability that a client's update never arrives, < 1, independently each time it is selected.

    Raises:
        ValueError: If a value is out of range.

    Example:
        >>> fm.System(deadline=60, over_select=1.3).over_select
        1.3
    """

    speed: float | Profile = 1000.0
    down: float | Profile = 1e6
    up: float | Profile = 1e6
    deadline: float | None = None
    over_select: float = 1.0
    quorum: float = 0.0
    dropout: float = 0.0

    def __post_init__(self) -> None:
        check(
            self,
            speed=_profile,
            down=_profile,
            up=_profile,
            deadline=positive | none,
            over_select=at_least_one,
            quorum=fraction,
            dropout=below_one,
        )

    def __repr__(self) -> str:
        """Without a `dropout` of 0: runs are resumed by this text, and older run folders do not have the field."""
        shown = (f.name for f in fields(self) if f.name != "dropout" or self.dropout)
        return f"System({', '.join(f'{name}={getattr(self, name)!r}' for name in shown)})"


class Clock:
    """The simulated time of a run."""

    def __init__(self, system: System, N: int, seed: int) -> None:
        self.system, self.seed = system, seed
        self.now = 0.0
        key = stream(seed, 0, 2, Purpose.AVAILABILITY)
        self._speed, self._down, self._up = (
            _values(v, N, fold(key, i)) for i, v in enumerate((system.speed, system.down, system.up))
        )

    def seconds(self, ids: Tensor, down: Tensor, up: int, gradients: Tensor, losses: Tensor) -> Tensor:
        """Return the seconds that each client needs for these bytes and samples."""
        compute = (gradients + LOSS_COST * losses) / self._speed[ids]
        return down / self._down[ids] + compute + up / self._up[ids]

    def late(self, seconds: Tensor) -> Tensor:
        """Return which clients miss the deadline."""
        deadline = self.system.deadline
        return torch.zeros(len(seconds), dtype=torch.bool) if deadline is None else seconds > deadline

    def lost(self, number: int, ids: Tensor) -> Tensor:
        """Return which clients drop out, (M,).

        Args:
            number: The round or, in an asynchronous run, the number of clients that have started before.
            ids: The clients.
        """
        if not self.system.dropout:
            return torch.zeros(len(ids), dtype=torch.bool)
        return uniform(stream(self.seed, number, ids, Purpose.LOST)) < self.system.dropout

    def duration(self, seconds: Tensor) -> float:
        """Return the duration of a round whose clients need these seconds."""
        longest = float(seconds.max()) if len(seconds) else 0.0
        return longest if self.system.deadline is None else min(longest, self.system.deadline)
