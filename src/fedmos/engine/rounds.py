"""What a round is: selection, broadcast, local work, aggregation, server step."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass, is_dataclass, replace
from pathlib import Path
from time import perf_counter
from typing import Any, Literal, NamedTuple, TypeVar

import numpy as np
import torch
from torch import Tensor

from ..algorithm import RULES, Algorithm, Context, Vectors
from ..cost import Wire, client_down, client_up
from ..history import History, Record
from ..metrics import Evaluator
from ..result import Result
from ..selection.availability import Availability
from ..selection.selector import Selector
from ..shares import ceil_of
from ..system import Clock, System
from .choosing import Choice, Chooser, Cohort, start_reports
from .clients import ClientStore
from .local import Watch
from .task import Task
from .timing import Timing, Traffic
from .work import Crew, Job, Phase, Plan, expect

Decay = float | Mapping[int, float]


class DivergenceError(RuntimeError):
    """A client's update or the server's step was not finite, and the run was told to stop at that."""

    result: Result
    """What the run had reached before."""


class Evaluation(NamedTuple):
    """A request to evaluate the model x."""

    x: Tensor


R = TypeVar("R")
Steps = Generator[Job | Evaluation, Any, R]
"""Something that asks for jobs and evaluations, is sent what came of them, and returns a result."""


class Visit(NamedTuple):
    """What came back from a cohort."""

    sums: Vectors
    kept: Cohort
    """Those whose uploads count."""
    states: list[tuple[Tensor, Vectors]]
    """Per chunk, the clients kept and their new state."""
    losses: Tensor
    """Mean training losses of the clients kept."""


@dataclass(kw_only=True)
class Simulation:
    """A run in progress. A round changes it as a whole or, if interrupted, not at all."""

    task: Task
    algorithm: Algorithm
    selector: Selector
    plan: Plan
    lr_decay: Decay = 1.0
    on_bad_update: Literal["stop", "drop"] = "stop"
    availability: Availability | None = None
    system: System | None = None
    scratch: Path | None = None
    """Where client state goes that is too large for memory; None for the system's temporary folder."""

    def __post_init__(self) -> None:
        model, data = self.task.model, self.task.data
        self.t = 0
        self.x = model.initial()
        self.history = History()
        given = self.algorithm.init(self.x)
        self.state: Vectors = {
            name: given.get(name, torch.zeros(shape, dtype=model.dtype, device=model.device))
            for name, shape in _shapes(self.algorithm.server_state, model.size)
        }
        own = {name: given.get(name, torch.zeros_like(self.x)) for name in self.algorithm.client_state}
        self.clients = ClientStore(self.algorithm.client_state, own, len(data), self.scratch)
        self.evaluator = Evaluator(self.task)
        self.wire = Wire(model.size, model.dtype)
        self.clock = None if self.system is None else Clock(self.system, len(data), self.task.seed)
        self.m = getattr(self.selector, "m", None)
        """The cohort size asked for, before over-selection."""
        chosen = self.selector if self.system is None else over_selecting(self.selector, self.system, len(data))
        self.crew = Crew(self.task, self.algorithm, self.plan)
        self.chooser = Chooser(self.task, self.crew, chosen, self.availability, self.clients.last)
        self._lr = decayed(self.algorithm.lr, self.lr_decay)

    @torch.no_grad()
    def drive(self, steps: Steps[R], watch: Watch | None = None) -> R:
        """Carry out by ourselves what the steps ask for."""
        try:
            request = next(steps)
            while True:
                if isinstance(request, Job):
                    request = steps.send(self.crew.do(request, watch))
                else:
                    request = steps.send(self.evaluator(request.x))
        except StopIteration as end:
            result: R = end.value
            return result

    def steps(self, evaluate: bool) -> Steps[Record]:
        """A round that asks for its local work and its evaluation instead of doing them."""
        began, t, x, state, algorithm = perf_counter(), self.t, self.x, self.state, self.algorithm
        self.task.model.module.train()

        choice = self.chooser.draw(t, x)
        cohort, ctx = choice.cohort, self._context(choice.cohort)
        timing = self._timing(choice)
        abandoned = True
        if len(cohort.ids):
            state, visit = yield from self._phases(cohort, timing.note, timing.in_time)
            if timing.late and float(visit.kept.weights.sum()) > 0 and algorithm.prepares(t):
                # The late are left out as if not chosen, and so of the extra phase as well.
                kept = visit.kept._replace(weights=visit.kept.weights * (ctx.W / float(visit.kept.weights.sum())))
                state, visit = yield from self._phases(kept, _everyone, _everyone)
            abandoned = len(visit.kept.ids) < self._quorum(cohort)
        if not abandoned:
            x_new, new = algorithm.server(x, state, visit.sums, self._context(visit.kept))
            expect(algorithm, "server", new, self.state, some=True)
            changed = [v for name, v in (state | new).items() if v is not self.state[name]]
            abandoned = not self._sound(x_new, *changed)
        if abandoned:
            state = self.state | algorithm.idle(x, self.state, ctx)
        else:
            x, state = x_new, state | new

        metrics = (yield Evaluation(x)) if evaluate else {}
        record = Record(
            round=t + 1,
            cohort=cohort.ids.tolist(),
            weights=cohort.weights.tolist(),
            bytes_down=self._bytes_down(choice),
            bytes_up=self._bytes_up(choice),
            seconds=perf_counter() - began,
            available=choice.available,
            short=choice.available < (self.m or 1),
            probed=choice.samples + self._evaluated(cohort),
            late=timing.late,
            abandoned=abandoned,
            clock=None if self.clock is None else self.clock.now + timing.duration(),
            **metrics,
        )
        remembered = self.chooser.after(choice, *self._reports(choice, None if abandoned else visit), timing.seconds())

        def commit() -> None:
            for ids, own in [] if abandoned else visit.states:
                self.clients.write(ids, own, t)
            self.chooser.memory = remembered
            if self.clock is not None and record.clock is not None:
                self.clock.now = record.clock
            self.t, self.x, self.state = t + 1, x, state
            if len(self.history) == t:
                self.history.append(record)

        try:
            commit()
        except KeyboardInterrupt:  # all of it or nothing: doing it twice does no harm
            commit()
            raise
        return record

    def _sound(self, *vectors: Tensor) -> bool:
        """Whether the server's new model and state are finite. Stops the run if they are not, if so told."""
        finite = bool(torch.stack([v.isfinite().all() for v in vectors]).all())
        if not finite and self.on_bad_update == "stop":
            raise DivergenceError(f"The server's step in round {self.t + 1} is not finite; use smaller step sizes")
        return finite

    def _phases(self, cohort: Cohort, admit_prepared: Admit, admit: Admit) -> Steps[tuple[Vectors, Visit]]:
        """The extra phase if there is one, the broadcast, and the local work: the server's state so far, the visit."""
        algorithm, state, ctx = self.algorithm, self.state, self._context(cohort)
        if algorithm.prepares(self.t):
            prepared = yield from self._visit(cohort, ctx, {}, "prepare", admit_prepared)
            state = state | prepared.sums
        msg = algorithm.broadcast(self.x, state, ctx)
        expect(algorithm, "broadcast", msg, [name for name in algorithm.down if name != "x"])
        return state, (yield from self._visit(cohort, ctx, msg, "train", admit))

    def rehearse(self, cohort: Cohort, watch: Watch) -> None:
        """Let a cohort do its local work under somebody's eyes. The run stays as it is."""
        self.drive(self._phases(cohort, _everyone, _everyone), watch)

    def _evaluated(self, cohort: Cohort) -> int:
        """Samples whose loss the cohort computes for its reports."""
        asked = any(name != "loss" for name in self.chooser.selector.reports)
        return int(self.task.data.sizes[cohort.ids].sum()) if asked else 0

    def _timing(self, choice: Choice) -> Timing:
        reports = self.chooser.selector.reports
        traffic = Traffic(
            down=client_down(self.algorithm, self.wire),
            up=client_up(self.algorithm, self.t, len(reports), self.wire),
            wire=self.wire,
        )
        losses = self.task.data.sizes * any(name != "loss" for name in reports)
        return Timing(self.clock, choice, traffic, losses)

    def _quorum(self, cohort: Cohort) -> int:
        """How many clients a round needs to count."""
        share = 0.0 if self.system is None else self.system.quorum
        return max(1, ceil_of(share, min(self.m or len(cohort.ids), len(cohort.ids))))

    def _reports(self, choice: Choice, visit: Visit | None) -> tuple[Tensor, Vectors]:
        """Who took part, and what each reports to the selector."""
        if visit is None:
            return choice.cohort.ids[:0], {}
        names, kept = self.chooser.selector.reports, visit.kept.ids
        training = {"loss": visit.losses} if "loss" in names else {}
        return kept, training | start_reports(self.task, self.x, kept, names)

    def _bytes_down(self, choice: Choice) -> int:
        """x goes once to everyone asked or chosen, the rest of the message to those chosen."""
        again = int(torch.isin(choice.cohort.ids, choice.holding).sum())
        vectors = len(choice.holding) - again
        return len(choice.cohort.ids) * client_down(self.algorithm, self.wire) + vectors * self.wire.vector

    def _bytes_up(self, choice: Choice) -> int:
        each = client_up(self.algorithm, self.t, len(self.chooser.selector.reports), self.wire)
        asked = choice.numbers_up * self.wire.number + choice.vectors_up * self.wire.vector
        return len(choice.cohort.ids) * each + asked

    def result(self, info: dict[str, Any], interrupted: bool) -> Result:
        """Everything there is to know, on the CPU."""
        return Result(
            params=self.x.cpu(),
            history=History(list(self.history)),
            server_state={name: v.cpu() for name, v in self.state.items()},
            clients=self.clients,
            last=self.clients.last.clone(),
            selection=self.chooser.to_dict(),
            info=info,
            interrupted=interrupted,
            _model=self.task.model.module_with(self.x),
        )

    def restore(self, result: Result) -> None:
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
        lr = torch.full((), self._lr(self.t), dtype=self.task.model.dtype, device=self.task.model.device)
        return Context(t=self.t, lr=lr, N=len(self.task.data), S=len(cohort.ids), W=float(cohort.weights.sum()))

    def _visit(self, cohort: Cohort, ctx: Context, msg: Vectors, phase: Phase, admit: Admit) -> Steps[Visit]:
        """Let every client of the cohort do its work, and sum what they send in ascending order of clients."""
        reduce = self.algorithm.reduce if phase == "train" else self.algorithm.prepare_reduce
        weight = dict(zip(cohort.ids.tolist(), cohort.weights.tolist(), strict=True))
        sums = {name: torch.zeros_like(self.x) for name in reduce}
        states, kept, losses = [], [], []
        for ids in self.crew.chunks(cohort.ids):
            factors = {name: self._factors(rule, ids, weight) for name, (_, rule) in reduce.items()}
            done = yield Job(
                phase=phase,
                ids=ids,
                ctx=ctx,
                lr=torch.tensor([self._lr(self.t)], dtype=torch.float64),
                W=torch.tensor([ctx.W], dtype=torch.float64),
                x=self.x,
                msg=msg,
                own=self.clients.read(ids),
                last=self.clients.last[ids],
                factors=factors,
            )
            good = self._good(ids, done.finite, admit(ids, done.samples))
            chosen = slice(None) if bool(good.all()) else good.nonzero().flatten().to(self.x.device)
            states.append((ids[good], {name: v[chosen].clone() for name, v in done.own.items()}))
            losses.append(done.losses[good])
            kept += ids[good].tolist()
            for name, (upload, _) in reduce.items():
                if done.sums and bool(good.all()):
                    sums[name] = sums[name] + done.sums[name]
                else:
                    sums[name] = _add_rows(sums[name], factors[name][good], done.uploads[upload][chosen])
        # Where clients were left out, the others' weights are scaled up to the same sum.
        W = sum(weight[i] for i in kept)
        mean = 1 / W if W else 0.0
        scale = {"w": ctx.W * mean if len(kept) < len(weight) else 1.0, "avg": mean, "avg/K": mean, "p": 1.0}
        return Visit(
            sums={name: scale[rule] * sums[name] for name, (_, rule) in reduce.items()},
            kept=Cohort(
                torch.tensor(kept, dtype=torch.int64), torch.tensor([weight[i] for i in kept], dtype=torch.float64)
            ),
            states=states,
            losses=torch.cat(losses),
        )

    def _factors(self, rule: str, ids: Tensor, weight: Mapping[int, float]) -> Tensor:
        """(M,), float64: what each client's upload is multiplied by."""
        if rule == "p":
            return self.task.data.importance[ids]
        own = torch.tensor([weight[i] for i in ids.tolist()], dtype=torch.float64)
        return own / self.task.steps(self.task.data.sizes[ids]) if rule == "avg/K" else own

    def _good(self, ids: Tensor, finite: Tensor, admitted: Tensor) -> Tensor:
        """(M,): who of those admitted sent finite vectors. Stops the run at others if so told."""
        bad = admitted & ~finite
        if self.on_bad_update == "stop" and bool(bad.any()):
            raise DivergenceError(
                f"The update of client {int(ids[bad][0])} in round {self.t + 1} is not finite; use a smaller 'lr', "
                "'clip', or on_bad_update='drop'"
            )
        return admitted & finite


