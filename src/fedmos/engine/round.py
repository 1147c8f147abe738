"""What a round is: selection, broadcast, local work, aggregation, server step."""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from math import isfinite
from pathlib import Path
from time import perf_counter
from typing import Any, Literal, NamedTuple, TypeVar

import torch
from torch import Tensor

from ..algorithm import Algorithm, Context, Vectors
from ..core.history import History, Record
from ..core.rounding import ceil_of
from ..run.result import Result
from ..selection.availability import Availability
from ..selection.selector import Selector
from .client_store import ClientStore
from .cohort import CohortRunner, CohortUpdate, NonFiniteUpdate, PhaseInput, Read, read
from .cost import Wire, client_down, client_up
from .declaration import shapes
from .job import Job
from .local_backend import ExecutionPlan, LocalBackend, expect, largest_of
from .local_update import Watch
from .lr_schedule import Decay, decayed
from .ranks import Ranks
from .round_timing import Timing, Traffic
from .sampling import Cohort, CohortSampler, SampledCohort, SelectionState, as_sent, over_selecting
from .simulated_clock import Clock, System
from .snapshot import Snapshot
from .task import Task


class DivergenceError(RuntimeError):
    """A client's update or the server's step was not finite, and the run was told to stop at that."""

    result: Result
    """What the run had reached before."""


class Evaluation(NamedTuple):
    """A request to evaluate the model x; answered by the metrics, (k,), on the device."""

    x: Tensor


R = TypeVar("R")
Steps = Generator[Job | Evaluation | Read, Any, R]
"""Something that asks for jobs, evaluations and numbers, is sent what came of them, and returns a result."""


class Outcome(NamedTuple):
    """What a round leads to, before it counts."""

    x: Tensor
    state: Vectors
    visit: CohortUpdate | None
    """None where the round is abandoned."""
    losses: Tensor
    """Mean training losses of the clients kept."""
    facts: dict[str, Any]
    remembered: SelectionState
    metrics: dict[str, float]
    evaluating: float
    """Seconds."""


