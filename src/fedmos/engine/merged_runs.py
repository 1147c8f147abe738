"""Several runs of one shape as one: their cohorts train side by side along the batch axis.

Runs that differ in seed, split, step size or other numbers of the algorithm share a program. Each keeps its own model,
state, selection and history; only local work is done together, on rows that carry their run's model and numbers.
"""

from __future__ import annotations

import logging
from collections.abc import Hashable, Sequence
from dataclasses import fields, is_dataclass, replace
from itertools import accumulate

import torch
from torch import Tensor

from ..algorithm import Vectors
from ..data.federated import FederatedData
from ..evaluation.metrics import Evaluator
from ..rng import signed
from .job import Job, JobResult, filled_up
from .local_backend import LocalBackend
from .round import FederatedState
from .task import Task

_log = logging.getLogger("fedmos")


def shape_of(simulation: FederatedState) -> Hashable:
    """What runs must have in common to train together; None where a run must go alone."""
    task, algorithm, plan = simulation.task, simulation.algorithm, simulation.plan
    if plan.engine == "loop" or not is_dataclass(algorithm):
        return None
    data, model = task.data, task.model
    shape = (
        type(algorithm),
        tuple((f.name, v) for f in fields(algorithm) if not isinstance(v := getattr(algorithm, f.name), float)),
        tuple(repr(getattr(algorithm, name)) for name in _DECLARED),
        (plan.compiled, plan.graphed),
        (task.local_steps, task.local_epochs, task.batch_size, task.weight_decay, task.clip),
        (task.loss.function, model.device, model.dtype, model.precision, model.structure(here=True)),
        (len(data), data.x.shape[1:], data.x.dtype, data.y.shape[1:], data.y.dtype),
        (data.normalize, data.augment),
    )
    try:
        hash(shape)
    except TypeError:  # a field that cannot be compared
        return None
    return shape


_DECLARED = ("server_state", "client_state", "down", "up", "reduce", "prepare_up", "prepare_reduce")