def _add_rows(total: Tensor, factors: Tensor, rows: Tensor) -> Tensor:
    """total + Σ factor · row: row after row on a CPU, so that chunks and engines round alike; at once on a GPU."""
    if rows.device.type != "cpu":
        return total + factors.to(rows.device, rows.dtype) @ rows
    for factor, row in zip(factors.tolist(), rows, strict=True):
        total = total + factor * row
    return total


Admit = Callable[[Tensor, Tensor], Tensor]
"""Whose work counts, given the clients of a chunk and how many samples' gradients each computed."""


def _everyone(ids: Tensor, samples: Tensor) -> Tensor:
    return torch.ones(len(ids), dtype=torch.bool)


def over_selecting(selector: Selector, system: System, N: int) -> Selector:
    """The selector with a larger m."""
    if system.over_select == 1:
        return selector
    m = getattr(selector, "m", None)
    if m is None or not is_dataclass(selector):
        raise ValueError(f"Cannot over-select with {type(selector).__name__} because it has no m; use over_select=1")
    more: Selector = replace(selector, m=min(N, ceil_of(system.over_select, m)))
    return more


def decayed(lr: float, decay: Decay) -> Callable[[int], float]:
    """η_t: a factor per round, or factors that apply from round t ≥ key on."""
    if isinstance(decay, Mapping):
        factors = {int(key): float(factor) for key, factor in decay.items()}

        def stepped(t: int) -> float:
            value = lr
            for key, factor in factors.items():
                value *= factor if t >= key else 1.0
            return value

        return stepped

    def each_round(t: int) -> float:
        with np.errstate(over="ignore", under="ignore"):
            return lr * float(np.float64(decay) ** t)

    return each_round


