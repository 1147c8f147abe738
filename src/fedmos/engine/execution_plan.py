"""The execution plan: how local training is computed, chosen once before round 0 by measuring.

Measurements are cached on the machine (engines.json in `$FEDMOS_CACHE`, default ~/.cache/fedmos). Once they are clear,
the same job is always computed in the same way there, and its bits repeat. `FEDMOS_ENGINE` overrides the choice:
"loop", "batched" or "compiled".
"""

from __future__ import annotations

import logging
import math
import os
import statistics
from dataclasses import dataclass
from typing import Literal

import torch

from ..core.packing import why_not_padded
from ..core.vectorisation_errors import CannotVectorise, explain, slow_operations
from .batched import Batched
from .batches import Chunk
from .compile_time import CLOCK
from .compiled import can_compile
from .engine_comparison import why_different
from .engine_decision import Saving, faster_engine, invalid_before, is_clear, saved_per_step, usual_gain
from .engine_trials import Workload, measure_compiled, measure_engines
from .plan_cache import JobMeasurements, cache_path, now, read_measurements, write_measurement
from .task import Task, total_memory

_log = logging.getLogger("fedmos")

_SAMPLES_TRIED = 4
_ACTIVATIONS = 0.5
"""What the activations of a cohort on a CPU may take, as a share of the frozen parameters."""
_LEAST_ACTIVATIONS = 2**28
"""Bytes that they may take in any case."""


@dataclass(frozen=True, kw_only=True)
class ExecutionPlan:
    """How local training is computed. Part of a run's identity: another plan rounds differently."""

    engine: Literal["loop", "batched"]
    chunk: int
    """The largest number of clients that train together."""
    compiled: bool = False
    cuda_graph: bool = False
    """Whether the local training of a chunk is captured as a CUDA graph and replayed."""
    reason: str = ""
    """Why this plan was chosen."""
    max_parallel_clients: int = 1
    """The number of clients that fit into memory side by side."""
    blockwise: bool = False
    """Whether each block of a cohort is computed on its own, so that bits do not depend on which rank computes it."""

    @property
    def fixed_shapes(self) -> bool:
        """Whether a new shape costs a compilation or a capture."""
        return self.compiled or self.cuda_graph


def choose_plan(name: str, task: Task, m: int, rounds: int = 1) -> ExecutionPlan:
    """Choose the plan for cohorts of about m clients.

    Args:
        name: "loop", "batched" or "auto".
        task: The model, data and loss.
        m: The expected cohort size.
        rounds: The number of rounds of the run, over which a compilation must pay off.
    """
    name = override(name)
    if name == "loop":
        return _loop("requested")
    problem = why_not_vectorised(task)
    if problem is not None:
        if name != "auto":
            raise CannotVectorise(problem)
        return _loop_instead(problem)
    if name == "compiled" and not can_compile(task.model.device):
        raise ValueError("Cannot compile because this machine has no C++ compiler; use FEDMOS_ENGINE=batched")
    if task.model.slow_operations:
        names = ", ".join(task.model.slow_operations)
        _log.info("Some operations are computed client by client within a vectorised program: %s", names)
    parallel = _max_parallel_clients(task)
    if name != "auto":
        return _batched(task, min(m, parallel), name == "compiled", "requested", parallel)
    try:
        plan = _fastest(task, m, parallel, rounds)
    except CannotVectorise as error:  # on the samples of a whole cohort, though not on those that were tried
        return _loop_instead(error.problem)
    _log.info("Engine: %s%s, %s", plan.engine, ", compiled" if plan.compiled else "", plan.reason)
    return plan


def resumed_plan(task: Task, engine: str, chunk: int, compiled: bool, reason: str) -> ExecutionPlan:
    """Return the plan that an earlier part of the run recorded."""
    if engine == "loop":
        return _loop(reason)
    if compiled and not can_compile(task.model.device):
        _log.warning("Continuing without compiling because this machine cannot: bits may differ")
        compiled = False
    return _batched(task, chunk, compiled, reason, max(chunk, _max_parallel_clients(task)))


def _loop_instead(problem: str) -> ExecutionPlan:
    _log.warning(
        "Training client by client, which on a GPU takes many times as long, because the model or the loss cannot "
        "be vectorised: %s",
        problem,
    )
    return _loop("the model or the loss cannot be vectorised")


def _loop(reason: str) -> ExecutionPlan:
    return ExecutionPlan(engine="loop", chunk=1, reason=reason)


