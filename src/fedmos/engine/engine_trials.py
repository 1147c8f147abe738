"""Short trials of the engines on the job of a run, and the key under which their times are stored."""

from __future__ import annotations

import hashlib
import logging
import platform
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from time import perf_counter, process_time
from typing import Any

import torch

from . import recorded
from .batched import Batched
from .batches import Chunk
from .engine_decision import is_clear
from .loop import Loop
from .plan_cache import JobMeasurements, now
from .task import Task

_log = logging.getLogger("fedmos")

_TRIAL_SECONDS = 0.05
"""Seconds for one trial of a candidate."""
_BUDGET_SHARE = 0.02
"""The share of the run's expected time that repeated trials may take, within `_BUDGET_SECONDS`."""
_BUDGET_SECONDS = (0.2, 3.0)
"""The least and the most seconds for repeated trials."""
_SLOW_SECONDS = 0.2
"""A program that takes longer gains little from being recorded, and is tried as it is."""
_MOST_REPEATS = 50
_COMPILED_TRIALS = 3
_PROGRAMS = 2
"""The version of the vectorised programs: measurements of others do not count."""


@dataclass(frozen=True)
class Workload:
    """A task with the clients that train together, and the steps of their cohort in a run."""

    task: Task
    m: int
    """The expected cohort size."""
    chunk: int
    """The largest number of clients that train together."""

    @cached_property
    def ids(self) -> torch.Tensor:
        """As many clients as train together."""
        return torch.arange(min(self.m, self.chunk, len(self.task.data)))

    @cached_property
    def steps(self) -> int:
        """The steps of a round, over all chunks of the cohort."""
        return int(self.task.steps(self.task.data.sizes[self.ids]).max()) * -(self.m // -self.chunk)

    @cached_property
    def key(self) -> str:
        """Hash everything that a measurement depends on."""
        task, data, device = self.task, self.task.data, self.task.model.device
        where = (
            torch.cuda.get_device_name(device) if device.type == "cuda" else f"CPU, {torch.get_num_threads()} threads"
        )
        largest = task.most_samples
        code = getattr(task.loss.function, "__code__", None)
        parts = (
            task.model.structure(here=False),
            (
                len(self.ids),
                task.batch_size and min(task.batch_size, largest),
                largest if task.batch_size is None else 0,
            ),
            (str(task.model.dtype), task.model.precision, task.loss.name, code and code.co_code),
            (tuple(data.x.shape[1:]), str(data.x.dtype), tuple(data.y.shape[1:]), data.normalize, data.augment),
            (where, platform.processor(), platform.machine(), str(torch.__version__)),
            _PROGRAMS,
            *(["SAM"] if task.sam_radius else []),
        )
        return hashlib.sha256(repr(parts).encode()).hexdigest()[:24]


def measure_engines(work: Workload, known: JobMeasurements | None, rounds: int) -> JobMeasurements:
    """Time one step of the whole cohort on both engines in turn, until it is clear which is faster.

    Args:
        work: The job.
        known: Earlier measurements, which count as well.
        rounds: The rounds of the run; trials take a small part of its expected time at most.

    Returns:
        The new measurements.
    """
    began = perf_counter()
    trials = _Candidates(work)
    measured = JobMeasurements(samples={"loop": [], "batched": []}, operations=float(_operations(work.task)))
    while True:
        for kind, trial in (("loop", trials.loop), ("batched", trials.batched)):
            measured.samples[kind].append((now(), trial()))
        every = measured if known is None else known.merged(measured)
        expected = rounds * work.steps * min(every.time("loop"), every.time("batched"))
        least, most = _BUDGET_SECONDS
        if is_clear(every) or perf_counter() - began > min(max(_BUDGET_SHARE * expected, least), most):
            return measured


class _Candidates:
    """Both engines on one batch of the cohort, warm. A trial returns the seconds of a step of the whole cohort."""

    def __init__(self, work: Workload) -> None:
        task, ids = work.task, work.ids
        self._x = task.model.initial()
        task.model.training_mode()
        some = ids[: 1 if task.model.size > 2_000_000 else 3]
        self._grads = [Loop(task, Chunk.of(task, i), 0) for i in some.split(1)]
        self._loop_scale, self._repeats = len(ids) / len(some), 1
        self._seconds(self._loop_once)
        loop = self._seconds(self._loop_once) * self._loop_scale
        # The time of a slow cohort is extrapolated from a part of it.
        part = ids if loop < 0.5 else ids[: max(2, int(len(ids) * 0.5 / loop))]
        self._whole = Batched(task, Chunk.of(task, part), 0)
        self._y = self._x.expand(len(part), -1).contiguous()
        self._batched_scale = len(ids) / len(part)
        self._seconds(self._batched_once)
        batched = min(self._seconds(self._batched_once) for _ in range(2))
        if batched < _SLOW_SECONDS:
            for _ in range(recorded.CALLS_BEFORE):  # then the program is recorded and verified
                batched = self._seconds(self._batched_once)
        self._repeats = equal_time(loop / self._loop_scale, batched)

    def loop(self) -> float:
        return time_work(self._loop_once) * self._loop_scale / self._repeats

    def batched(self) -> float:
        return time_work(self._batched_once) * self._batched_scale

    def _loop_once(self) -> None:
        for _ in range(self._repeats):
            for grad in self._grads:
                grad(self._x)

    def _batched_once(self) -> None:
        self._whole(self._y)

    @staticmethod
    @torch.no_grad()
    def _seconds(work: Callable[[], Any]) -> float:
        """Return the processor's time for a single call, which may be the first."""
        began = process_time()
        work()
        return process_time() - began


def equal_time(loop: float, batched: float) -> int:
    """Return how often a trial of the loop is repeated, so that it takes as long as one of the vectorised engine.

    On a busy machine, short work is done before it is interrupted, and long work is not.

    Args:
        loop: Seconds of one trial of the loop.
        batched: Seconds of one trial of the vectorised engine.
    """
    return min(max(1, round(batched / max(loop, 1e-6))), _MOST_REPEATS)


def measure_compiled(work: Workload) -> list[float]:
    """Compile the gradient of the cohort, and return the times of its trials; infinite where it cannot be compiled."""
    fast = replace(work.task, compiled=True)
    whole = Batched(fast, Chunk.of(fast, work.ids), 0)
    y = work.task.model.initial().expand(len(work.ids), -1).contiguous()
    work.task.model.training_mode()
    try:
        with torch.no_grad():
            whole(y)
        if not fast.program.compiles:  # the log says why
            return [float("inf")]
        return [time_work(lambda: whole(y)) for _ in range(_COMPILED_TRIALS)]
    except Exception as error:
        _log.warning("Not compiling because it fails: %s", str(error).strip().split("\n")[0])
        return [float("inf")]


@torch.no_grad()
def time_work(work: Callable[[], Any]) -> float:
    """Return the shortest time of two to five calls."""

    def once() -> float:
        began = perf_counter()
        work()
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        return perf_counter() - began

    taken = [once(), once()]  # at least two: one may be disturbed by other processes
    while sum(taken) < _TRIAL_SECONDS and len(taken) < 5:
        taken.append(once())
    return min(taken)


def _operations(task: Task) -> int:
    """Count the operations of the forward pass; the time of a compilation grows with it."""
    seen, waiting = set(), [task.trial(task.model.least_rows).grad_fn]
    while waiting:
        node = waiting.pop()
        if node is not None and node not in seen:
            seen.add(node)
            waiting += [parent for parent, _ in node.next_functions]
    return len(seen)
