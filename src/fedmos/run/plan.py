"""The execution plan of a run."""

from __future__ import annotations

from ..engine.backend import Backend
from ..engine.cohort_size import cohort_size
from ..engine.execution_plan import ExecutionPlan, RoundTimes, choose_plan, override, resumed_plan
from ..engine.local_backend import LocalBackend
from ..engine.ranks import Ranks
from ..engine.task import Task
from .info import RunInfo
from .spec import RunSpec


def plan_of(spec: RunSpec, task: Task, before: RunInfo | None) -> ExecutionPlan:
    """Return the plan of the earlier part of the run, or else the requested one or the one measured to be fastest."""
    m = cohort_size(spec.selection, spec.system, len(task.data), spec.buffer)
    if before is None or before.engine is None:
        return choose_plan(spec.engine, task, m, spec.rounds)
    requested = {"compiled": "batched"}.get(override(spec.engine), override(spec.engine))
    if requested not in ("auto", before.engine):
        raise ValueError(
            f"Cannot resume the run because its 'engine' is {before.engine!r}, got {requested!r}; use a new folder"
        )
    chunk, why = before.chunk or m, before.engine_why or "as before"
    return resumed_plan(task, before.engine, chunk, bool(before.compiled), why)


def round_times(spec: RunSpec, task: Task, backend: Backend, ranks: Ranks) -> RoundTimes | None:
    """Return what stores the times of the first rounds, where later runs choose their engine by them."""
    if override(spec.engine) != "auto" or ranks.size > 1 or not isinstance(backend, LocalBackend):
        return None
    m = cohort_size(spec.selection, spec.system, len(task.data), spec.buffer)
    return RoundTimes(task, backend.executor.plan, m)
