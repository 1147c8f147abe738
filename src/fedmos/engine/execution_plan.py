"""The execution plan: how local training is computed, chosen once before round 0 by measuring.

Measurements are cached on the machine (engines.json in `$FEDMOS_CACHE`, default ~/.cache/fedmos), so the same job is
always computed in the same way there, and its bits repeat. `FEDMOS_ENGINE` overrides the choice: "loop", "batched" or
"compiled".
"""

from __future__ import annotations

import hashlib
import logging
import os
import platform
from collections.abc import Callable
from dataclasses import dataclass, replace
from time import perf_counter
from typing import Any, Literal

import torch

from ..core.packing import why_not_padded
from ..core.vectorisation_errors import explain
from .batched import Batched
from .batches import Chunk
from .compile_time import CLOCK
from .loop import Loop
from .plan_cache import cache_path, read_measurements, write_measurement
from .program import can_compile
from .task import Task, total_memory

_log = logging.getLogger("fedmos")

_TIMING_SECONDS = 0.15
"""Seconds for timing one candidate, after its first call."""
_SAMPLES_TRIED = 4
_COMPILATION_GAIN = 0.3
"""The share of its time that a program usually saves when compiled."""


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
        return _loop("asked for")
    problem = why_not_vectorised(task)
    if problem is not None:
        if name != "auto":
            raise ValueError(f"Cannot vectorise the model or the loss because {problem}; use engine='loop'")
        _log.warning(
            "Training client by client, which on a GPU takes many times as long, because the model or the loss cannot "
            "be vectorised: %s",
            problem,
        )
        return _loop("the model or the loss cannot be vectorised")
    if name == "compiled" and not can_compile(task.model.device):
        raise ValueError("Cannot compile because this machine has no C++ compiler; use FEDMOS_ENGINE=batched")
    parallel = _max_parallel_clients(task)
    if name != "auto":
        return _batched(task, min(m, parallel), name == "compiled", "asked for", parallel)
    plan = _fastest(task, m, parallel, rounds)
    _log.info("Engine: %s%s, %s", plan.engine, ", compiled" if plan.compiled else "", plan.reason)
    return plan


def resumed_plan(task: Task, engine: str, chunk: int, compiled: bool, reason: str) -> ExecutionPlan:
    """Return the plan that an earlier part of the run recorded."""
    if engine == "loop":
        return _loop(reason)
    if compiled and not can_compile(task.model.device):
        _log.warning("Going on without compiling because this machine cannot: bits may differ")
        compiled = False
    return _batched(task, chunk, compiled, reason, max(chunk, _max_parallel_clients(task)))


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
    chunk = min(m, parallel)
    ids = torch.arange(min(m, chunk, len(task.data)))
    path, key = cache_path(), _cache_key(task, len(ids))
    known = read_measurements(path).get(key)
    times: dict[str, float] = dict(known) if known else _measure(task, ids)
    steps = rounds * int(task.steps(task.data.sizes[ids]).max())
    cost = times["cost"] if "cost" in times else 5.0 + 0.05 * times["operations"]  # entries of earlier versions
    saved = _COMPILATION_GAIN * times["batched"] * steps
    if "compiled" not in times and saved > 1.5 * cost and can_compile(task.model.device):
        _log.info("Compiling, which takes about %.0f s in all, because it should save %.0f s", cost, saved)
        times |= _measure_compiled(task, ids)
    if times != known:
        write_measurement(path, key, times)
    uncompiled = min(times["loop"], times["batched"])
    figures = f"{1e3 * times['loop']:.1f} ms a cohort step client by client, {1e3 * times['batched']:.1f} ms vectorised"
    if "compiled" in times and saved > 1.5 * cost and times["compiled"] < uncompiled:
        return _batched(task, chunk, True, f"{figures}, {1e3 * times['compiled']:.1f} ms compiled", parallel)
    if times["batched"] <= times["loop"]:
        return _batched(task, chunk, False, figures, parallel)
    return _loop(figures)


