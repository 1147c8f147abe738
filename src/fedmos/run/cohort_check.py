"""The check, before a run, that the user's own methods compute for a client in a cohort what they compute for it alone.

A number of a whole cohort in place of a client, as `g.norm()` without `dim` gives, leaves all shapes as they should be.
The check calls methods of the user, and is made only where they contain a reduction.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import torch
from torch import Tensor

from ..algorithm import Algorithm
from ..codecs.compose import coding_of
from ..engine.batches import Chunk, SampleBatch
from ..engine.cohort import Cohort
from ..engine.execution_plan import ExecutionPlan
from ..engine.executor import JobExecutor
from ..engine.gradients import LocalGradient, LossAndGradient
from ..engine.job import Job, JobResult, Phase
from ..engine.local_backend import LocalBackend
from ..engine.loop import Loop
from ..engine.state import FederatedState
from ..engine.task import Task
from ..engine.training import broadcast
from ..engine.watch import GeneratorStates
from ..local.compose import composed_optimizers
from .reductions import reduces
from .spec import RunSpec

_PHASES: tuple[Phase, Phase] = ("prepare", "train")
_STEPS = 2
"""Local steps that are compared."""
_TOLERANCE, _CODED_TOLERANCE = 1e-3, 0.05
"""The largest relative differences that count as rounding: without codecs, and with codecs, which enlarge them."""


def check_cohorts(spec: RunSpec, state: FederatedState) -> None:
    """Compare two clients in a cohort with each of them alone, where parts of the run are the user's own classes.

    All gradients are replaced by numbers that cost nothing and have the same bits for a client in both cases. Methods
    that fail here are left to the run, whose errors name them.

    Raises:
        ValueError: If uploads or the state of clients differ.
    """
    backend, algorithm = state.backend, state.algorithm
    own = [part for part in _parts(spec.algorithm, algorithm) if reduces(part)]
    if not own or not isinstance(backend, LocalBackend) or backend.executor.plan.engine == "loop":
        return
    if len(state.task.data) < 2:
        return
    for phase in _PHASES if algorithm.prepares(state.t) else _PHASES[1:]:
        difference, before = None, GeneratorStates.now(state.x.device)
        with suppress(Exception), torch.no_grad():
            difference = _difference(state, _job(state, phase))
        if before.changed(state.x.device):  # the first round names the method that draws
            before.restore()
        elif difference is not None:
            owners = " or ".join(dict.fromkeys(type(part).__name__ for part in own))
            raise ValueError(
                f"Cannot train a cohort with {owners} because {difference}; reduce each client's row only, with "
                "dim=-1, keepdim=True (fm.check names the method), or use engine='loop'"
            )


def _parts(algorithm: Algorithm, composed: Algorithm) -> list[Any]:
    """Return the objects of a run that compute what clients do."""
    return [algorithm, *composed_optimizers(composed), *(vector.codec for vector in coding_of(composed).up)]


def _job(state: FederatedState, phase: Phase) -> Job:
    """Return the work of the first two clients."""
    ids = torch.arange(2)
    ctx = state.context(Cohort.of(ids, torch.full((2,), 0.5, dtype=torch.float64), state.task.data))
    prepared = {name: state.x.new_full(shape, 0.1) for name, shape in state.declaration.sums("prepare").items()}
    own = state.declaration.initial(state.declaration.client_state, state.x)
    return Job(
        phase=phase,
        ids=ids,
        ctx=ctx,
        lr=[state.lr(state.t)],
        W=[1.0],
        x=state.x,
        msg={} if phase == "prepare" else broadcast(state, state.server_state | prepared, ctx),
        own={name: v.expand(2, *v.shape).clone() for name, v in own.items()},
        last=torch.tensor([-1, -1]),
        factors={},
        width=int(state.task.data.sizes[ids].max()),
    )


def _difference(state: FederatedState, job: Job) -> str | None:
    """Say what of a client in the cohort is not what it is for the client alone; None if all is."""
    together, tolerance = _execute(state, job, _Cohort), _TOLERANCE
    if coding_of(state.algorithm).up:
        tolerance = _CODED_TOLERANCE
    for i in range(2):
        own = {name: v[i : i + 1] for name, v in job.own.items()}
        alone = _execute(state, job._replace(ids=job.ids[i : i + 1], own=own, last=job.last[i : i + 1]), _Alone)
        for kind, found, expected in (("upload", together.uploads, alone.uploads), ("state", together.own, alone.own)):
            for name, v in expected.items():
                distance = _distance(found[name][i], v[0])
                if distance > tolerance:
                    return (
                        f"the {kind} '{name}' of a client differs by {100 * distance:.3g}% between a cohort and the "
                        "client alone"
                    )
    return None


def _distance(found: Tensor, expected: Tensor) -> float:
    """Return the relative distance; 0 for values that are not finite, which the run reports."""
    scale = max(float(found.norm()), float(expected.norm()))
    return float((found - expected).norm()) / scale if 0 < scale < float("inf") else 0.0


def _execute(state: FederatedState, job: Job, kind: type[LocalGradient]) -> JobResult:
    plan = ExecutionPlan(engine="loop", chunk=len(job.ids), reason="compares a cohort with single clients")
    return _Executor(state.task, state.algorithm, plan, kind).execute(job)


class _Executor(JobExecutor):
    """Executes a job with the gradients of `kind`."""

    def __init__(self, task: Task, algorithm: Algorithm, plan: ExecutionPlan, kind: type[LocalGradient]) -> None:
        super().__init__(task, algorithm, plan)
        self._kind = kind


class _Alone(Loop):
    """Few steps of one client, without its data."""

    def __init__(self, task: Task, chunk: Chunk, t: int | Tensor) -> None:
        super().__init__(task, chunk, t)
        self.batches.steps = min(_STEPS, self.batches.steps)

    def loss_and_gradient(self, y: Tensor, batch: SampleBatch) -> LossAndGradient:
        return LossAndGradient(y.new_ones(1), _gradients(y[None], self.chunk.ids)[0])


class _Cohort(LocalGradient):
    """Few steps of a cohort, without its data."""

    def __init__(self, task: Task, chunk: Chunk, t: int | Tensor) -> None:
        super().__init__(task, chunk, t)
        self.batches.steps = min(_STEPS, self.batches.steps)

    def loss_and_gradient(self, y: Tensor, batch: SampleBatch) -> LossAndGradient:
        y = y.expand(len(self.chunk.ids), -1)
        return LossAndGradient(y.new_ones(len(y)), _gradients(y, self.chunk.ids))


def _gradients(y: Tensor, ids: Tensor) -> Tensor:
    """Return a row for clients 0 and 1, of different mean and norm, with the same bits in a cohort and alone."""
    client = ids[:, None].to(y.device, torch.float64)
    parameter = torch.arange(1, y.shape[-1] + 1, device=y.device)
    values = (parameter * (0.7548776662 + client)).frac() - 0.3 + client
    return ((0.1 + 0.2 * client) * values).to(y) + 0.1 * y
