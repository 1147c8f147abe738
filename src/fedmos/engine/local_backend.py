"""The backend that simulates clients in this process and, over several ranks, in others."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from time import perf_counter

import torch
from torch import Tensor

from ..algorithm import Algorithm, Vectors
from ..core.method_checks import reads_one_value
from ..core.personal_parameters import PERSONAL
from ..core.statistics_layout import AFFINE, STATISTICS
from ..rng import Purpose, permute
from .aggregation import PartialUpdate, block_width, both, normalise, secure_sums, select, upload_factors
from .backend import CohortUpdate, ModelEvaluator, NonFiniteUpdate, PhaseInput, StepObserver, UpdatePolicy
from .client_store import ClientStore
from .cohort import Cohort
from .execution_plan import ExecutionPlan
from .executor import JobExecutor
from .inference import client_losses
from .job import Job
from .rank_exchange import AcrossRanks, Exchange, GatheredReports, SingleProcess
from .ranks import Ranks
from .reports import AT_START
from .secure_sums import SATURATED
from .sent_models import SentModels
from .simulated_clock import Clock
from .task import Task
from .work_queue import ImmediateQueue, WorkQueue


class LocalBackend:
    """Trains the clients of a cohort chunk by chunk; see `Backend`.

    With several ranks, each trains some blocks of the cohort, and all ranks return the same update.
    """

    def __init__(
        self,
        task: Task,
        algorithm: Algorithm,
        plan: ExecutionPlan,
        *,
        clients: ClientStore,
        evaluator: ModelEvaluator | None = None,
        clock: Clock | None = None,
        policy: UpdatePolicy | None = None,
        ranks: Ranks | None = None,
    ) -> None:
        self.task, self.algorithm = task, algorithm
        self.clients, self.clock, self.policy = clients, clock, policy or UpdatePolicy()
        self.executor = JobExecutor(task, algorithm, plan)
        self._evaluator = evaluator
        self.queue: WorkQueue = ImmediateQueue(self.executor, evaluator)
        """Where work is submitted; replaced where several runs are merged."""
        self._ranks = ranks or Ranks()
        shapes = self.executor.declaration.client_state
        self._exchange: Exchange = SingleProcess(clients, shapes)
        if self._ranks.size > 1:
            self._exchange = AcrossRanks(clients, shapes, self._ranks)

    @property
    def evaluator(self) -> ModelEvaluator:
        assert self._evaluator is not None
        return self._evaluator

    async def run_phase(self, cohort: Cohort, given: PhaseInput, observer: StepObserver | None = None) -> CohortUpdate:
        partial = await self._train(cohort, given, observer)
        reported = self._exchange.reports(partial)
        accepted = self._accepted(cohort, given, reported)
        arrived = cohort
        if accepted is not None:
            arrived = Cohort.of(cohort.ids[accepted], cohort.weights[accepted], self.task.data)
        kept, uploads, W = arrived, accepted, None if accepted is None else given.ctx.W
        if given.thin is not None:
            kept, uploads, W = await self._thinned(cohort, given, arrived, reported, partial)
        if given.timing is not None:
            given.timing.record(given.phase, cohort.ids, reported.samples, None if given.thin is None else uploads)
        gathered = self._exchange.gather(partial)
        sums, report = normalise(gathered.sums, partial, kept.weights, W), reported.report
        saturated = sums.pop(SATURATED, None)
        updates = partial.take_updates(gathered.rows, uploads)
        return CohortUpdate(
            sums=sums | {name: select(v, uploads) for name, v in gathered.rows.items()},
            kept=kept if W is None else kept.scaled(W),
            arrived=arrived,
            states=self._exchange.new_states(cohort.ids, uploads, partial),
            report=report if accepted is None else report[:, accepted.nonzero().flatten().to(report.device)],
            updates=updates,
            saturated=saturated,
        )

    async def _thinned(
        self, cohort: Cohort, given: PhaseInput, arrived: Cohort, reported: GatheredReports, partial: PartialUpdate
    ) -> tuple[Cohort, Tensor, None]:
        """Have the selector choose who uploads, and add these uploads.

        Returns:
            The clients that upload, their mask in the cohort, (S,), and None: their weights are not scaled.
        """
        assert given.thin is not None
        (report,) = await self.queue.read([reported.report])
        here = torch.isin(cohort.ids, arrived.ids)
        kept = arrived.scaled(cohort.W)
        if bool(report[0, here].isfinite().all()):  # otherwise the round is repeated with a check of each update
            kept = given.thin(kept, dict(zip(given.reports, report[1:, here], strict=True)))
        uploads = torch.isin(cohort.ids, kept.ids)
        weights = torch.zeros_like(cohort.weights)
        weights[uploads] = kept.weights
        for positions, result in partial.held:
            factors = upload_factors(self.task, partial.rules, cohort.ids[positions], weights[positions])
            partial.add(positions, factors, result, uploads[positions])
        return kept, uploads, None

    async def _train(self, cohort: Cohort, given: PhaseInput, observer: StepObserver | None) -> PartialUpdate:
        """Train the clients that are this process's share of the cohort."""
        queue = self.queue if observer is None else ImmediateQueue(self.executor, self._evaluator, observer)
        S = cohort.ids.shape[0]
        width = block_width(S, self.executor.plan, given.x.device, self._ranks.size)
        partial = self._empty_update(cohort, given, width)
        state_of = self._exchange.client_state(cohort.ids, partial.division, given.x)
        began = perf_counter()
        for positions in self._chunks(partial.division.mine, width, given.sent):
            whole = positions.shape[0] == S
            ids, weights = (v if whole else v[positions] for v in (cohort.ids, cohort.weights))
            factors = {} if given.thin is not None else upload_factors(self.task, partial.rules, ids, weights)
            job = self._job(cohort, given, ids, state_of(positions), factors)
            if given.sent is not None:
                job = self._with_sent(job, given.sent.of(positions))
            with self._explaining_rounds(job):
                result = await queue.execute(job)
            samples = result.samples() if given.timing is not None and given.timing.clocked else positions
            partial.note(result.report, samples)
            if given.thin is not None:
                partial.hold(positions, result)
                continue
            accepted = None if given.timing is None else given.timing.in_time(given.phase, ids, samples)
            if given.policy.check_each:
                (largest,) = await queue.read([result.report[0]], now=True)
                accepted = both(accepted, largest.isfinite())
            partial.add(positions, factors, result, accepted)
        partial.seconds = perf_counter() - began
        return partial

    def _empty_update(self, cohort: Cohort, given: PhaseInput, width: int) -> PartialUpdate:
        """Divide the cohort among the ranks, and return this process's part of its update, without uploads yet."""

        def costs() -> list[float]:
            return [float(v.sum()) for v in self.task.steps(self.task.data.sizes[cohort.ids]).split(width)]

        declaration = self.executor.declaration
        return PartialUpdate(
            self._exchange.divide(cohort.ids.shape[0], width, costs),
            declaration,
            given.phase,
            given.x,
            reports=len(given.reports),
            updates=given.updates,
            rank=self._ranks.rank,
            secure=secure_sums(self.task, declaration, given.phase, cohort),
        )

    def _job(self, cohort: Cohort, given: PhaseInput, ids: Tensor, own: Vectors, factors: Vectors) -> Job:
        return Job(
            phase=given.phase,
            ids=ids,
            ctx=given.ctx,
            lr=[given.lr],
            W=[given.ctx.W],
            x=given.x,
            msg=given.msg,
            own=own,
            last=self.clients.last[ids],
            factors=factors,
            width=cohort.max_samples,
            reports=given.reports,
        )

    @property
    def _mixes_versions(self) -> bool:
        """Whether clients with different models train together. They share a matrix (n, D) of the message."""
        declared = self.executor.declaration.message.values()
        matrices = any(len(shape) > 1 and shape[-1] == self.executor.declaration.layers.size for shape in declared)
        return self.executor.plan.engine == "batched" and not matrices

    @contextmanager
    def _explaining_rounds(self, job: Job) -> Iterator[None]:
        """Explain the error of an algorithm that reads c.t as one number where clients have different ones."""
        try:
            yield
        except (RuntimeError, ValueError) as error:
            if job.rounds is None or not reads_one_value(error):
                raise
            raise ValueError(
                f"Cannot use buffer= with {type(self.algorithm).__name__} on this engine because a method for clients "
                "branches on c.t, which differs between clients that train together; use torch.where, or engine='loop'"
            ) from error

    def _with_sent(self, job: Job, sent: SentModels) -> Job:
        """Return the job with what its clients were sent. Clients do not know the weights of their cohort."""
        if not self._mixes_versions:
            version = sent.shared
            ctx = replace(job.ctx, t=int(sent.rounds[0]))
            return job._replace(ctx=ctx, lr=[version.lr], W=[1.0], x=version.x, msg=version.msg)
        rows = sent.stacked()
        return job._replace(lr=rows.lr, W=[1.0] * len(rows.lr), x=rows.x, msg=rows.msg, rounds=sent.rounds)

    def _chunks(self, mine: Tensor, width: int, sent: SentModels | None) -> list[Tensor]:
        """Split positions in the cohort into chunks of clients that train together."""
        if not len(mine):
            return []
        if sent is not None and not self._mixes_versions:
            return [part for chunk in self._chunks(mine, width, None) for part in sent.runs(chunk)]
        # Only the last block of a cohort can be shorter than the others, so every part is a whole block.
        parts = mine.split(width) if self.executor.plan.blockwise else (mine,)
        return [chunk for part in parts for chunk in self.executor.chunks(part)]

    @staticmethod
    def _accepted(cohort: Cohort, given: PhaseInput, reported: GatheredReports) -> Tensor | None:
        """Return which clients of the cohort count, (S,); None for all."""
        accepted = None if given.timing is None else given.timing.in_time(given.phase, cohort.ids, reported.samples)
        if given.policy.check_each:
            finite = reported.report[0].cpu().isfinite()
            if not (given.policy.drop or bool(select(finite, accepted).all())):
                raise NonFiniteUpdate(int(select(cohort.ids, both(accepted, ~finite))[0]))
            accepted = both(accepted, finite)
        return None if accepted is not None and bool(accepted.all()) else accepted

    async def evaluate(self, x: Tensor) -> Tensor:
        return await self.queue.evaluate(x)

    async def read(self, values: Sequence[Tensor], now: bool = False) -> list[Tensor]:
        return await self.queue.read(values, now)

    def losses(self, x: Tensor, t: int, ids: Tensor, batch: bool) -> Tensor:
        sizes, B = self.task.data.sizes[ids], self.task.batch_size
        if batch and B is not None:
            key = self.task.stream(t, ids, Purpose.PROBE)
            order = permute(key, sizes, int(sizes.max()), min(B, int(sizes.max())))
            positions = [order[row, : int(size)] for row, size in enumerate(sizes.clamp(max=B))]
        else:
            positions = [torch.arange(int(size)) for size in sizes]
        return client_losses(self.task, self._client_models(x, ids), ids, positions)[0]

    def gradients(self, x: Tensor, t: int, ids: Tensor) -> Tensor:
        rows = []
        for chunk in self.executor.chunks(ids):
            grad = self.executor.gradient(chunk, t)
            start = x
            kept = self.executor.declaration.client_state
            if AFFINE in kept or PERSONAL in kept:
                parameters = len(x) + len(self.task.model.initial_personal())
                start = grad.rows(self._client_models(x, chunk)[:, :parameters])
            rows.append(grad.unrows(grad.exact(grad.start(start)))[:, : len(x)])
        return torch.cat(rows)

    def _client_models(self, x: Tensor, ids: Tensor) -> Tensor:
        """Return x or, where clients keep a part of the model, that of each: parameters, its own, statistics."""
        declared = self.executor.declaration.client_state
        if not {STATISTICS, AFFINE, PERSONAL} & set(declared):
            return x
        if self.clients.partial or not self.clients.stores(int(ids[0])):
            raise ValueError(
                "Cannot ask clients for their losses or gradients at x with batchnorm='local' or personal= because "
                "this process does not store what all of them keep; use a simulation on one rank, or another selection"
            )
        own = self.clients.read(ids)
        models = self.algorithm.received(x, own).expand(len(ids), -1)
        kept = [own[name].to(x) for name in (PERSONAL, STATISTICS) if name in own]
        return torch.cat([models, *kept], dim=1)

    def reports(self, x: Tensor, ids: Tensor, names: Sequence[str]) -> Vectors:
        wanted = [name for name in names if name in AT_START]
        if not wanted or not len(ids):
            return {}
        positions = [torch.arange(int(n)) for n in self.task.data.sizes[ids]]
        mean, squared = client_losses(self.task, self._client_models(x, ids), ids, positions)
        return {name: {"start_loss": mean, "start_squared_loss": squared}[name] for name in wanted}

    def traffic(self, declared: tuple[int, int]) -> tuple[int, int]:
        return declared

    def late(self) -> list[int]:
        return []
