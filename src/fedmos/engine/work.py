"""Local work, carried out: jobs come in, a chunk of clients each, and what the clients send comes out."""

from __future__ import annotations

import copy
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from ..algorithm import Algorithm, ClientContext, Context, Vectors
from .batched import Batched
from .batches import Chunk
from .gradients import Call, LocalGradient, samples_taken
from .graphs import Graphs
from .local import Watch, local_work
from .loop import Loop
from .task import Task

Phase = Literal["prepare", "train"]


@dataclass(frozen=True, kw_only=True)
class Plan:
    """How local work is computed. Part of a run's identity: another plan rounds differently."""

    engine: Literal["loop", "batched"]
    chunk: int
    """Clients that train together at most."""
    compiled: bool = False
    graphed: bool = False
    """Replay a chunk's whole local work as a CUDA graph."""
    why: str = ""

    @property
    def fixed_shapes(self) -> bool:
        """Whether a new shape costs a compilation or a capture."""
        return self.compiled or self.graphed


class Job(NamedTuple):
    """A chunk of clients, and what they are given."""

    phase: Phase
    ids: Tensor
    """(M,), on the CPU."""
    ctx: Context
    x: Tensor
    msg: Vectors
    own: Vectors
    """(M, D) each."""
    last: Tensor
    """(M,), on the CPU."""
    fields: Vectors = {}
    """Fields of the algorithm that differ between clients, (M, 1) each; where there are any, x and the vectors of msg
    are (M, D), and lr and W of ctx are (M, 1)."""


class Done(NamedTuple):
    """What came of a job; all but uploads and state are on the CPU."""

    uploads: Vectors
    """(M, D) each."""
    own: Vectors
    finite: Tensor
    losses: Tensor
    samples: Tensor
    """How many samples' gradients each client computed."""


class Inputs(NamedTuple):
    """A job as tensors on the run's device: everything that differs between jobs of one shape."""

    ids: Tensor
    offset: Tensor
    n: Tensor
    p: Tensor
    last: Tensor
    lr: Tensor
    t: Tensor
    W: Tensor
    x: Tensor
    msg: Vectors
    own: Vectors
    fields: Vectors


class Outputs(NamedTuple):
    uploads: Vectors
    own: Vectors
    report: Tensor
    """(2, M), float64: whether all is finite, and the loss."""


