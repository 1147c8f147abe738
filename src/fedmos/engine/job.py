"""A job: what a chunk of clients is given and what comes of it, and how its numbers get to a device."""

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
    """A chunk of clients, and what they are given. Numbers are float64 on the CPU, vectors on the run's device.

    Where several runs work together, each with as many clients, x and the vectors of msg are (runs, D) instead of (D,),
    and lr, W and the fields have an entry for each run.
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
    """For each sum, what the clients' uploads are multiplied by, (M,)."""
    width: int
    """The largest number of samples in the whole cohort."""
    fields: Mapping[str, list[float]] = {}
    """Fields of the algorithm that differ between runs."""
    runs: int = 1


class JobResult(NamedTuple):
    """What came of a job; all but `samples` is on the run's device. The next job may overwrite uploads and own.

    Where several runs worked together, sums and report have an axis in front, for the runs.
    """

    uploads: Vectors
    """(M, D) each."""
    own: Vectors
    sums: Vectors
    """Σ factor · upload over the clients, (D,), where it was computed at once."""
    report: Tensor
    """(2, M), float64: the largest number a client sends or keeps, finite only if all are; and its loss."""
    samples: Callable[[], Tensor]
    """(M,), on the CPU: how many samples' gradients each client computed."""


def filled_up(job: Job, M: int) -> Job:
    """The job with its first client repeated up to M rows."""
    more = M - job.ids.shape[0]
    if more == 0:
        return job

    def fill(v: Tensor) -> Tensor:
        return torch.cat([v, v[:1].expand(more, *v.shape[1:])])

    def fill_all(vectors: Vectors) -> Vectors:
        return {name: fill(v) for name, v in vectors.items()}

    nothing = {name: torch.cat([v, v.new_zeros(more)]) for name, v in job.factors.items()}
    return job._replace(ids=fill(job.ids), own=fill_all(job.own), last=fill(job.last), factors=nothing)


class Numbers(NamedTuple):
    """What came from the host."""

    t: Tensor
    ids: Tensor
    last: Tensor
    lr: Tensor
    W: Tensor
    factors: Vectors
    fields: Vectors


def packed(job: Job) -> Tensor:
    """Everything of a job that is on the host as one int64 vector, the floats by their bits: one copy to a device."""
    of_runs = np.array([*job.lr, *job.W, *chain(*job.fields.values())], dtype=np.float64)
    floats = [v.view(np.int64) for v in (of_runs, *(v.numpy() for v in job.factors.values()))]
    return torch.from_numpy(np.concatenate([np.array([job.ctx.t]), job.ids.numpy(), job.last.numpy(), *floats]))


def unpacked(job: Job, numbers: Tensor, dtype: torch.dtype) -> Numbers:
    """The way back, for any job of the same shape."""
    M = len(job.ids)
    (t,), ids, last, rest = numbers.split([1, M, M, len(numbers) - 1 - 2 * M])
    floats = rest.view(torch.float64).to(dtype)
    of_runs, *columns = floats.split([job.runs * (2 + len(job.fields)), *[M] * len(job.factors)])
    lr, W, *fields = (of_clients(job, v[:, None]) for v in of_runs.split(job.runs))
    if job.runs == 1:
        lr, W = lr[0, 0], W[0, 0]
    return Numbers(
        t=t,
        ids=ids,
        last=last[:, None].to(dtype),
        lr=lr,
        W=W,
        factors=dict(zip(job.factors, columns, strict=True)),
        fields=dict(zip(job.fields, fields, strict=True)),
    )


def of_clients(job: Job, v: Tensor) -> Tensor:
    """What each run has, for each of its clients."""
    return v if job.runs == 1 else v.repeat_interleave(len(job.ids) // job.runs, dim=0)
