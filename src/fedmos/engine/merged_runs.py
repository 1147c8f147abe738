"""Several runs as one program: their cohorts train side by side along the batch axis.

Runs that differ only in seed, data split, step size or other numbers of the algorithm share a program. Each run keeps
its own model, state, selection and history; only jobs and evaluations are merged, on rows that carry their run's model
and numbers.

The rounds of merged runs are coroutines. Where one needs work done, it awaits a request; `MergedRuns.play` collects the
requests of all runs and answers those that can be merged together.
"""

from __future__ import annotations

import logging
from collections.abc import Hashable, Sequence
from dataclasses import fields, is_dataclass, replace
from functools import cached_property
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor

from ..algorithm import Algorithm
from ..core.history import Record
from ..data.federated import FederatedData
from ..rng import signed
from .aggregation import clone_rows
from .backend import ModelEvaluator
from .executor import JobExecutor
from .job import Job, JobResult, pad_job
from .local_backend import LocalBackend
from .merge_requests import EvaluationRequest, JobRequest, ReadRequest, RequestQueue, Rounds, WorkRequest
from .round_results import DivergenceError
from .similar_steps import may_gain
from .state import FederatedState
from .task import Task
from .work_queue import read_values

_log = logging.getLogger("fedmos")

_DECLARED = ("server_state", "client_state", "down", "up", "reduce", "prepare_up", "prepare_reduce")


def merge_key(state: FederatedState) -> Hashable:
    """Return what runs must have in common to be merged; None if a run must train alone."""
    task, algorithm = state.task, state.algorithm
    if not isinstance(state.backend, LocalBackend) or not is_dataclass(algorithm) or state.asynchronous is not None:
        return None
    plan = state.backend.executor.plan
    if plan.engine == "loop" or task.model.mixes_in_evaluation:  # merged runs are evaluated in other batches
        return None
    data, model = task.data, task.model
    if not plan.fixed_shapes and task.local_steps is None and may_gain(task.steps(data.sizes)):
        return None  # alone, clients train in groups
    if any(len(shape) > 1 and shape[-1] == model.size for shape in state.declaration.message.values()):
        return None  # clients of one run share a matrix (n, D) of the message; those of several cannot
    key = (
        type(algorithm),
        tuple((f.name, v) for f in fields(algorithm) if not isinstance(v := getattr(algorithm, f.name), float)),
        tuple(repr(getattr(algorithm, name)) for name in _DECLARED),
        _derived(algorithm),
        (plan.compiled, plan.cuda_graph),
        (task.local_steps, task.local_epochs, task.batch_size, task.weight_decay, task.clip, task.sam_radius),
        (task.loss.key, model.device, model.dtype, model.precision, model.structure(here=True)),
        (len(data), data.x.shape[1:], data.x.dtype, data.y.shape[1:], data.y.dtype),
        (data.normalize, data.augment),
        data.sizes[0].item()
        if task.loss.batch is not None and not task.loss.batch.masked
        else None,  # takes no padding
    )
    try:
        hash(key)
    except TypeError:  # a field that cannot be compared
        return None
    return key


def _derived(algorithm: Algorithm) -> Hashable:
    """Return the attributes that are no fields, as `__post_init__` may compute from them: merged runs share these."""
    names: set[str] = {f.name for f in fields(algorithm)} if is_dataclass(algorithm) else set()
    cached = {n for n in vars(algorithm) if isinstance(getattr(type(algorithm), n, None), cached_property)}
    return tuple(sorted((n, v) for n, v in vars(algorithm).items() if n not in names | cached))