def _batched(task: Task, chunk: int, compiled: bool, reason: str, parallel: int) -> ExecutionPlan:
    cuda_graph = task.model.device.type == "cuda"
    return ExecutionPlan(
        engine="batched",
        chunk=chunk,
        compiled=compiled,
        cuda_graph=cuda_graph,
        reason=reason,
        max_parallel_clients=parallel,
    )


def override(name: str) -> str:
    """Return the engine's name, or the one that the environment variable FEDMOS_ENGINE names."""
    given = os.environ.get("FEDMOS_ENGINE")
    if not given:
        return name
    if given not in ("loop", "batched", "compiled"):
        raise ValueError(f"run: FEDMOS_ENGINE must be 'loop', 'batched' or 'compiled', got {given!r}")
    return given


def _fastest(task: Task, m: int, parallel: int, rounds: int) -> ExecutionPlan:
    """Choose loop, vectorised, or compiled; the latter only if the run is long enough to pay for the compilation."""
    work = Workload(task, m, min(m, parallel))
    measured = _measured(work, rounds)
    saving = _saving(work, measured)
    if can_compile(task.model.device):
        if measured.best("compiled") is None and saving.pays_off(rounds * work.steps):
            measured = _measured_compiled(work, measured, saving, rounds)
            saving = _saving(work, measured)
        if measured.best("compiled") is not None and saving.pays_off(rounds * work.steps):
            return _batched(task, work.chunk, True, _figures(measured), parallel)
    reason = _figures(measured) + _outlook(work, saving)
    if faster_engine(measured) == "batched":
        return _batched(task, work.chunk, False, reason, parallel)
    return _loop(reason)


def _measured(work: Workload, rounds: int) -> JobMeasurements:
    """Return what is known of the job; it is measured unless the decision is clear and no run has contradicted it."""
    path, known, since = cache_path(), read_measurements(cache_path()).get(work.key), 0.0
    if known is not None:
        since = invalid_before(known)
        known = known.since(since)
        if is_clear(known):
            return known
    new = measure_engines(work, known, rounds)
    write_measurement(path, work.key, new, since)
    return new if known is None else known.merged(new)


def _measured_compiled(work: Workload, measured: JobMeasurements, saving: Saving, rounds: int) -> JobMeasurements:
    """Compile the program, and add its times to the measurements."""
    saved = saving.step * rounds * work.steps
    _log.info("Compiling, which takes about %.0f s in all, because it should save %.0f s", saving.cost, saved)
    samples = {"compiled": [(now(), seconds) for seconds in measure_compiled(work)]}
    new = JobMeasurements(samples=samples, operations=measured.operations)
    write_measurement(cache_path(), work.key, new)
    return measured.merged(new)


def _saving(work: Workload, measured: JobMeasurements) -> Saving:
    """Estimate what compiling would save, and what it would cost in this process."""
    device = work.task.model.device.type
    gain = usual_gain(read_measurements(cache_path()).values(), device)
    if measured.programs:
        cost = CLOCK.expected_of_job(measured.programs, device)
    else:
        programs = 2 if measured.best("compiled") is None else 1
        cost = CLOCK.expected_of_run(measured.operations, device, programs)
    return Saving(saved_per_step(measured, gain), cost)


def _figures(measured: JobMeasurements) -> str:
    figures = (
        f"{1e3 * measured.time('loop'):.1f} ms a cohort step client by client, "
        f"{1e3 * measured.time('batched'):.1f} ms vectorised"
    )
    compiled = measured.best("compiled")
    return figures if compiled is None or compiled == math.inf else f"{figures}, {1e3 * compiled:.1f} ms compiled"


def _outlook(work: Workload, saving: Saving) -> str:
    """Return what a longer run would choose, as text."""
    rounds = saving.least_rounds(work.steps) if can_compile(work.task.model.device) else None
    return "" if rounds is None else f"; a run of {rounds} rounds or more would compile"


