"""Local work, carried out: jobs come in, a chunk of clients each, and what the clients send comes out."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import reduce
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from ..algorithm import Algorithm, ClientContext, Vectors
from ..evaluation.metrics import Evaluator, client_losses
from ..rng import Purpose, permute
from .batched import Batched
from .batches import Chunk
from .gradients import Call, LocalGradient, samples_taken
from .graphs import Graphs
from .job import Job, JobResult, Phase, filled_up, of_clients, packed, unpacked
from .local_update import Watch, local_work
from .loop import Loop
from .ranks import Ranks
from .task import Task


@dataclass(frozen=True, kw_only=True)
class ExecutionPlan:
    """How local work is computed. Part of a run's identity: another plan rounds differently."""

    engine: Literal["loop", "batched"]
    chunk: int
    """Clients that train together at most."""
    compiled: bool = False
    graphed: bool = False
    """Replay a chunk's whole local work as a CUDA graph."""
    why: str = ""
    room: int = 1
    """How many clients would fit into memory."""
    apart: bool = False
    """Whether each block of a cohort (see `CohortRunner`) is computed alone; then bits do not depend on its rank."""

    @property
    def fixed_shapes(self) -> bool:
        """Whether a new shape costs a compilation or a capture."""
        return self.compiled or self.graphed


class Outputs(NamedTuple):
    """As in `JobResult`, always with an axis for the runs."""

    uploads: Vectors
    own: Vectors
    sums: Vectors
    report: Tensor


class UnresponsiveClients(Exception):
    """Clients that were asked something have not answered."""

    def __init__(self, ids: Tensor) -> None:
        super().__init__(ids)
        self.ids = ids