class MergedRuns:
    """Plays rounds of runs with the same merge key, executing their jobs and evaluations together."""

    def __init__(self, runs: Sequence[FederatedState], evaluator: ModelEvaluator | None) -> None:
        """`evaluator`: evaluates the models of all runs at once; None to evaluate them one by one."""
        self._runs = list(runs)
        first = self._backend(0)
        self._offsets = [0, *accumulate(len(run.task.data) for run in runs)]
        algorithm = runs[0].algorithm
        names: list[str] = [f.name for f in fields(algorithm)] if is_dataclass(algorithm) else []
        self._fields: list[str] = [n for n in names if len({repr(getattr(run.algorithm, n)) for run in runs}) > 1]
        self._max_clients = first.executor.plan.max_parallel_clients
        self._merge = len(runs) > 1
        self._evaluator = evaluator if self._merge else None
        if self._merge:
            plan = replace(first.executor.plan, chunk=sum(self._executor(i).plan.chunk for i in range(len(runs))))
            self._merged = JobExecutor(_merge_tasks([run.task for run in runs]), algorithm, plan)
            for i in range(len(runs)):  # reads of the context that one run discovers hold for all
                self._executor(i).context_reads = self._merged.context_reads
                self._backend(i).queue = RequestQueue()

    def _backend(self, number: int) -> LocalBackend:
        backend = self._runs[number].backend
        assert isinstance(backend, LocalBackend)
        return backend

    def _executor(self, number: int) -> JobExecutor:
        return self._backend(number).executor

    @torch.no_grad()
    def play(self, rounds: Rounds) -> dict[int, Record | DivergenceError]:
        """Play one round of several runs; returns by run its record, or the error it stopped at."""
        try:
            return _Interpreter(self, rounds).run()
        finally:  # an error of one run ends the rounds of all
            for coroutine in rounds.values():
                coroutine.close()

    def compatibility(self, number: int, job: Job) -> Hashable:
        """Return what jobs must have in common to be merged. Where shapes are fixed, smaller cohorts are padded."""
        if not self._merge:
            return number
        size = None if self._merged.plan.fixed_shapes else len(self._executor(number).pad(job).ids)
        return job.phase, job.reports, job.ctx.t, self._merged.captured_size(job), size

    def execute(self, jobs: Sequence[tuple[int, Job]]) -> list[JobResult]:
        """Execute compatible jobs, each given with the number of its run."""
        if len(jobs) == 1 or not self._merge:
            return [self._executor(number).execute(job) for number, job in jobs]
        if sum(len(job.ids) for _, job in jobs) > self._max_clients:
            return self._execute_halves(jobs)
        try:
            return self._execute_merged(jobs)
        except torch.OutOfMemoryError:
            return self._execute_halves(jobs)
        except (RuntimeError, TypeError, ValueError) as error:
            if not self._fields:
                raise
            _log.warning(
                "Training runs one by one because their %s differ, which %s does not compute with: %s",
                ", ".join(self._fields),
                type(self._merged.algorithm).__name__,
                str(error).split("\n")[0],
            )
            self._merge = False
            return self.execute(jobs)

    def evaluate(self, models: Sequence[tuple[int, Tensor]]) -> list[Tensor]:
        """Return the metrics of models, each given with the number of its run."""
        if self._evaluator is None or len(models) == 1:
            return [self._backend(number).evaluator(x[None])[0] for number, x in models]
        # The evaluator expects a model of every run; runs that have ended get an arbitrary one.
        given = dict(models)
        measured = self._evaluator(torch.stack([given.get(i, models[0][1]) for i in range(len(self._runs))]))
        return [measured[number] for number, _ in models]

    def _execute_halves(self, jobs: Sequence[tuple[int, Job]]) -> list[JobResult]:
        # The next replay of a captured graph overwrites the outputs of the first half.
        first = [clone_rows(result) for result in self.execute(jobs[: len(jobs) // 2])]
        return first + self.execute(jobs[len(jobs) // 2 :])

    def _execute_merged(self, jobs: Sequence[tuple[int, Job]]) -> list[JobResult]:
        padded = [(number, self._executor(number).pad(job)) for number, job in jobs]
        width = max(len(job.ids) for _, job in padded)
        padded = [(number, pad_job(job, width)) for number, job in padded]
        merged = self._merged.execute(self._merge_jobs(padded))
        sums, reports = {name: v.unbind() for name, v in merged.sums.items()}, merged.report.unbind()

        def part(i: int, M: int) -> JobResult:
            rows = slice(i * width, i * width + M)
            return JobResult(
                uploads={name: v[rows] for name, v in merged.uploads.items()},
                own={name: v[rows] for name, v in merged.own.items()},
                sums={name: v[i] for name, v in sums.items()},
                report=reports[i] if width == M else reports[i][:, :M],
                samples=lambda: merged.samples()[rows],
            )

        return [part(i, job.ids.shape[0]) for i, (_, job) in enumerate(jobs)]

    def _merge_jobs(self, jobs: Sequence[tuple[int, Job]]) -> Job:
        """Merge jobs with the same number of clients."""
        first = jobs[0][1]
        return Job(
            phase=first.phase,
            ids=torch.cat([job.ids + self._offsets[number] for number, job in jobs]),
            ctx=first.ctx,
            lr=[v for _, job in jobs for v in job.lr],
            W=[v for _, job in jobs for v in job.W],
            x=torch.stack([job.x for _, job in jobs]),
            msg={name: torch.stack([job.msg[name] for _, job in jobs]) for name in first.msg},
            own={name: torch.cat([job.own[name] for _, job in jobs]) for name in first.own},
            last=torch.cat([job.last for _, job in jobs]),
            factors={name: torch.cat([job.factors[name] for _, job in jobs]) for name in first.factors},
            width=max(job.width for _, job in jobs),
            reports=first.reports,
            fields={
                name: [float(getattr(self._runs[number].algorithm, name)) for number, _ in jobs]
                for name in self._fields
            },
            runs=len(jobs),
        )


class _Interpreter:
    """Resumes the rounds of merged runs and answers their requests, equal work together, until all have ended."""

    def __init__(self, merged: MergedRuns, rounds: Rounds) -> None:
        self._merged, self._rounds = merged, rounds
        self._jobs: dict[Hashable, list[tuple[int, Job]]] = {}
        self._models: list[tuple[int, Tensor]] = []
        self._reads: list[tuple[int, Sequence[Tensor]]] = []
        self._ended: dict[int, Record | DivergenceError] = {}

    def run(self) -> dict[int, Record | DivergenceError]:
        for number in self._rounds:
            self._resume(number, None)
        # Queue all work on the device first; read, which waits for the device, when nothing else is left.
        while True:
            if self._jobs:
                jobs = self._jobs.pop(next(iter(self._jobs)))
                self._resume_all(jobs, self._merged.execute(jobs))
            elif self._models:
                models, self._models = self._models, []
                self._resume_all(models, self._merged.evaluate(models))
            elif self._reads:
                reads, self._reads = self._reads, []
                self._resume_all(reads, read_values([values for _, values in reads]))
            else:
                return self._ended

    def _resume_all(self, requests: Sequence[tuple[int, Any]], answers: Sequence[Any]) -> None:
        for (number, _), answer in zip(requests, answers, strict=True):
            self._resume(number, answer)

    def _resume(self, number: int, answer: Any) -> None:
        """Resume a run's round with the answer to its request, up to its next request or its end."""
        try:
            request = self._rounds[number].send(answer)
            while isinstance(request, ReadRequest) and request.now:
                request = self._rounds[number].send(read_values([request.values])[0])
        except StopIteration as end:
            self._ended[number] = end.value
        except DivergenceError as error:
            self._ended[number] = error
        else:
            self._queue(number, request)

    def _queue(self, number: int, request: WorkRequest[Any]) -> None:
        match request:
            case JobRequest(job):
                self._jobs.setdefault(self._merged.compatibility(number, job), []).append((number, job))
            case EvaluationRequest(x):
                self._models.append((number, x))
            case ReadRequest(values):
                self._reads.append((number, values))


def _merge_tasks(tasks: Sequence[Task]) -> Task:
    """Return one task with the clients of all runs, run after run."""
    first, device = tasks[0], tasks[0].model.device
    seeds = torch.cat([torch.full((len(task.data),), signed(task.seed)) for task in tasks])
    numbers = torch.cat([torch.arange(len(task.data)) for task in tasks])
    return replace(
        first,
        data=_merge_data([task.data for task in tasks]),
        origin=(seeds.to(device), numbers.to(device)),
    )


def _merge_data(federations: Sequence[FederatedData]) -> FederatedData:
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
        tests=None,
        unseen=None,
        names=None,
    )
