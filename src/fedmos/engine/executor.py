"""Execution of jobs: local training of a chunk of clients, as the execution plan says."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property, lru_cache, reduce
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..algorithm import Algorithm, ClientContext, Vectors
from ..codecs.compose import receive
from ..core.function_state import FunctionWatch
from ..core.method_checks import unchanged
from .backend import StepObserver
from .batched import Batched
from .batches import Chunk
from .context import CohortContext
from .declaration import Declaration, check_names, client_rows
from .execution_plan import ExecutionPlan
from .gradients import Call, LocalGradient, samples_taken
from .graphs import Graphs
from .job import Job, JobNumbers, JobResult, Phase, expand_runs, join_results, pack, pad_job, select_clients, unpack
from .local_update import local_update
from .loop import Loop
from .named_tensors import named
from .reports import report_row
from .secure_sums import secure_rule
from .similar_steps import round_up, similar_steps
from .task import Task

_METHODS: dict[Phase, str] = {"prepare": "prepare", "train": "finish"}
"""By phase, the method that returns the uploads."""


_CLIENTS: dict[Phase, str] = {"prepare": "prepare", "train": "begin', 'step' or 'finish"}
"""By phase, the methods that clients call, for errors."""

_NO_MESSAGE = "in the extra phase, before the broadcast, clients have x only"


class Outputs(NamedTuple):
    """As `JobResult`, always with a leading axis for merged runs in `sums` and `report`."""

    uploads: Vectors
    own: Vectors
    sums: Vectors
    report: Tensor


class JobExecutor:
    """Executes jobs for one task and algorithm."""

    def __init__(self, task: Task, algorithm: Algorithm, plan: ExecutionPlan) -> None:
        self.task, self.algorithm, self.plan = task, algorithm, plan
        self.declaration = Declaration(algorithm, task.model.layers)
        self._kind: type[LocalGradient] = Loop if plan.engine == "loop" else Batched
        self._graphs = Graphs(task.model.device) if plan.cuda_graph else None
        self._watch = FunctionWatch(task.own_functions if plan.engine == "batched" else ())
        self._calls: dict[Any, list[Call]] = {}
        self._taken = lru_cache(8)(lambda calls: samples_taken(task, calls, task.data.sizes))
        """By gradients that were computed, the number of per-sample gradients that each client computes for them."""
        self.context_reads: dict[Phase, set[str]] = {}
        """By phase, which of the context's numbers "S" and "t" the algorithm has read."""

    def chunks(self, ids: Tensor) -> tuple[Tensor, ...]:
        """Split clients into chunks that train together."""
        if ids.shape[0] <= self.plan.chunk:
            return (ids,)
        parts: tuple[Tensor, ...] = ids.split(self.plan.chunk)
        return parts

    def halve_chunks(self) -> None:
        """Halve the chunk size and free the memory of captured graphs."""
        self.plan = replace(self.plan, chunk=max(1, self.plan.chunk // 2))
        if self._graphs is not None:
            self._graphs = Graphs(self.task.model.device)
            torch.cuda.empty_cache()

    def gradient(self, ids: Tensor, t: int) -> LocalGradient:
        """Return the gradient object of one chunk."""
        return self._kind(self.task, Chunk.of(self.task, ids), t)

    @torch.no_grad()
    def execute(self, job: Job, observer: StepObserver | None = None) -> JobResult:
        """Train the job's clients, or run their extra phase."""
        groups = self._groups(job) if observer is None else None
        if groups is None:
            return self._execute(job, observer)
        return join_results(groups, [self._execute(select_clients(job, group), None) for group in groups])

    def _groups(self, job: Job) -> list[Tensor] | None:
        """Return positions of clients that train in less time one group after another; None for all together."""
        if self.plan.engine == "loop" or self.plan.fixed_shapes or self.task.local_steps is not None:
            return None
        if job.phase != "train" or job.runs > 1:
            return None
        return similar_steps(self.task.steps(self.task.data.sizes[job.ids]))

    def _execute(self, job: Job, observer: StepObserver | None) -> JobResult:
        ids, M, width = job.ids, job.ids.shape[0], job.width
        steps = self.task.local_steps or int(self.task.steps(self.task.data.sizes[ids].max()))
        if observer is None:
            width, steps = self._padded_width(width), self._padded_steps(steps)
            job = self.pad(job)
        shape = job.runs, job.ids.shape[0], job.rounds is None
        key = (job.phase, *shape, width, steps, job.reports, self.captured_size(job))

        def body(numbers: Tensor, x: Tensor, *vectors: Tensor) -> Outputs:
            msg = dict(zip(job.msg, vectors[: len(job.msg)], strict=True))
            own = dict(zip(job.own, vectors[len(job.msg) :], strict=True))
            given = job._replace(x=x, msg=msg, own=own)
            outputs, self._calls[key] = self._run(given, numbers, width, steps, observer)
            return outputs

        numbers, vectors = pack(job), (job.x, *job.msg.values(), *job.own.values())
        if self._watch.look():
            self.task.program.follow_values()
        if self._graphs is None:
            self._calls.clear()
        if self._graphs is None or observer is not None or self._watch.changed:
            outputs = body(numbers.to(job.x.device), *vectors)
        else:
            outputs = self._graphs.run(key, body, numbers, *vectors)
            # The next replay overwrites the outputs of this one.
            outputs = outputs._replace(
                sums={name: v.clone() for name, v in outputs.sums.items()}, report=outputs.report.clone()
            )
        calls = tuple(self._calls[key])
        sums, report = outputs.sums, outputs.report
        if job.runs == 1:
            sums, report = {name: v[0] for name, v in sums.items()}, report[0, :, :M]
        return JobResult(
            uploads=_first_rows(outputs.uploads, M),
            own=_first_rows(outputs.own, M),
            sums=sums,
            report=report,
            samples=lambda: self._taken(calls)[ids],
        )

    def captured_size(self, job: Job) -> int | None:
        """Return the cohort size S that a captured graph depends on; None where the algorithm does not read it."""
        known = self._graphs is not None and job.phase in self.context_reads
        return None if known and "S" not in self.context_reads[job.phase] else job.ctx.S

    def pad(self, job: Job) -> Job:
        """Pad the job with clients of weight zero to one of few sizes, where a new shape costs a compilation."""
        M = job.ids.shape[0]
        if job.runs > 1:
            return job
        if M == 1 < min(job.ctx.S, self.plan.chunk) and self.task.model.device.type == "cpu":
            return pad_job(job, 2)  # CPU kernels for one client differ from those for several, and round differently
        if not self.plan.fixed_shapes:
            return job
        return pad_job(job, min(round_up(M), max(M, self.plan.chunk)))

    def _padded_width(self, width: int) -> int:
        """Round the number of sample columns up to one of few sizes, where a new shape costs a compilation."""
        if not self.plan.fixed_shapes:
            return width
        most = self.task.most_samples
        return most if most <= 64 else min(1 << (width - 1).bit_length(), most)

    def _padded_steps(self, steps: int) -> int:
        """Round the number of steps up to one of few, where a new one costs a capture. Clients ignore the others."""
        if self._graphs is None or self.task.local_steps is not None:
            return steps
        return min(round_up(steps), self.task.most_steps)

    def _run(
        self, job: Job, packed: Tensor, width: int, steps: int, observer: StepObserver | None
    ) -> tuple[Outputs, list[Call]]:
        """Run the job's phase. JobNumbers of the job are read from `packed`, which is on the device."""
        x = expand_runs(job, job.x)
        numbers = unpack(job, packed, x.dtype)
        self.task.model.training_mode()
        captured = self._graphs is not None and observer is None
        grad = self._gradient(job, numbers, width, steps, captured)
        grad.owner = type(self.algorithm).__name__
        if "gradient_noise" in job.reports:
            grad.measure_noise()
        c = self._context(job, numbers, x, grad, captured)
        algorithm = with_fields(self.algorithm, numbers.fields)
        with unchanged(algorithm, _CLIENTS[job.phase], {"c.x": x, "c.msg": c.msg, "c.own": c.own}):
            uploads, own = self._phase(job.phase, algorithm, c, grad, observer)
        M, declared = len(job.ids), self.declaration
        uploads = client_rows(declared, _METHODS[job.phase], uploads, declared.up(job.phase), grad.unrows, M)
        own = client_rows(declared, "finish", own, declared.client_state, grad.unrows, M)
        uploads, own = ({name: v.to(x.dtype) for name, v in vectors.items()} for vectors in (uploads, own))
        return Outputs(uploads, own, self._sums(job, numbers, uploads), _report(job, uploads, own, grad)), grad.calls

    def _phase(
        self,
        phase: Phase,
        algorithm: Algorithm,
        c: ClientContext,
        grad: LocalGradient,
        observer: StepObserver | None,
    ) -> tuple[Vectors, Vectors]:
        """Return the uploads and the new state of the clients, with the declared names."""
        if phase == "prepare":
            uploads = algorithm.prepare(c, grad)
            check_names(self.algorithm, "prepare", uploads, self.declaration.up(phase))
            return uploads, {}
        uploads, own = local_update(algorithm, c, grad, observer)
        check_names(self.algorithm, "finish", uploads, self.declaration.up(phase))
        check_names(self.algorithm, "finish", own, self.declaration.client_state, some=True)
        return uploads, own

    def _gradient(self, job: Job, numbers: JobNumbers, width: int, steps: int, captured: bool) -> LocalGradient:
        offsets, sizes, _ = self.task.tables
        ids, parallel = numbers.ids, max(job.ctx.S * job.runs, self.plan.chunk)
        chunk = Chunk(ids, offsets[ids], sizes[ids], width, steps, parallel)
        t: Any = numbers.t if captured or job.rounds is not None else job.ctx.t
        return self._kind(self.task, chunk, t)

    def _context(self, job: Job, numbers: JobNumbers, x: Tensor, grad: LocalGradient, captured: bool) -> ClientContext:
        """Build the clients' context. In a captured graph, the round and Σw are tensors; elsewhere Python numbers."""
        ctx, (_, _, importance) = job.ctx, self.task.tables
        t: Any = numbers.t if captured else ctx.t
        if job.rounds is not None:
            t = numbers.t[:, None]
        W: Any = numbers.W if captured or len(job.W) > 1 else job.W[0]
        why = _NO_MESSAGE if job.phase == "prepare" else None
        msg = {name: self._received(name, v, job, grad) for name, v in job.msg.items()}
        own = named(self.algorithm, "c.own", {name: grad.rows(_columns(v)) for name, v in job.own.items()})
        last = grad.rows(numbers.last)
        x, msg = receive(self.algorithm, x, msg, own, last, grad.key)
        return CohortContext(
            owner=type(self.algorithm).__name__,
            receives_x="x" in self.declaration.down,
            reads=self.context_reads.setdefault(job.phase, set()),
            gradient=grad,
            t=t,
            lr=numbers.lr,
            N=ctx.N,
            S=ctx.S,
            W=W,
            layers=self.task.model.layers,
            x=self.algorithm.received(x, own),
            msg=named(self.algorithm, "c.msg", msg, why),
            own=own,
            K=grad.rows(grad.batches.K[:, None].to(job.x)),
            p=grad.rows(importance[numbers.ids, None].to(job.x)),
            last=last,
        )

    def _received(self, name: str, v: Tensor, job: Job, grad: LocalGradient) -> Tensor:
        """Return a tensor of the message as clients see it: numbers as columns, vectors as x."""
        shape = self.declaration.message[name]
        if shape and shape[-1] == job.x.shape[-1]:
            return expand_runs(job, v)
        if job.rounds is None:
            v = expand_runs(job, v) if job.runs > 1 else v.expand(len(job.ids), *v.shape)
        return grad.rows(_columns(v))

    def _sums(self, job: Job, numbers: JobNumbers, uploads: Vectors) -> Vectors:
        """Sum the uploads of a whole chunk on a GPU. On a CPU and under secure aggregation, they are added later."""
        if job.x.device.type == "cpu" or secure_rule(self.algorithm) is not None:
            return {}
        rules = self.declaration.rules(job.phase)
        return {name: _weighted_sum(v, uploads[rules[name][0]], job.runs) for name, v in numbers.factors.items()}


def _report(job: Job, uploads: Vectors, own: Vectors, grad: LocalGradient) -> Tensor:
    """(runs, 1 + reports, M), float64: the largest absolute value that a client sends or keeps, and its reports."""
    sent = [v.flatten(1) if v.ndim > 1 else v[:, None] for v in (*uploads.values(), *own.values())]
    largest = max_abs(sent or [job.x.new_zeros(len(job.ids), 1)])
    rows = [largest, *(report_row(name, uploads, grad) for name in job.reports)]
    return torch.stack([v.to(torch.float64).view(job.runs, -1) for v in rows], dim=1)


def max_abs(vectors: Sequence[Tensor]) -> Tensor:
    """Return the largest absolute value along the last axis over all vectors; non-finite if any value is."""

    def of(v: Tensor) -> Tensor:
        if v.device.type == "cpu":  # where the norm takes ten times as long
            return torch.maximum(v.amax(-1), -v.amin(-1))
        norm: Tensor = torch.linalg.vector_norm(v, torch.inf, dim=-1)
        return norm

    return reduce(torch.maximum, map(of, vectors))


def _first_rows(vectors: Vectors, M: int) -> Vectors:
    return {name: v[:M] if v.shape[0] > M else v for name, v in vectors.items()}


def _weighted_sum(factors: Tensor, uploads: Tensor, runs: int) -> Tensor:
    """(runs, …): Σ factor · upload over each run's clients."""
    rows = uploads.reshape(runs, len(uploads) // runs, -1)
    return (factors.view(runs, 1, -1) @ rows)[:, 0].view(runs, *uploads.shape[1:])


def _columns(v: Tensor) -> Tensor:
    """Return a tensor with a row per client, in which single numbers are columns."""
    return v.unsqueeze(-1) if v.ndim == 1 else v


def with_fields(algorithm: Algorithm, fields: Vectors) -> Algorithm:
    """Return the algorithm with a column of values, one per client, for each of these fields."""
    if not fields:
        return algorithm
    changed = copy.copy(algorithm)
    for name in [n for n in vars(changed) if isinstance(getattr(type(changed), n, None), cached_property)]:
        del vars(changed)[name]  # computed from other values of the fields
    for name, column in fields.items():
        object.__setattr__(changed, name, column)
    return changed
