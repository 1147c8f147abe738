"""Decisions from measurements: which engine is faster, whether that is clear, and whether to compile."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable
from typing import Literal, NamedTuple

from .plan_cache import JobMeasurements

_MARGIN = 1.15
"""The vectorised engine is preferred unless the loop is faster by this factor."""
_CLEAR = ((2, 3.0), (4, 1.2), (6, 1.0))
"""With so many samples of each engine, a decision is clear if times differ from the margin by this factor."""
_FASTER, _SLOWER = 1.5, 2.0
"""A run contradicts the trials if it is faster than their gradient by the first factor, or slower than an earlier run
by the second."""
_GAIN = {"cpu": 0.1, "cuda": 0.3}
"""By type of device, the share of its time that a compiled program is assumed to save, until `_GAIN_JOBS` jobs have
been measured. On a CPU, recorded programs already save most of what is not arithmetic."""
_GAIN_JOBS = 3
"""The number of measured jobs from which their median is used instead of `_GAIN`."""
_PROFIT = 1.5
"""A compilation must save this much more time than it takes."""


def faster_engine(measured: JobMeasurements) -> Literal["loop", "batched"]:
    """Return the faster engine; the vectorised one if times are within the margin."""
    return "batched" if measured.time("batched") <= _MARGIN * measured.time("loop") else "loop"


def is_clear(measured: JobMeasurements) -> bool:
    """Whether there are enough samples of both engines to tell which is faster."""
    count = min(len(measured.samples.get(kind, ())) for kind in ("loop", "batched"))
    if count == 0:
        return False
    ratio = measured.time("batched") / max(_MARGIN * measured.time("loop"), 1e-12)
    distance = max(ratio, 1 / max(ratio, 1e-12))
    return any(count >= samples and distance >= factor for samples, factor in _CLEAR)


def invalid_before(measured: JobMeasurements) -> float:
    """Return the time before which trials do not count, because a later run contradicts them; 0 if all count.

    A whole round cannot be faster than its gradients: then the trials were disturbed. A run that is far slower than an
    earlier one shows that the machine has changed.
    """
    trials = [when for kind in ("loop", "batched") for when, _ in measured.samples.get(kind, ())]
    since = 0.0
    for engine in ("loop", "batched", "compiled"):
        runs = measured.samples.get(f"run {engine}", [])
        if not runs or any(when > runs[-1][0] for when in trials):
            continue
        when, seconds = runs[-1]
        gradient, earlier = measured.best(engine), min((v for _, v in runs[:-1]), default=math.inf)
        if (gradient is not None and _FASTER * seconds < gradient) or seconds > _SLOWER * earlier:
            since = max(since, when)
    return since


class Saving(NamedTuple):
    """What compiling would do for a job."""

    step: float
    """Seconds saved in each step of the cohort."""
    cost: float
    """Seconds that the compilations take."""

    def pays_off(self, steps: int) -> bool:
        """Whether a run of so many steps is shorter with the compilation, by a margin."""
        return self.step * steps > _PROFIT * self.cost

    def least_rounds(self, steps: int) -> int | None:
        """Return how many rounds of so many steps a run needs for the compilation to pay off; None if none suffice."""
        if self.step <= 0 or not math.isfinite(self.cost):
            return None
        return math.floor(_PROFIT * self.cost / (self.step * steps)) + 1


def saved_per_step(measured: JobMeasurements, gain: float) -> float:
    """Return the seconds of a step of the cohort that a compiled program saves.

    Only the gradient is compiled. Where runs with and without compilation are known, their whole rounds are compared;
    else the times of the gradient, of which an uncompiled round has no more than it takes as a whole.

    Args:
        measured: The measurements of the job.
        gain: The share of the vectorised time that is saved, where the compiled program is not known.
    """
    engine = faster_engine(measured)
    whole, whole_compiled = measured.best(f"run {engine}"), measured.best("run compiled")
    compiled = measured.best("compiled")
    if whole is not None and whole_compiled is not None and compiled != math.inf:
        return whole - whole_compiled
    plain = measured.time(engine)
    if compiled is None:
        compiled = (1 - gain) * measured.time("batched")
    if whole is not None and whole < plain:  # the trials were disturbed
        compiled, plain = compiled * whole / plain, whole
    return plain - compiled


def usual_gain(jobs: Iterable[JobMeasurements], device: str) -> float:
    """Return the share of the vectorised time that compiled programs have saved on this machine."""
    gains = []
    for job in jobs:
        plain, compiled = job.best("batched"), job.best("compiled")
        if plain and compiled is not None and compiled != math.inf:
            gains.append(1 - compiled / plain)
    return statistics.median(gains) if len(gains) >= _GAIN_JOBS else _GAIN.get(device, 0.0)