class LocalBackend:
    """Does all that clients do, as a plan says: jobs, answers to a selector's questions, reports, evaluation."""

    remote = False
    """Whether clients are elsewhere. Then they keep their own state; who fails to answer, or answers what cannot be
    used, is marked as not finite in the report of a job, and left out of the round."""

    def __init__(self, task: Task, algorithm: Algorithm, plan: ExecutionPlan) -> None:
        self.task, self.algorithm, self.plan = task, algorithm, plan
        self._kind: type[LocalGradient] = Loop if plan.engine == "loop" else Batched
        self._graphs = Graphs(task.model.device) if plan.graphed else None
        self._calls: dict[Any, list[Call]] = {}
        self.asked: dict[Phase, set[str]] = {}
        """What the algorithm asked of its context in a phase that was recorded: "S", or nothing."""

    def chunks(self, ids: Tensor) -> tuple[Tensor, ...]:
        if ids.shape[0] <= self.plan.chunk:
            return (ids,)
        parts: tuple[Tensor, ...] = ids.split(self.plan.chunk)
        return parts

    def narrow(self) -> None:
        """Halve the chunks, and let go of memory."""
        self.plan = replace(self.plan, chunk=max(1, self.plan.chunk // 2))
        if self._graphs is not None:
            self._graphs = Graphs(self.task.model.device)
            torch.cuda.empty_cache()

    def gradient(self, ids: Tensor, t: int) -> LocalGradient:
        """The gradient object of one chunk, to be used as it is."""
        return self._kind(self.task, Chunk.of(self.task, ids), t)

    def losses(self, x: Tensor, t: int, ids: Tensor, batch: bool) -> Tensor:
        """(M,), float64: each client's mean loss at x, on all its data or on one random batch.

        Like `gradients`, raises UnresponsiveClients if some do not answer, which clients at hand always do.
        """
        sizes, B = self.task.data.sizes[ids], self.task.batch_size
        if batch and B is not None:
            key = self.task.stream(t, ids, Purpose.PROBE)
            order = permute(key, sizes, int(sizes.max()), min(B, int(sizes.max())))
            positions = [order[row, : int(size)] for row, size in enumerate(sizes.clamp(max=B))]
        else:
            positions = [torch.arange(int(size)) for size in sizes]
        return client_losses(self.task, x, ids, positions)[0]

    def gradients(self, x: Tensor, t: int, ids: Tensor) -> Tensor:
        """(M, D): ∇f_i(x)."""
        rows = []
        for chunk in self.chunks(ids):
            grad = self.gradient(chunk, t)
            rows.append(grad.unrows(grad.full(grad.start(x)), len(chunk)))
        return torch.cat(rows)

    def reports(self, x: Tensor, ids: Tensor, names: Sequence[str]) -> Vectors:
        """The reports that speak of a client's data at the model it received, (M,) each, float64."""
        wanted = [name for name in names if name != "loss"]
        if not wanted or not len(ids):
            return {}
        positions = [torch.arange(int(n)) for n in self.task.data.sizes[ids]]
        mean, squared = client_losses(self.task, x, ids, positions)
        return {name: {"start_loss": mean, "start_squared_loss": squared}[name] for name in wanted}

    def traffic(self) -> tuple[int, int] | None:
        """Bytes of vectors and numbers that went down and up since this was last asked; None where nothing travels."""
        return None

    def late(self) -> list[int]:
        """Of the clients of the last job, those who did not answer in time, apart from a simulated clock."""
        return []

    def evaluator(self, ranks: Ranks) -> Evaluator:
        return Evaluator([self.task], vectorised=self.plan.engine == "batched", ranks=ranks)

    @torch.no_grad()
    def do(self, job: Job, watch: Watch | None = None) -> JobResult:
        given, M, width = job.ids, job.ids.shape[0], job.width
        steps = self.task.local_steps or int(self.task.steps(self.task.data.sizes[given].max()))
        if watch is None:
            if self.plan.fixed_shapes:
                most = self.task.most_samples
                width = most if most <= 64 else min(1 << (width - 1).bit_length(), most)
            job = self.filled(job)
        key = (job.phase, job.runs, job.ids.shape[0], width, steps, self.counted(job))

        def body(numbers: Tensor, x: Tensor, *vectors: Tensor) -> Outputs:
            msg = dict(zip(job.msg, vectors[: len(job.msg)], strict=True))
            own = dict(zip(job.own, vectors[len(job.msg) :], strict=True))
            outputs, self._calls[key] = self._body(job._replace(x=x, msg=msg, own=own), numbers, width, steps, watch)
            return outputs

        numbers, vectors = packed(job), (job.x, *job.msg.values(), *job.own.values())
        if self._graphs is None or watch is not None:
            outputs = body(numbers.to(job.x.device), *vectors)
        else:
            outputs = self._graphs.run(key, body, numbers, *vectors)
            # The next replay overwrites what this one has put out.
            outputs = outputs._replace(
                sums={name: v.clone() for name, v in outputs.sums.items()}, report=outputs.report.clone()
            )
        sums, report = outputs.sums, outputs.report
        if job.runs == 1:
            sums, report = {name: v[0] for name, v in sums.items()}, report[0, :, :M]
        return JobResult(
            uploads=_first_rows(outputs.uploads, M),
            own=_first_rows(outputs.own, M),
            sums=sums,
            report=report,
            samples=lambda: samples_taken(self.task, self._calls[key], self.task.data.sizes[given]),
        )

    def counted(self, job: Job) -> int | None:
        """How many clients take part; None where that is known not to matter to a recording, as to most."""
        known = self._graphs is not None and job.phase in self.asked
        return None if known and "S" not in self.asked[job.phase] else job.ctx.S

    def filled(self, job: Job) -> Job:
        """The job with rows that do not count, up to one of few sizes, where a new shape costs something."""
        M = job.ids.shape[0]
        if job.runs > 1:
            return job
        if M == 1 < min(job.ctx.S, self.plan.chunk) and self.task.model.device.type == "cpu":
            return filled_up(job, 2)  # kernels for one client are others than for several, and round otherwise
        if not self.plan.fixed_shapes:
            return job
        return filled_up(job, min(_rounded(M), max(M, self.plan.chunk)))

    def _body(self, job: Job, given: Tensor, width: int, steps: int, watch: Watch | None) -> tuple[Outputs, list[Call]]:
        """The job's vectors as they are; its numbers from `given`, where they are on the device."""
        ctx, M = job.ctx, len(job.ids)
        x, msg = of_clients(job, job.x), {name: of_clients(job, v) for name, v in job.msg.items()}
        numbers = unpacked(job, given, x.dtype)
        offsets, sizes, importance = self.task.tables
        ids = numbers.ids
        # In a recording, round and Σw are tensors, too; elsewhere they are what algorithms see in a simple run.
        recorded = self._graphs is not None and watch is None
        t: Any = numbers.t if recorded else ctx.t
        W: Any = numbers.W if recorded or len(job.W) > 1 else ctx.W
        self.task.model.module.train()
        company = max(ctx.S * job.runs, self.plan.chunk)
        grad = self._kind(self.task, Chunk(ids, offsets[ids], sizes[ids], width, steps, company), t)
        algorithm = with_fields(self.algorithm, numbers.fields)
        c = _Asking(
            asked=self.asked.setdefault(job.phase, set()),
            t=t,
            lr=numbers.lr,
            N=ctx.N,
            S=ctx.S,
            W=W,
            x=x,
            msg=msg,
            own={name: grad.rows(v) for name, v in job.own.items()},
            K=grad.rows(grad.batches.K[:, None].to(x)),
            p=grad.rows(importance[ids, None].to(x)),
            last=grad.rows(numbers.last),
        )
        own: Vectors
        if job.phase == "prepare":
            uploads, own = algorithm.prepare(c, grad), {}
            expect(self.algorithm, "prepare", uploads, self.algorithm.prepare_up)
        else:
            uploads, own = local_work(algorithm, c, grad, watch)
            expect(self.algorithm, "finish", uploads, self.algorithm.up)
            expect(self.algorithm, "finish", own, self.algorithm.client_state, some=True)
        uploads, own = ({n: grad.unrows(v, M) for n, v in vs.items()} for vs in (uploads, own))
        largest = largest_of([*uploads.values(), *own.values()] or [x.new_zeros(M, 1)])
        each = [v.to(torch.float64).view(job.runs, -1) for v in (largest, grad.reported())]
        report = torch.stack(each, dim=1)
        sums = {}
        if x.device.type != "cpu":
            rules = self.algorithm.reduce if job.phase == "train" else self.algorithm.prepare_reduce
            parts = {name: uploads[upload].reshape(job.runs, -1, x.shape[-1]) for name, (upload, _) in rules.items()}
            sums = {name: _weighted(v, parts[name]) for name, v in numbers.factors.items()}
        return Outputs(uploads, own, sums, report), grad.calls


@dataclass(frozen=True, kw_only=True)
class _Asking(ClientContext):
    """Notes whether S is asked for: a number of Python's, which a recording of local work cannot change."""

    asked: set[str]

    def __getattribute__(self, name: str) -> Any:
        if name == "S":
            self.asked.add(name)
        return super().__getattribute__(name)


def largest_of(vectors: Sequence[Tensor]) -> Tensor:
    """The largest absolute value along the last axis of any of the vectors; not finite if anything in them is not."""

    def of(v: Tensor) -> Tensor:
        if v.device.type == "cpu":  # where the norm takes ten times as long
            return torch.maximum(v.amax(-1), -v.amin(-1))
        norm: Tensor = torch.linalg.vector_norm(v, torch.inf, dim=-1)
        return norm

    return reduce(torch.maximum, map(of, vectors))


def _first_rows(vectors: Vectors, M: int) -> Vectors:
    return {name: v[:M] if v.shape[0] > M else v for name, v in vectors.items()}


def _weighted(factors: Tensor, uploads: Tensor) -> Tensor:
    """(runs, D): Σ factor · upload over each run's clients."""
    return (factors.view(len(uploads), 1, -1) @ uploads)[:, 0]


def expect(algorithm: Algorithm, method: str, got: Vectors, names: Any, some: bool = False) -> None:
    """Hold a method to the declaration: exactly these names, or some of them."""
    if not (all(name in names for name in got) and (some or all(name in got for name in names))):
        raise ValueError(
            f"{type(algorithm).__name__}: '{method}' must return {'some of ' if some else ''}"
            f"{', '.join(names) or 'nothing'}, got {', '.join(got) or 'nothing'}"
        )


def _rounded(n: int) -> int:
    """n, or the next number with three leading bits: few shapes for many sizes."""
    step = 1 << max(0, n.bit_length() - 3)
    return -(n // -step) * step


def with_fields(algorithm: Algorithm, fields: Vectors) -> Algorithm:
    """The algorithm with a column of values, one per client, for each of these fields."""
    if not fields:
        return algorithm
    changed = copy.copy(algorithm)
    for name, column in fields.items():
        object.__setattr__(changed, name, column)
    return changed