class RoundTimes:
    """Stores how long the first rounds of a run take, for the choices of later runs. The run itself does not change.

    Args:
        task: The model, data and loss.
        plan: The plan of the run.
        m: The expected cohort size.
    """

    SKIPPED, OBSERVED = 1, 5
    """Rounds: the first ones, in which programs are compiled, do not count."""

    def __init__(self, task: Task, plan: ExecutionPlan, m: int) -> None:
        self._task, self._plan, self._m = task, plan, m
        self._seconds: list[float] = []

    def add(self, seconds: float) -> None:
        """Add the time of the next round; after a few rounds, their median is stored."""
        if len(self._seconds) == self.SKIPPED + self.OBSERVED:
            return
        self._seconds.append(seconds)
        if len(self._seconds) == self.SKIPPED + self.OBSERVED:
            self._store()

    def _store(self) -> None:
        task, plan, path = self._task, self._plan, cache_path()
        chunk = plan.chunk if plan.engine == "batched" else min(self._m, _max_parallel_clients(task))
        work = Workload(task, self._m, chunk)
        known = read_measurements(path).get(work.key)
        if known is None:
            return
        step = statistics.median(self._seconds[self.SKIPPED :]) / work.steps
        kind = "run compiled" if plan.compiled else f"run {plan.engine}"
        programs = task.program.compilations if task.compiled else {}
        new = JobMeasurements(samples={kind: [(now(), step)]}, operations=known.operations, programs=programs)
        write_measurement(path, work.key, new)


def _max_parallel_clients(task: Task) -> int:
    """Estimate how many clients fit side by side into the device's total memory, which does not change.

    On a CPU, wide cohorts of a large network of which most is frozen gain nothing: their activations are kept small
    beside the weights, which clients share.
    """
    batch = min(task.batch_size or task.most_samples, task.most_samples, 1024)
    activations = task.sample_bytes * batch
    per_client = 3 * activations + 10 * task.model.size * task.model.dtype.itemsize
    most = int(0.4 * total_memory(task.model.device) / per_client)
    frozen = sum(p.nbytes for p in task.model.module.parameters() if not p.requires_grad)
    if task.model.device.type == "cpu" and frozen > task.model.size * task.model.dtype.itemsize:
        most = min(most, max(_LEAST_ACTIVATIONS, int(_ACTIVATIONS * frozen)) // activations)
    return max(1, most)


def why_not_vectorised(task: Task) -> str | None:
    """Try one gradient on one sample of the first clients, and compare some with those of the loop.

    Returns:
        The reason why the task cannot be vectorised; None if it can.
    """
    if task.loss.batch is not None and not task.loss.batch.masked and not task.equal_batches:
        return f"batches have different sizes and {task.loss.name} takes no mask (outputs, targets, mask)"
    if task.model.mixes_padding and not task.equal_batches:
        return _packing_problem(task) or (
            "samples of a batch influence each other in the model (BatchNorm without running statistics, "
            "scale_grad_by_freq, a value of the whole batch or its size?) and batches of different sizes would be "
            "padded"
        )
    try:
        with torch.no_grad(), slow_operations(task.model.slow_operations):
            _try_gradient(task, task.model.least_rows)
            problem = _why_not_padded(task) if task.model.recurrent else None
            return problem or why_different(task)
    except Exception as error:  # a user's module may raise anything here
        known = error.problem if isinstance(error, CannotVectorise) else None
        problem = known or explain(error, task.model.module, task.loss.name)
        if not _works_on_two(task):
            return problem
        return _removed_axis(task) or f"{problem} (on one sample; two are no problem)"


@torch.no_grad()
def _why_not_padded(task: Task) -> str | None:
    some = torch.arange(min(_SAMPLES_TRIED, int(task.data.offsets[-1])), device=task.model.device)
    return why_not_padded(task.model, task.samples(some)[0], task.equal_batches)


def _packing_problem(task: Task) -> str | None:
    """Return why packed sequences may not be padded; None for other models, and where that cannot be found out."""
    try:
        return _why_not_padded(task) if task.model.recurrent else None
    except Exception:  # a user's module may raise anything where it is vectorised
        return None


def _try_gradient(task: Task, samples: int) -> None:
    ids = torch.arange(min(2, len(task.data)))
    Batched(task, Chunk.of(task, ids), 0).batch(task.model.initial(), samples)


@torch.no_grad()
def _removed_axis(task: Task) -> str | None:
    """Say so if the model removes the axis of a single sample, as `x.squeeze()` does."""
    try:
        inputs = task.samples(torch.arange(2, device=task.model.device))[0]
        several, one = (tuple(task.model.trace(task.model.initial(), inputs[:n]).outputs.shape) for n in (2, 1))
    except Exception:  # a user's module may raise anything here
        return None
    if one == (expected := (1, *several[1:])):
        return None
    return (
        f"the model returns a tensor of shape {one} for one sample instead of {expected} (use squeeze(1) or "
        "flatten(1), which keep the axis of the samples)"
    )


@torch.no_grad()
def _works_on_two(task: Task) -> bool:
    """Whether a gradient of two samples succeeds; `x.squeeze()` also removes the axis of a single one."""
    try:
        _try_gradient(task, 2)
    except Exception:
        return False
    return task.model.least_rows < 2