class Crew:
    """Does jobs as a plan says."""

    def __init__(self, task: Task, algorithm: Algorithm, plan: Plan) -> None:
        self.task, self.algorithm, self.plan = task, algorithm, plan
        self._kind: type[LocalGradient] = Loop if plan.engine == "loop" else Batched
        self._graphs = Graphs(task.model.device) if plan.graphed else None
        self._calls: dict[Any, list[Call]] = {}

    def chunks(self, ids: Tensor) -> tuple[Tensor, ...]:
        return ids.split(self.plan.chunk)

    def gradient(self, ids: Tensor, t: int) -> LocalGradient:
        """The gradient object of one chunk, to be used as it is."""
        return self._kind(self.task, Chunk.of(self.task, ids), t)

    @torch.no_grad()
    def do(self, job: Job, watch: Watch | None = None) -> Done:
        M, sizes = len(job.ids), self.task.data.sizes[job.ids]
        width = int(sizes.max())
        if self.plan.fixed_shapes:
            width = min(_rounded(width), int(self.task.data.sizes.max()))
            job = _filled(job, min(_rounded(M), max(M, self.plan.chunk)))
        inputs = self._inputs(job)
        key = (job.phase, len(job.ids), width, job.ctx.S)

        def body(given: Inputs) -> Outputs:
            outputs, self._calls[key] = self._body(job, given, width, watch)
            return outputs

        direct = self._graphs is None or watch is not None
        outputs = body(inputs) if direct else self._graphs.run(key, body, inputs)  # type: ignore[union-attr]
        finite, losses = outputs.report[:, :M].cpu()
        return Done(
            uploads={name: v[:M] for name, v in outputs.uploads.items()},
            own={name: v[:M] for name, v in outputs.own.items()},
            finite=finite > 0,
            losses=losses,
            samples=samples_taken(self.task, self._calls[key], sizes),
        )

    def _inputs(self, job: Job) -> Inputs:
        device, dtype, data = self.task.model.device, self.task.model.dtype, self.task.data
        chunk = Chunk.of(self.task, job.ids)
        return Inputs(
            ids=chunk.ids,
            offset=chunk.offset,
            n=chunk.n,
            p=data.importance[job.ids, None].to(device, dtype),
            last=job.last[:, None].to(device, dtype),
            lr=job.ctx.lr,
            t=torch.full((), job.ctx.t, device=device),
            W=torch.as_tensor(job.ctx.W, dtype=dtype).to(device),
            x=job.x,
            msg=job.msg,
            own=job.own,
            fields=job.fields,
        )

    def _body(self, job: Job, given: Inputs, width: int, watch: Watch | None) -> tuple[Outputs, list[Call]]:
        ctx, captured = job.ctx, self._graphs is not None and watch is None
        algorithm = with_fields(self.algorithm, given.fields)
        t: Any = given.t if captured else ctx.t
        grad = self._kind(self.task, Chunk(given.ids, given.offset, given.n, width), t)
        c = ClientContext(
            t=t,
            lr=given.lr,
            N=ctx.N,
            S=ctx.S,
            W=given.W if captured else ctx.W,  # type: ignore[arg-type]
            x=given.x,
            msg=given.msg,
            own={name: grad.rows(v) for name, v in given.own.items()},
            K=grad.rows(grad.batches.K[:, None].to(given.x)),
            p=grad.rows(given.p),
            last=grad.rows(given.last),
        )
        own: Vectors
        if job.phase == "prepare":
            uploads, own = algorithm.prepare(c, grad), {}
            expect(self.algorithm, "prepare", uploads, self.algorithm.prepare_up)
        else:
            uploads, own = local_work(algorithm, c, grad, watch)
            expect(self.algorithm, "finish", uploads, self.algorithm.up)
            expect(self.algorithm, "finish", own, self.algorithm.client_state, some=True)
        M = len(given.ids)
        uploads, own = ({n: grad.unrows(v, M) for n, v in vs.items()} for vs in (uploads, own))
        finite = torch.ones(M, dtype=torch.bool, device=given.x.device)
        for v in (*uploads.values(), *own.values()):
            finite = finite & v.isfinite().all(dim=1)
        report = torch.stack([finite.to(torch.float64), grad.reported().to(torch.float64)])
        return Outputs(uploads, own, report), grad.calls


def expect(algorithm: Algorithm, method: str, got: Vectors, names: Any, some: bool = False) -> None:
    """Hold a method to the declaration: exactly these names, or some of them."""
    wrong = set(got) - set(names) if some else set(got) ^ set(names)
    if wrong:
        raise ValueError(
            f"{type(algorithm).__name__}: '{method}' must return {'some of ' if some else ''}"
            f"{', '.join(names) or 'nothing'}, got {', '.join(got) or 'nothing'}"
        )


def _rounded(n: int) -> int:
    """n, or the next number with three leading bits: few shapes for many sizes."""
    step = 1 << max(0, n.bit_length() - 3)
    return -(n // -step) * step


def _filled(job: Job, M: int) -> Job:
    """The job with its first client repeated up to M rows."""
    more = M - len(job.ids)
    if more == 0:
        return job

    def fill(v: Tensor) -> Tensor:
        return torch.cat([v, v[:1].expand(more, *v.shape[1:])])

    def fill_all(vectors: Vectors) -> Vectors:
        return {name: fill(v) for name, v in vectors.items()}

    job = job._replace(ids=fill(job.ids), own=fill_all(job.own), last=fill(job.last), fields=fill_all(job.fields))
    if job.x.ndim == 1:
        return job
    ctx = replace(job.ctx, lr=fill(job.ctx.lr), W=fill(job.ctx.W))  # type: ignore[arg-type]
    return job._replace(ctx=ctx, x=fill(job.x), msg=fill_all(job.msg))


def with_fields(algorithm: Algorithm, fields: Vectors) -> Algorithm:
    """The algorithm with a column of values, one per client, for each of these fields."""
    if not fields:
        return algorithm
    changed = copy.copy(algorithm)
    for name, column in fields.items():
        object.__setattr__(changed, name, column)
    return changed