class MergedRuns:
    """The crew of several runs of one shape."""

    def __init__(self, runs: Sequence[FederatedState]) -> None:
        self._runs = list(runs)
        first = runs[0]
        self._base = [0, *accumulate(len(run.task.data) for run in runs)]
        names: list[str] = [f.name for f in fields(first.algorithm)] if is_dataclass(first.algorithm) else []
        self._fields: list[str] = [n for n in names if len({repr(getattr(run.algorithm, n)) for run in runs}) > 1]
        self._room = first.plan.room
        self._alone = len(runs) == 1
        if not self._alone:
            plan = replace(first.plan, chunk=sum(run.plan.chunk for run in runs))
            self._crew = LocalBackend(_merged([run.task for run in runs]), first.algorithm, plan)
            for run in runs:  # what one of them finds out of the algorithm, all know
                run.crew.asked = self._crew.asked
        self._evaluator = None if self._alone else Evaluator.of_all([run.task for run in runs])

    def alike(self, number: int, job: Job) -> Hashable:
        """What jobs must have in common to be done at once. Where shapes are fixed, smaller cohorts are filled up."""
        if self._alone:
            return number
        size = None if self._crew.plan.fixed_shapes else len(self._runs[number].crew.filled(job).ids)
        return job.phase, job.ctx.t, self._crew.counted(job), size

    def do(self, jobs: Sequence[tuple[int, Job]]) -> list[JobResult]:
        """What came of jobs that are alike, each with the number of its run."""
        if len(jobs) == 1 or self._alone:
            return [self._runs[number].crew.do(job) for number, job in jobs]
        if sum(len(job.ids) for _, job in jobs) > self._room:
            return self._halves(jobs)
        try:
            return self._at_once(jobs)
        except torch.OutOfMemoryError:
            return self._halves(jobs)
        except (RuntimeError, TypeError, ValueError) as error:
            if not self._fields:
                raise
            _log.warning(
                "Training runs one by one because their %s differ, which %s does not compute with: %s",
                ", ".join(self._fields),
                type(self._crew.algorithm).__name__,
                str(error).split("\n")[0],
            )
            self._alone = True
            return self.do(jobs)

    def evaluate(self, models: Sequence[tuple[int, Tensor]]) -> list[Tensor]:
        """The metrics of models, each with the number of its run."""
        if self._evaluator is None or len(models) == 1:
            return [self._runs[number].evaluator(x[None])[0] for number, x in models]
        # The evaluator's rows are the runs in order, with any model for those that have ended.
        given = dict(models)
        measured = self._evaluator(torch.stack([given.get(i, models[0][1]) for i in range(len(self._runs))]))
        return [measured[number] for number, _ in models]

    def _halves(self, jobs: Sequence[tuple[int, Job]]) -> list[JobResult]:
        # What a recording has put out is overwritten by the next one.
        first = [_kept(done) for done in self.do(jobs[: len(jobs) // 2])]
        return first + self.do(jobs[len(jobs) // 2 :])

    def _at_once(self, jobs: Sequence[tuple[int, Job]]) -> list[JobResult]:
        filled = [(number, self._runs[number].crew.filled(job)) for number, job in jobs]
        width = max(len(job.ids) for _, job in filled)
        filled = [(number, filled_up(job, width)) for number, job in filled]
        done = self._crew.do(self._job(filled))
        sums, reports = {name: v.unbind() for name, v in done.sums.items()}, done.report.unbind()

        def cut(vectors: Vectors, rows: slice) -> Vectors:
            return {name: v[rows] for name, v in vectors.items()}

        def part(i: int, M: int) -> JobResult:
            rows = slice(i * width, i * width + M)
            return JobResult(
                uploads=cut(done.uploads, rows),
                own=cut(done.own, rows),
                sums={name: v[i] for name, v in sums.items()},
                report=reports[i] if width == M else reports[i][:, :M],
                samples=lambda: done.samples()[rows],
            )

        return [part(i, job.ids.shape[0]) for i, (_, job) in enumerate(jobs)]

    def _job(self, jobs: Sequence[tuple[int, Job]]) -> Job:
        """All the jobs, of as many clients each, as one."""
        first = jobs[0][1]
        return Job(
            phase=first.phase,
            ids=torch.cat([job.ids + self._base[number] for number, job in jobs]),
            ctx=first.ctx,
            lr=[v for _, job in jobs for v in job.lr],
            W=[v for _, job in jobs for v in job.W],
            x=torch.stack([job.x for _, job in jobs]),
            msg={name: torch.stack([job.msg[name] for _, job in jobs]) for name in first.msg},
            own={name: torch.cat([job.own[name] for _, job in jobs]) for name in first.own},
            last=torch.cat([job.last for _, job in jobs]),
            factors={name: torch.cat([job.factors[name] for _, job in jobs]) for name in first.factors},
            width=max(job.width for _, job in jobs),
            fields={
                name: [float(getattr(self._runs[number].algorithm, name)) for number, _ in jobs]
                for name in self._fields
            },
            runs=len(jobs),
        )


def _merged(tasks: Sequence[Task]) -> Task:
    """One task whose clients are all runs' clients, run after run."""
    first, device = tasks[0], tasks[0].model.device
    seeds = torch.cat([torch.full((len(task.data),), signed(task.seed)) for task in tasks])
    numbers = torch.cat([torch.arange(len(task.data)) for task in tasks])
    return replace(
        first,
        data=_pooled([task.data for task in tasks]),
        origin=(seeds.to(device), numbers.to(device)),
    )


def _pooled(federations: Sequence[FederatedData]) -> FederatedData:
    first = federations[0]
    shared = all(data.x is first.x and data.y is first.y for data in federations)
    index, offsets, start, entries = [], [torch.zeros(1, dtype=torch.int64)], 0, 0
    for data in federations:
        own = torch.arange(int(data.offsets[-1]), device=data.x.device) if data.index is None else data.index
        index.append(own + start)
        offsets.append(data.offsets[1:] + entries)
        entries += int(data.offsets[-1])
        start += 0 if shared else len(data.x)
    return replace(
        first,
        x=first.x if shared else torch.cat([data.x for data in federations]),
        y=first.y if shared else torch.cat([data.y for data in federations]),
        index=torch.cat(index),
        offsets=torch.cat(offsets),
        importance=torch.cat([data.importance for data in federations]),
        test=None,
        names=None,
    )


def _kept(done: JobResult) -> JobResult:
    def clones(vectors: Vectors) -> Vectors:
        return {name: v.clone() for name, v in vectors.items()}

    return done._replace(uploads=clones(done.uploads), own=clones(done.own))
