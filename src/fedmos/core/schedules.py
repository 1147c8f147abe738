"""Schedules of the step size: `fedmos.schedules`.

A schedule is a function of the round, counted from 0, that returns a factor ≥ 0 of the algorithm's `lr`. The option
`lr_decay` of a run takes the classes here, or any such function.

Example:
    >>> schedule = fm.schedules.Warmup(5, then=fm.schedules.Cosine(95))
    >>> [round(schedule(t), 3) for t in (0, 4, 5, 52, 99)]
    [0.2, 1.0, 1.0, 0.508, 0.0]
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from .formatting import format_value
from .validation import Rule, check, count, non_negative, none, positive

__all__ = ["Cosine", "Schedule", "Step", "Warmup"]

Schedule = Callable[[int], float]
"""Takes a round, counted from 0, and returns the factor of the step size."""

_function = Rule("a function of the round", lambda v: callable(v) and not isinstance(v, type))


@dataclass(frozen=True)
class Cosine:
    """Half a cosine from 1 to `final` over some rounds, and `final` afterwards.

    The factor of round t < T is final + (1 − final) (1 + cos(π t / T)) / 2 (Loshchilov & Hutter 2017, eq. 5).

    Args:
        rounds: The number of rounds T.
        final: The factor from round T on.

    Example:
        >>> [round(fm.schedules.Cosine(rounds=4, final=0.1)(t), 3) for t in range(6)]
        [1.0, 0.868, 0.55, 0.232, 0.1, 0.1]
    """

    rounds: int
    final: float = 0.0

    def __post_init__(self) -> None:
        check(self, rounds=count, final=non_negative)

    def __call__(self, t: int) -> float:
        return self.final + (1 - self.final) * (1 + math.cos(math.pi * min(t, self.rounds) / self.rounds)) / 2


@dataclass(frozen=True)
class Warmup:
    """A linear rise to 1 over the first rounds, then another schedule.

    The factor of round t < T is start + (1 − start) (t + 1) / T; afterwards it is that of `then` in round t − T.

    Args:
        rounds: The number of rounds T of the warm-up.
        then: The schedule after it, whose rounds count from its beginning (default: the factor stays 1).
        start: The value from which the factor rises.

    Example:
        >>> warmup = fm.schedules.Warmup(4, then=fm.schedules.Step(every=2, factor=0.5))
        >>> [warmup(t) for t in range(8)]
        [0.25, 0.5, 0.75, 1.0, 1.0, 1.0, 0.5, 0.5]
    """

    rounds: int
    then: Schedule | None = None
    start: float = 0.0

    def __post_init__(self) -> None:
        check(self, rounds=count, then=_function | none, start=non_negative)

    def __call__(self, t: int) -> float:
        if t < self.rounds:
            return self.start + (1 - self.start) * (t + 1) / self.rounds
        return 1.0 if self.then is None else self.then(t - self.rounds)


@dataclass(frozen=True)
class Step:
    """A factor that is applied again after every so many rounds: factor^⌊t / every⌋ in round t.

    Args:
        every: The number of rounds between two steps.
        factor: The factor of a step.

    Example:
        >>> [fm.schedules.Step(every=2, factor=0.5)(t) for t in range(6)]
        [1.0, 1.0, 0.5, 0.5, 0.25, 0.25]
    """

    every: int
    factor: float = 0.1

    def __post_init__(self) -> None:
        check(self, every=count, factor=positive)

    def __call__(self, t: int) -> float:
        try:
            return float(self.factor ** (t // self.every))
        except OverflowError:
            return math.inf


def factor_of(schedule: Schedule, t: int) -> float:
    """Return the factor of a round.

    Raises:
        ValueError: If the schedule fails, or does not return a finite number ≥ 0.
    """
    name = getattr(schedule, "__name__", type(schedule).__name__)
    try:
        value: Any = schedule(t)
    except Exception as error:  # a function of the user may raise anything
        raise ValueError(f"Cannot use {name} as 'lr_decay' because it fails in round {t}: {error!r}") from error
    value = value.item() if hasattr(value, "item") else value
    if (fault := non_negative.fault(value)) is not None:
        raise ValueError(f"run: 'lr_decay' must give factors {fault}, got {format_value(value)} in round {t} of {name}")
    return float(value)
