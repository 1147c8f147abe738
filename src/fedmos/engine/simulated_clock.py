"""System heterogeneity: how fast clients compute and communicate, and what a round does about the slow ones."""

from __future__ import annotations

import csv
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor

from ..core.formatting import format_value, one_line
from ..core.validation import Rule, at_least_one, check, fraction, non_negative, none, positive, require
from ..rng import Purpose, draws, fold, stream

LOSS_COST = 1 / 3
"""Computing a sample's loss takes this share of the time of its gradient."""


class Profile(Protocol):
    """A positive number for each client."""

    def values(self, N: int, key: Tensor) -> Tensor:
        """(N,), float64."""


@dataclass(frozen=True)
class Constant:
    """The same for everyone."""

    value: float

    def __post_init__(self) -> None:
        check(self, value=positive)

    def values(self, N: int, key: Tensor) -> Tensor:
        return torch.full((N,), float(self.value), dtype=torch.float64)


@dataclass(frozen=True, kw_only=True)
class LogNormal:
    """exp(N(ln median, sigma²)), drawn once for each client from the run's seed."""

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
    """A number for each client, as a sequence or from a column of a CSV file in order of clients."""

    numbers: Sequence[float] | str | Path
    column: str = "value"

    def __post_init__(self) -> None:
        numbers = self.numbers
        if isinstance(numbers, str | Path):
            try:
                with Path(numbers).open(newline="", encoding="utf-8") as file:
                    numbers = [float(row[self.column]) for row in csv.DictReader(file)]
            except (KeyError, ValueError, TypeError, OSError, csv.Error) as error:
                raise ValueError(
                    f"PerClient: {one_line(str(numbers), 100)} must have numbers in a column '{self.column}'"
                ) from error
        elif not isinstance(numbers, Iterable):
            raise ValueError(f"PerClient: 'numbers' must be a list of numbers or a file, got {format_value(numbers)}")
        numbers = list(numbers)
        for number in numbers:
            require("PerClient", "numbers", number, positive)
        object.__setattr__(self, "numbers", tuple(float(v) for v in numbers))

    def values(self, N: int, key: Tensor) -> Tensor:
        numbers = torch.tensor(self.numbers, dtype=torch.float64)
        if len(numbers) != N:
            raise ValueError(f"PerClient: 'numbers' must hold one for each of {N} clients, got {len(numbers)}")
        return numbers


def _is_profile(v: object) -> bool:
    return positive.test(v) or hasattr(v, "values")


_profile = Rule("> 0 or a profile", _is_profile)


@dataclass(frozen=True, kw_only=True)
class System:
    """A simulated clock, and rounds that close.

    A client needs its bytes over its bandwidth, down and up, and its samples' gradients over its speed.
    A round lasts until the last of its clients is done, or until `deadline`: who is later is left out, as
    if not chosen (weights are scaled up to keep their sum). `over_select=1.3` chooses 30 % more clients
    than the selector's m in the first place; if fewer than `quorum` · m are in time, the round is abandoned
    and the model stays as it was.
    """

    speed: float | Profile = 1000.0
    """Gradients of single samples per second."""
    down: float | Profile = 1e6
    """Bytes per second."""
    up: float | Profile = 1e6
    deadline: float | None = None
    """Seconds."""
    over_select: float = 1.0
    quorum: float = 0.0

    def __post_init__(self) -> None:
        check(
            self,
            speed=_profile,
            down=_profile,
            up=_profile,
            deadline=positive | none,
            over_select=at_least_one,
            quorum=fraction,
        )


class Clock:
    """The simulated time of a run."""

    def __init__(self, system: System, N: int, seed: int) -> None:
        self.system = system
        self.now = 0.0
        key = stream(seed, 0, 2, Purpose.AVAILABILITY)
        self._speed, self._down, self._up = (
            (Constant(v) if isinstance(v, int | float) else v).values(N, fold(key, i))
            for i, v in enumerate((system.speed, system.down, system.up))
        )

    def seconds(self, ids: Tensor, down: Tensor, up: int, gradients: Tensor, losses: Tensor) -> Tensor:
        """How long each client takes to receive and send so many bytes and to compute so many samples."""
        compute = (gradients + LOSS_COST * losses) / self._speed[ids]
        return down / self._down[ids] + compute + up / self._up[ids]

    def late(self, seconds: Tensor) -> Tensor:
        """Who misses the deadline."""
        deadline = self.system.deadline
        return torch.zeros(len(seconds), dtype=torch.bool) if deadline is None else seconds > deadline

    def duration(self, seconds: Tensor) -> float:
        """How long the round lasts."""
        longest = float(seconds.max()) if len(seconds) else 0.0
        return longest if self.system.deadline is None else min(longest, self.system.deadline)
