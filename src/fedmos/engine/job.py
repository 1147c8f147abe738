"""A job: the input of a chunk of clients, its result, and how its numbers are copied to a device."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import chain
from typing import Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from ..algorithm import Context, Vectors

Phase = Literal["prepare", "train"]


class Job(NamedTuple):
    """The input of a chunk of clients. JobNumbers are float64 on the CPU, vectors on the run's device.

    With several merged runs, each with the same number of clients, x and the vectors of msg are (runs, D) instead of
    (D,), and lr, W and the fields have one entry per run. With `rounds`, clients were sent models of different rounds:
    x and all tensors of msg have a row per client, and lr and W an entry.
    """

    phase: Phase
    ids: Tensor
    """(M,), on the CPU."""
    ctx: Context
    lr: list[float]
    W: list[float]
    x: Tensor
    msg: Vectors
    own: Vectors
    """(M, D) each."""
    last: Tensor
    """(M,), on the CPU."""
    factors: Vectors
    """By sum, the factor of each client's upload, (M,)."""
    width: int
    """The largest number of samples in the whole cohort."""
    reports: tuple[str, ...] = ()
    """The names of the numbers that clients report; see `fedmos.engine.reports`."""
    fields: Mapping[str, list[float]] = {}
    """Fields of the algorithm that differ between runs."""
    runs: int = 1
    rounds: Tensor | None = None
    """(M,), on the CPU: by client, the round whose model it was sent; None where that is the round of `ctx` for all."""


class JobResult(NamedTuple):
    """The result of a job; all but `samples` is on the run's device. The next job may overwrite uploads and own.

    With several merged runs, sums and report have a leading axis for the runs.
    """

    uploads: Vectors
    """(M, D) each."""
    own: Vectors
    sums: Vectors
    """Σ factor · upload over the clients, (D,), where the job computed it (on a GPU)."""
    report: Tensor
    """(1 + reports, M), float64: the largest absolute value that a client sends or keeps, then its reports in order."""
    samples: Callable[[], Tensor]
    """(M,), on the CPU: the number of per-sample gradients that each client computed."""


def pad_job(job: Job, M: int) -> Job:
    """Pad the job to M rows with copies of its first client, of factor zero."""
    missing = M - job.ids.shape[0]
    if missing == 0:
        return job

    def fill(v: Tensor) -> Tensor:
        return torch.cat([v, v[:1].expand(missing, *v.shape[1:])])

    def fill_all(vectors: Vectors) -> Vectors:
        return {name: fill(v) for name, v in vectors.items()}

    zeros = {name: torch.cat([v, v.new_zeros(missing)]) for name, v in job.factors.items()}
    job = job._replace(ids=fill(job.ids), own=fill_all(job.own), last=fill(job.last), factors=zeros)
    if job.rounds is None:
        return job
    lr, W = (numbers + numbers[:1] * missing for numbers in (job.lr, job.W))
    return job._replace(x=fill(job.x), msg=fill_all(job.msg), rounds=fill(job.rounds), lr=lr, W=W)


def select_clients(job: Job, positions: Tensor) -> Job:
    """Return the job of some of the clients of a single run."""
    own = {name: v[positions] for name, v in job.own.items()}
    factors = {name: v[positions] for name, v in job.factors.items()}
    job = job._replace(ids=job.ids[positions], own=own, last=job.last[positions], factors=factors)
    if job.rounds is None:
        return job
    msg = {name: v[positions] for name, v in job.msg.items()}
    lr, W = ([numbers[i] for i in positions.tolist()] for numbers in (job.lr, job.W))
    return job._replace(x=job.x[positions], msg=msg, rounds=job.rounds[positions], lr=lr, W=W)


def join_results(positions: list[Tensor], results: list[JobResult]) -> JobResult:
    """Return the result of a job from those of its parts, whose clients were at these positions. They have no sums."""
    order = torch.cat(positions).argsort()

    def joined(parts: list[Tensor], dim: int = 0) -> Tensor:
        return torch.cat(parts, dim).index_select(dim, order.to(parts[0].device))

    first = results[0]
    return JobResult(
        uploads={name: joined([result.uploads[name] for result in results]) for name in first.uploads},
        own={name: joined([result.own[name] for result in results]) for name in first.own},
        sums={},
        report=joined([result.report for result in results], 1),
        samples=lambda: joined([result.samples() for result in results]),
    )


class JobNumbers(NamedTuple):
    """The numbers of a job on the device."""

    t: Tensor
    """0-dimensional, or (M,) where clients were sent models of different rounds."""
    ids: Tensor
    last: Tensor
    lr: Tensor
    W: Tensor
    factors: Vectors
    fields: Vectors


def pack(job: Job) -> Tensor:
    """Pack all numbers of a job into one int64 vector, floats by their bits, for a single copy to the device."""
    of_runs = np.array([*job.lr, *job.W, *chain(*job.fields.values())], dtype=np.float64)
    floats = [v.view(np.int64) for v in (of_runs, *(v.numpy() for v in job.factors.values()))]
    t = np.array([job.ctx.t]) if job.rounds is None else job.rounds.numpy()
    return torch.from_numpy(np.concatenate([t, job.ids.numpy(), job.last.numpy(), *floats]))


def unpack(job: Job, numbers: Tensor, dtype: torch.dtype) -> JobNumbers:
    """Invert `pack` for any job of the same shape."""
    M, rounds, entries = len(job.ids), 1 if job.rounds is None else len(job.ids), len(job.lr)
    t, ids, last, rest = numbers.split_with_sizes([rounds, M, M, numbers.shape[0] - rounds - 2 * M])
    floats = rest.view(torch.float64).to(dtype)
    of_runs, *columns = floats.split_with_sizes([entries * (2 + len(job.fields)), *[M] * len(job.factors)])
    lr, W, *fields = (expand_runs(job, v) for v in of_runs.view(-1, entries, 1).unbind())
    if job.runs == 1 and job.rounds is None:
        lr, W = lr[0, 0], W[0, 0]
    return JobNumbers(
        t=t[0] if job.rounds is None else t,
        ids=ids,
        last=last[:, None].to(dtype),
        lr=lr,
        W=W,
        factors=dict(zip(job.factors, columns, strict=True)),
        fields=dict(zip(job.fields, fields, strict=True)),
    )


def expand_runs(job: Job, v: Tensor) -> Tensor:
    """Repeat each run's row for each of its clients."""
    return v if job.runs == 1 else v.repeat_interleave(len(job.ids) // job.runs, dim=0)