@dataclass(kw_only=True)
class FederatedState:
    """A run in progress. A round changes it as a whole or, if interrupted, not at all."""

    task: Task
    algorithm: Algorithm
    selector: Selector
    plan: ExecutionPlan
    lr_decay: Decay = 1.0
    on_bad_update: Literal["stop", "drop"] = "stop"
    availability: Availability | None = None
    system: System | None = None
    scratch: Path | None = None
    """Where client state goes that is too large for memory; None for the system's temporary folder."""
    ranks: Ranks = field(default_factory=Ranks)
    make_backend: Callable[[Task, Algorithm, ExecutionPlan], LocalBackend] = LocalBackend
    """Finds who does the clients' part."""

    def __post_init__(self) -> None:
        model, data = self.task.model, self.task.data
        self.t = 0
        self.x = model.initial()
        self.history = History()
        given = self.algorithm.init(self.x)
        self.state: Vectors = {
            name: given.get(name, torch.zeros(shape, dtype=model.dtype, device=model.device))
            for name, shape in shapes(self.algorithm.server_state, model.size)
        }
        self.crew = self.make_backend(self.task, self.algorithm, self.plan)
        remote = self.crew.remote
        own = {} if remote else {n: given.get(n, torch.zeros_like(self.x)) for n in self.algorithm.client_state}
        share = (self.ranks.rank, self.ranks.size)
        self.clients = ClientStore(list(own), own, len(data), self.scratch, share=share)
        self.evaluator = self.crew.evaluator(self.ranks)
        self.wire = Wire(model.size, model.dtype)
        self.clock = None if self.system is None or remote else Clock(self.system, len(data), self.task.seed)
        self.m = getattr(self.selector, "m", None)
        """The cohort size asked for, before over-selection."""
        chosen = self.selector if self.system is None else over_selecting(self.selector, self.system, len(data))
        self.chooser = CohortSampler(self.task, self.crew, chosen, self.availability, self.clients.last)
        self.visitor = CohortRunner(
            task=self.task, algorithm=self.algorithm, crew=self.crew, clients=self.clients, ranks=self.ranks
        )
        self._lr = decayed(self.algorithm.lr, self.lr_decay)
        self._step_size: tuple[float, Tensor] | None = None
        self._careful = remote
        """Whether every chunk's updates are looked at before they are summed, as once some have not been finite."""
        self._forgiving = remote or self.on_bad_update == "drop"
        """Whether what is not finite is left out; otherwise the run stops at it."""

    @torch.no_grad()
    def drive(self, steps: Steps[R], watch: Watch | None = None) -> R:
        """Carry out by ourselves what the steps ask for."""
        try:
            request = next(steps)
            while True:
                if isinstance(request, Job):
                    request = steps.send(self.crew.do(request, watch))
                elif isinstance(request, Evaluation):
                    request = steps.send(self.evaluator(request.x[None])[0])
                else:
                    request = steps.send(read([request])[0])
        except StopIteration as end:
            result: R = end.value
            return result

    def steps(self, evaluate: bool) -> Steps[Record]:
        """A round that asks for its local work and its evaluation instead of doing them."""
        began, t = perf_counter(), self.t
        choice = self.chooser.draw(t, self.x)
        outcome = yield from self._attempt(choice, evaluate)
        if outcome is None:
            self._careful = True
            outcome = yield from self._attempt(choice, evaluate)
            assert outcome is not None
        visit, remembered = outcome.visit, outcome.remembered
        if visit is not None and self.chooser.selector.reports:
            remembered = self.chooser.told(remembered, visit.kept.ids, self._reports(visit.kept.ids, outcome.losses))
        record = Record(seconds=perf_counter() - began - outcome.evaluating, **(outcome.facts | outcome.metrics))

        def commit() -> None:
            if visit is not None:
                self.clients.write(*visit.states)
                self.clients.note(visit.kept.ids, t)
            self.chooser.memory = remembered
            if self.clock is not None and record.clock is not None:
                self.clock.now = record.clock
            self.t, self.x, self.state = t + 1, outcome.x, outcome.state
            if len(self.history) == t:
                self.history.append(record)

        try:
            commit()
        except KeyboardInterrupt:  # all of it or nothing: doing it twice does no harm
            commit()
            raise
        return record

    def _attempt(self, choice: SampledCohort, evaluate: bool) -> Steps[Outcome | None]:
        """What the round leads to; None if something was not finite and nobody has looked at whose fault it is.

        The device is given everything before anything is read, on the assumption that all will be finite.
        """
        algorithm, cohort, ctx = self.algorithm, choice.cohort, self._context(choice.cohort)
        timing, visit = self._timing(choice), None
        x, state, changed = self.x, self.state, [self.x]
        if not cohort.ids.shape[0]:
            report = torch.empty((2, 0), dtype=torch.float64, device=x.device)
        else:
            between, visit = yield from self._phases(cohort, ctx, timing)
            if timing.late and visit.kept.W > 0 and algorithm.prepares(self.t):
                # The late are left out as if not chosen, and so of the extra phase as well.
                ids, weights = visit.kept.ids, visit.kept.weights * (ctx.W / visit.kept.W)
                kept = Cohort.of(ids, weights, self.task.data)
                between, visit = yield from self._phases(kept, self._context(kept), None)
            report = visit.report
            if visit.kept.ids.shape[0] < self._quorum(cohort):
                visit = None
        if visit is not None:
            try:
                of_kept = ctx if visit.kept is cohort else self._context(visit.kept)
                x, new = algorithm.server(self.x, between, visit.sums, of_kept)
            except Exception:
                if self._careful:
                    raise
                return None  # perhaps because of what a client sent
            expect(algorithm, "server", new, self.state, some=True)
            state = between | new
            changed = [x, *(v for name, v in state.items() if v is not self.state[name])]
            if self._careful and not self._sound(bool((yield Read((_largest(changed),), now=True))[0].isfinite())):
                x, visit = self.x, None
        if visit is None:
            state = self.state | algorithm.idle(self.x, self.state, ctx)
        began = perf_counter()
        measured = [(yield Evaluation(x))] if evaluate else []
        evaluating = perf_counter() - began
        # While the device works:
        took_part = cohort.ids[:0] if visit is None else visit.kept.ids
        remembered = self.chooser.after(choice, took_part, timing.seconds())
        facts = self._facts(choice, timing, visit is None)
        self.chooser.prefetch(self.t + 1)
        largest, (sent, losses), *metrics = yield Read((_largest(changed), report, *measured))
        if not (self._careful or (isfinite(largest) and isfinite(sent.sum()))):
            return None
        return Outcome(
            x=x,
            state=state,
            visit=visit,
            losses=losses,
            facts=facts,
            remembered=remembered,
            metrics=dict(zip(self.evaluator.names, metrics[0].tolist(), strict=True)) if metrics else {},
            evaluating=evaluating,
        )

    def _facts(self, choice: SampledCohort, timing: Timing, abandoned: bool) -> dict[str, Any]:
        """What a record says beside the metrics."""
        down, up = self.crew.traffic() or (self._bytes_down(choice), self._bytes_up(choice))
        return {
            "round": self.t + 1,
            "cohort": choice.cohort.ids.tolist(),
            "weights": choice.cohort.weights.tolist(),
            "bytes_down": down,
            "bytes_up": up,
            "available": choice.available,
            "short": choice.available < (self.m or 1),
            "probed": choice.samples + self._evaluated(choice.cohort),
            "late": timing.late + self.crew.late(),
            "abandoned": abandoned,
            "clock": None if self.clock is None else self.clock.now + timing.duration(),
        }

    def _sound(self, finite: bool) -> bool:
        """Whether the server's new model and state are finite. Stops the run if it is not, if so told."""
        if not finite and not self._forgiving:
            raise DivergenceError(f"The server's step in round {self.t + 1} is not finite; use smaller step sizes")
        return finite

    def _phases(self, cohort: Cohort, ctx: Context, timing: Timing | None) -> Steps[tuple[Vectors, CohortUpdate]]:
        """The extra phase if there is one, the broadcast, and the local work: the server's state so far, the visit."""
        algorithm, state = self.algorithm, self.state
        errand = PhaseInput(
            phase="prepare",
            ctx=ctx,
            lr=self._lr(self.t),
            x=self.x,
            msg={},
            timing=timing,
            careful=self._careful,
            forgiving=self._forgiving,
        )
        prepared = None
        try:
            if algorithm.prepares(self.t):
                prepared = yield from self.visitor.visit(cohort, errand)
                if len(prepared.kept.ids) < self._quorum(cohort):
                    return state, prepared
                state = state | prepared.sums
            msg = algorithm.broadcast(self.x, state, errand.ctx)
            names = [name for name in algorithm.down if name != "x"]
            expect(algorithm, "broadcast", msg, names)
            in_order = {name: msg[name] for name in names}  # a recording knows vectors by their places
            visit = yield from self.visitor.visit(cohort, errand._replace(phase="train", msg=in_order))
        except NonFiniteUpdate as blame:
            raise DivergenceError(
                f"The update of client {blame.client} in round {self.t + 1} is not finite; use a smaller 'lr', "
                "'clip', or on_bad_update='drop'"
            ) from None
        if prepared is not None:
            visit.report[0] += prepared.report[0].sum()  # not finite if anything was not
        return state, visit

    def dry_run(self, cohort: Cohort, watch: Watch) -> None:
        """Let a cohort do its local work under somebody's eyes. The run stays as it is."""
        self.drive(self._phases(cohort, self._context(cohort), None), watch)

    def gradient_estimate(self, cohort: Cohort) -> Tensor | None:
        """What the server's state says of the gradient at x, after a round with such a cohort."""
        K = float(self.task.steps(self.task.data.sizes[cohort.ids]).to(torch.float64).mean())
        return self.algorithm.gradient_estimate(self.x, self.state, self._context(cohort), K)

    def _evaluated(self, cohort: Cohort) -> int:
        """Samples whose loss the cohort computes for its reports."""
        asked = any(name != "loss" for name in self.chooser.selector.reports)
        return int(self.task.data.sizes[cohort.ids].sum()) if asked else 0

    def _timing(self, choice: SampledCohort) -> Timing:
        if self.clock is None:
            return Timing(None, choice, None, None)
        reports = self.chooser.selector.reports
        traffic = Traffic(
            down=client_down(self.algorithm, self.wire),
            up=client_up(self.algorithm, self.t, len(reports), self.wire),
            wire=self.wire,
        )
        asked = any(name != "loss" for name in reports)
        return Timing(self.clock, choice, traffic, self.task.data.sizes if asked else None)

    def _quorum(self, cohort: Cohort) -> int:
        """How many clients a round needs to count."""
        if self.system is None:
            return 1
        return max(1, ceil_of(self.system.quorum, min(self.m or len(cohort.ids), len(cohort.ids))))

    def _reports(self, kept: Tensor, losses: Tensor) -> Vectors:
        """What those who took part report to the selector."""
        names = self.chooser.selector.reports
        training = {"loss": losses} if "loss" in names else {}
        at_start = self.crew.reports(self.x, kept, names)
        return training | {name: as_sent(v, self.x) for name, v in at_start.items()}

    def _bytes_down(self, choice: SampledCohort) -> int:
        """x goes once to everyone asked or chosen, the rest of the message to those chosen."""
        again = int(torch.isin(choice.cohort.ids, choice.holding).sum()) if len(choice.holding) else 0
        vectors = len(choice.holding) - again
        return len(choice.cohort.ids) * client_down(self.algorithm, self.wire) + vectors * self.wire.vector

    def _bytes_up(self, choice: SampledCohort) -> int:
        each = client_up(self.algorithm, self.t, len(self.chooser.selector.reports), self.wire)
        asked = choice.numbers_up * self.wire.number + choice.vectors_up * self.wire.vector
        return len(choice.cohort.ids) * each + asked

    def snapshot(self, info: dict[str, Any], interrupted: bool) -> Snapshot:
        """Everything there is to know, on the CPU."""
        return Snapshot(
            params=self.x.cpu(),
            history=History(list(self.history)),
            server_state={name: v.cpu() for name, v in self.state.items()},
            clients=self.clients,
            last=self.clients.last.clone(),
            selection=self.chooser.to_dict(),
            info=info,
            interrupted=interrupted,
        )

    def collected(self, ids: list[int]) -> dict[int, Vectors]:
        """The state of clients, wherever they live, on the first rank; nothing on the others."""
        ways, found = [(i % self.ranks.size, 0) for i in ids], {i: Vectors() for i in ids}
        for name in self.algorithm.client_state:
            rows = {n: self.clients[i][name] for n, i in enumerate(ids) if ways[n][0] == self.ranks.rank}
            for n, row in self.ranks.exchange(ways, rows, self.x.cpu()).items():
                found[ids[n]][name] = row
        return found if self.ranks.first else {}

    def result(self, info: dict[str, Any], interrupted: bool) -> Result:
        """The same for the caller, with the model."""
        return Result(**vars(self.snapshot(info, interrupted)), _model=self.task.model.module_with(self.x))

    def restore(self, result: Snapshot) -> None:
        """Continue where `result` ends."""
        device = self.task.model.device
        self.t, self.x = len(result.history), result.params.to(device)
        self.history = History(list(result.history))
        self.state = {name: v.to(device) for name, v in result.server_state.items()}
        self.clients.restore(result.clients, result.last)
        self.chooser.restore(result.selection, self.clients.last)
        if self.clock is not None and self.t:
            self.clock.now = self.history[-1].clock or 0.0

    def _context(self, cohort: Cohort) -> Context:
        lr = self._on_device(self._lr(self.t))
        return Context(t=self.t, lr=lr, N=len(self.task.data), S=cohort.ids.shape[0], W=cohort.W)

    def _on_device(self, lr: float) -> Tensor:
        """The step size as a tensor, kept for as long as it stays."""
        if self._step_size is None or self._step_size[0] != lr:
            self._step_size = (lr, torch.full((), lr, dtype=self.x.dtype, device=self.x.device))
        return self._step_size[1]


def _largest(vectors: list[Tensor]) -> Tensor:
    """The largest absolute value in any of them, float64; not finite if anything in them is not."""
    return largest_of([v.flatten() for v in vectors]).to(torch.float64)
