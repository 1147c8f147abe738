"""What a run under privacy fixes in advance."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple


class PrivateRun(NamedTuple):
    """What is fixed in advance in a run under privacy, so that it reveals nothing about a cohort."""

    size: float | None
    """The expected number of clients of a cohort, which algorithms see as S, and whose inverse is every weight; None
    where cohorts are not hidden, since clients add noise themselves."""
    epsilon: Callable[[int], float]
    """Returns the ε that so many rounds spend."""
    cohort_seed: Callable[[int], int] | None = None
    """Returns the seed of a round's cohort, where it must not be computable from the run's seed."""