def _measure(task: Task, ids: torch.Tensor) -> dict[str, float]:
    """Measure the seconds of one step of the whole cohort; count its operations, and estimate their compilation."""
    x = task.model.initial()
    task.model.training_mode()
    some = ids[: 1 if task.model.size > 2_000_000 else 3]
    grads = [Loop(task, Chunk.of(task, i), 0) for i in some.split(1)]
    loop = _time(lambda: [g(x) for g in grads]) * len(ids) / len(some)
    # The time of a slow cohort is extrapolated from a part of it.
    part = ids if loop < 0.5 else ids[: max(2, int(len(ids) * 0.5 / loop))]
    whole = Batched(task, Chunk.of(task, part), 0)
    y = x.expand(len(part), -1).contiguous()
    batched = _time(lambda: whole(y)) * len(ids) / len(part)
    operations = _operations(task)
    # The estimate is stored with the times: the same job is decided in the same way when more is known.
    cost = CLOCK.expected_of_run(operations, task.model.device.type)
    return {"loop": loop, "batched": batched, "operations": float(operations), "cost": cost}


def _measure_compiled(task: Task, ids: torch.Tensor) -> dict[str, float]:
    fast = replace(task, compiled=True)
    whole = Batched(fast, Chunk.of(fast, ids), 0)
    y = task.model.initial().expand(len(ids), -1).contiguous()
    try:
        return {"compiled": _time(lambda: whole(y))}
    except Exception as error:
        _log.warning("Not compiling because it fails: %s", str(error).strip().split("\n")[0])
        return {"compiled": float("inf")}


@torch.no_grad()
def _time(work: Callable[[], Any]) -> float:
    """Return the shortest time of a few calls, after a first call that does not count."""

    def once() -> float:
        began = perf_counter()
        work()
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        return perf_counter() - began

    once()
    taken = [once(), once()]  # at least two: one may be disturbed by other processes
    while sum(taken) < _TIMING_SECONDS and len(taken) < 5:
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


def _max_parallel_clients(task: Task) -> int:
    """Estimate how many clients fit side by side into the device's total memory, which does not change."""
    batch = min(task.batch_size or task.most_samples, task.most_samples, 1024)
    per_client = 3 * task.sample_bytes * batch + 10 * task.model.size * task.model.dtype.itemsize
    return max(1, int(0.4 * total_memory(task.model.device) / per_client))


def why_not_vectorised(task: Task) -> str | None:
    """Try one gradient on one sample of the first clients; returns the reason if it fails."""
    if task.loss.batch is not None and not task.loss.batch.masked and not task.equal_batches:
        return f"batches have different sizes and {task.loss.name} takes no mask (outputs, targets, mask)"
    if task.model.mixes_samples and not task.equal_batches:
        return (
            "samples of a batch influence each other in the model (BatchNorm without running statistics, "
            "scale_grad_by_freq?) and batches of different sizes would be padded"
        )
    try:
        with torch.no_grad():
            ids = torch.arange(min(2, len(task.data)))
            Batched(task, Chunk.of(task, ids), 0).batch(task.model.initial(), task.model.least_rows)
            if task.model.recurrent:
                some = torch.arange(min(_SAMPLES_TRIED, int(task.data.offsets[-1])), device=task.model.device)
                return why_not_padded(task.model, task.samples(some)[0], task.equal_batches)
    except Exception as error:  # a user's module may raise anything here
        return explain(error, task.model.module)
    return None


def _cache_key(task: Task, m: int) -> str:
    """Hash everything that a measurement depends on."""
    device = task.model.device
    where = torch.cuda.get_device_name(device) if device.type == "cuda" else "CPU"
    largest, data = task.most_samples, task.data
    code = getattr(task.loss.function, "__code__", None)
    parts = (
        task.model.structure(here=False),
        (m, task.batch_size and min(task.batch_size, largest), largest if task.batch_size is None else 0),
        (str(task.model.dtype), task.model.precision, task.loss.name, code and code.co_code),
        (tuple(data.x.shape[1:]), str(data.x.dtype), tuple(data.y.shape[1:]), data.normalize, data.augment),
        (where, platform.processor(), platform.machine(), str(torch.__version__)),
        *(["SAM"] if task.sam_radius else []),
    )
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:24]
