"""What a round is: selection, broadcast, local work, aggregation, server step."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from ..algorithm import RULES, Algorithm, ClientContext, Context, Reduce, Vectors
from ..cost import bytes_down, bytes_up
from ..history import History, Record
from ..metrics import Evaluator
from ..result import Result
from ..selection.selector import Selector, View
from .clients import ClientStore
from .gradients import LocalGradient
from .local import local_work
from .task import Task

Decay = float | Mapping[int, float]


class DivergenceError(RuntimeError):
    """A client's update was not finite, and the run was told to stop at that."""

    result: Result
    """What the run had reached before."""


class Cohort(NamedTuple):
    """Distinct clients in ascending order, whatever order they were drawn in."""

    ids: Tensor
    weights: Tensor
    """float64: each client's summed weight."""


class Visit(NamedTuple):
    """What came back from a cohort: the sums, and per chunk the clients kept and their new state."""

    sums: Vectors
    states: list[tuple[Tensor, Vectors]]
    kept: Cohort


@dataclass(kw_only=True)
class Simulation:
    """A run in progress. A round changes it as a whole or, if interrupted, not at all."""

    task: Task
    algorithm: Algorithm
    selector: Selector
    engine: type[LocalGradient]
    lr_decay: Decay = 1.0
    on_bad_update: Literal["stop", "drop"] = "stop"
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
        self._view = View(seed=self.task.seed, round=0, p=data.importance, n=data.sizes)
        self._lr = decayed(self.algorithm.lr, self.lr_decay)

    @torch.no_grad()
    def round(self, evaluate: bool) -> Record:
        """Play one round, and evaluate the new model."""
        began, t, x, algorithm = perf_counter(), self.t, self.x, self.algorithm
        self.task.model.module.train()

        cohort = self.draw()
        ctx = self._context(cohort)
        state = self.state
        if algorithm.prepares(t):
            state = state | self._visit(cohort, ctx, {}, algorithm.prepare_reduce, self._prepare).sums
        msg = algorithm.broadcast(x, state, ctx)
        _expect(algorithm, "broadcast", msg, [name for name in algorithm.down if name != "x"])
        visit = self._visit(cohort, ctx, msg, algorithm.reduce, self._work)
        if len(visit.kept.ids):
            x, new = algorithm.server(x, state, visit.sums, self._context(visit.kept))
            _expect(algorithm, "server", new, self.state, some=True)
            state = state | new

        seconds = perf_counter() - began
        wire = (t, len(cohort.ids), self.task.model.size, self.task.model.dtype)
        record = Record(
            round=t + 1,
            cohort=cohort.ids.tolist(),
            weights=cohort.weights.tolist(),
            bytes_down=bytes_down(algorithm, *wire),
            bytes_up=bytes_up(algorithm, *wire),
            seconds=seconds,
            **(self.evaluator(x) if evaluate else {}),
        )
        for ids, own in visit.states:
            self.clients.write(ids, own, t)
        self.t, self.x, self.state = t + 1, x, state
        self.history.append(record)
        return record

    def metrics(self) -> list[str]:
        """The metrics this federation can measure."""
        with torch.no_grad():
            return list(self.evaluator(self.x))

    def result(self, info: dict[str, Any], interrupted: bool) -> Result:
        """Everything there is to know, on the CPU."""
        return Result(
            params=self.x.cpu(),
            history=History(list(self.history)),
            server_state={name: v.cpu() for name, v in self.state.items()},
            clients=self.clients,
            last=self.clients.last.clone(),
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

    def draw(self) -> Cohort:
        """This round's cohort; a client drawn more than once trains once, with its weights summed."""
        self._view.round = self.t
        drawn, weights = self.selector.select(self._view)
        ids, place = torch.as_tensor(drawn).unique(return_inverse=True)
        weights = torch.as_tensor(weights, dtype=torch.float64)
        if len(ids) == 0:
            raise ValueError(f"{type(self.selector).__name__}: 'select' must choose at least one client, got none")
        return Cohort(ids, torch.zeros(len(ids), dtype=torch.float64).index_add(0, place, weights))

    def _context(self, cohort: Cohort) -> Context:
        lr = torch.tensor(self._lr(self.t), dtype=self.task.model.dtype, device=self.task.model.device)
        return Context(t=self.t, lr=lr, N=len(self.task.data), S=len(cohort.ids), W=float(cohort.weights.sum()))

    def _visit(self, cohort: Cohort, ctx: Context, msg: Vectors, reduce: Reduce, work: Work) -> Visit:
        """Let every client of the cohort do its work, and sum what they send in ascending order of clients."""
        weight = dict(zip(cohort.ids.tolist(), cohort.weights.tolist(), strict=True))
        sums = {name: torch.zeros_like(self.x) for name in reduce}
        states, kept = [], []
        for ids in self.engine.chunks(cohort.ids):
            grad = self.engine(self.task, ids, self.t)
            c = self._client_context(ctx, msg, ids, grad)
            uploads, own = work(c, grad)
            uploads, own = ({n: grad.unrows(v, len(ids)) for n, v in vs.items()} for vs in (uploads, own))
            good = self._finite(ids, uploads | own)
            states.append((ids[good], {name: v[good.to(v.device)] for name, v in own.items()}))
            for row, i in enumerate(ids.tolist()):
                if not good[row]:
                    continue
                kept.append(i)
                K, p = float(grad.batches.K[row]), float(self.task.data.importance[i])
                for name, (upload, rule) in reduce.items():
                    factor = {"w": weight[i], "avg": weight[i], "avg/K": weight[i] / K, "p": p}[rule]
                    sums[name] = sums[name] + factor * uploads[upload][row]
        chosen = torch.tensor(kept, dtype=torch.int64)
        W = sum(weight[i] for i in kept)
        scale = {"w": ctx.W / W if W and len(kept) < len(weight) else 1.0, "avg": 1 / W if W else 0.0, "p": 1.0}
        scale["avg/K"] = scale["avg"]
        sums = {name: scale[rule] * sums[name] for name, (_, rule) in reduce.items()}
        return Visit(sums, states, Cohort(chosen, torch.tensor([weight[i] for i in kept], dtype=torch.float64)))

    def _client_context(self, ctx: Context, msg: Vectors, ids: Tensor, grad: LocalGradient) -> ClientContext:
        def column(v: Tensor) -> Tensor:
            rows: Tensor = grad.rows(v[:, None].to(self.x))
            return rows

        return ClientContext(
            **vars(ctx),
            x=self.x,
            msg=msg,
            own={name: grad.rows(v) for name, v in self.clients.read(ids).items()},
            K=column(grad.batches.K),
            p=column(self.task.data.importance[ids]),
            last=column(self.clients.last[ids]),
        )

    def _work(self, c: ClientContext, grad: LocalGradient) -> tuple[Vectors, Vectors]:
        uploads, own = local_work(self.algorithm, c, grad)
        _expect(self.algorithm, "finish", uploads, self.algorithm.up)
        _expect(self.algorithm, "finish", own, self.algorithm.client_state, some=True)
        return uploads, own

    def _prepare(self, c: ClientContext, grad: LocalGradient) -> tuple[Vectors, Vectors]:
        uploads = self.algorithm.prepare(c, grad)
        _expect(self.algorithm, "prepare", uploads, self.algorithm.prepare_up)
        return uploads, {}

    def _finite(self, ids: Tensor, vectors: Vectors) -> Tensor:
        """(M,), on the CPU: whose vectors are finite. Stops the run at others if so told."""
        good = torch.ones(len(ids), dtype=torch.bool)
        for v in vectors.values():
            good &= v.isfinite().all(dim=1).cpu()
        if self.on_bad_update == "stop" and not bool(good.all()):
            client = int(ids[~good][0])
            raise DivergenceError(
                f"The update of client {client} in round {self.t + 1} is not finite; use a smaller 'lr', 'clip', or "
                "on_bad_update='drop'"
            )
        return good


Work = Callable[[ClientContext, LocalGradient], tuple[Vectors, Vectors]]


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
    return lambda t: lr * decay**t


def check_declaration(algorithm: Algorithm) -> None:
    """Refuse an algorithm whose declarations do not fit each other."""
    owner = type(algorithm).__name__
    for reduce, up in ((algorithm.reduce, algorithm.up), (algorithm.prepare_reduce, algorithm.prepare_up)):
        for name, (upload, rule) in reduce.items():
            if upload not in up:
                raise ValueError(f"{owner}: the sum '{name}' must be of one of {', '.join(up)}, got {upload!r}")
            if rule not in RULES:
                raise ValueError(f"{owner}: the rule of sum '{name}' must be one of {', '.join(RULES)}, got {rule!r}")
    known = {name for name, _ in _shapes(algorithm.server_state, 0)}
    for name in algorithm.prepare_reduce:
        if name not in known:
            raise ValueError(f"{owner}: 'prepare_reduce' must name server state, got {name!r}")


def _shapes(names: Any, size: int) -> list[tuple[str, tuple[int, ...]]]:
    return [(n, (size,)) if isinstance(n, str) else (n[0], (n[1], size)) for n in names]


def _expect(algorithm: Algorithm, method: str, got: Vectors, names: Any, some: bool = False) -> None:
    """Hold a method to the declaration: exactly these names, or some of them."""
    wrong = set(got) - set(names) if some else set(got) ^ set(names)
    if wrong:
        raise ValueError(
            f"{type(algorithm).__name__}: '{method}' must return {'some of ' if some else ''}"
            f"{', '.join(names) or 'nothing'}, got {', '.join(got) or 'nothing'}"
        )
