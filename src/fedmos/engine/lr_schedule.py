"""Schedules of the step size over rounds."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import lru_cache

import numpy as np

from ..core.schedules import Schedule, factor_of

Decay = float | Mapping[int, float] | Schedule


def decayed(lr: float, decay: Decay, rounds: int | None = None) -> Callable[[int], float]:
    """Return η_t as a function of the round.

    Args:
        lr: The step size before decay.
        decay: A factor per round, factors that apply from their round on, or a function that gives the factor.
        rounds: The number of rounds, beyond which a function is not called: its last factor stays. None for no bound.
    """
    if callable(decay):
        last = math.inf if rounds is None else rounds - 1

        @lru_cache(maxsize=1)  # a round needs it several times
        def scheduled(t: int) -> float:
            return lr * factor_of(decay, int(min(t, last)))

        return scheduled
    if isinstance(decay, Mapping):
        factors = {int(key): float(factor) for key, factor in decay.items()}

        def stepped(t: int) -> float:
            value = lr
            for key, factor in factors.items():
                value *= factor if t >= key else 1.0
            return value

        return stepped
    if decay == 1:
        return lambda t: lr

    def each_round(t: int) -> float:
        with np.errstate(over="ignore", under="ignore"):
            return lr * float(np.float64(decay) ** t)

    return each_round