def check_declaration(algorithm: Algorithm) -> None:
    """Refuse an algorithm whose declarations do not fit each other."""
    owner = type(algorithm).__name__
    for reduce, up in ((algorithm.reduce, algorithm.up), (algorithm.prepare_reduce, algorithm.prepare_up)):
        for name, (upload, rule) in reduce.items():
            if upload not in up:
                raise ValueError(f"{owner}: the sum '{name}' must be of one of {', '.join(up)}, got {upload!r}")
            if rule not in RULES:
                raise ValueError(f"{owner}: the rule of sum '{name}' must be one of {', '.join(RULES)}, got {rule!r}")
    for name in ("server_state", "client_state", "down", "up", "prepare_up"):
        if isinstance(getattr(algorithm, name), str):
            raise ValueError(f"{owner}: '{name}' must be a tuple of names, got {getattr(algorithm, name)!r}")
    known = {name for name, _ in _shapes(algorithm.server_state, 0)}
    if type(algorithm).broadcast is Algorithm.broadcast and not known >= set(algorithm.down) - {"x"}:
        missing = ", ".join(sorted(set(algorithm.down) - {"x"} - known))
        raise ValueError(f"{owner}: 'down' must name server state unless 'broadcast' makes it, got {missing}")
    for name in algorithm.prepare_reduce:
        if name not in known:
            raise ValueError(f"{owner}: 'prepare_reduce' must name server state, got {name!r}")


def _shapes(names: Any, size: int) -> list[tuple[str, tuple[int, ...]]]:
    return [(n, (size,)) if isinstance(n, str) else (n[0], (n[1], size)) for n in names]
