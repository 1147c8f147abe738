"""The clients of a Flower deployment as a backend of the engine."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from flwr.app import RecordDict
from torch import Tensor

from ..algorithm import Vectors
from ..engine.aggregation import (
    Division,
    PartialUpdate,
    all_positions,
    block_width,
    total,
    upload_factors,
)
from ..engine.backend import CohortUpdate, PhaseInput, StepObserver, UnresponsiveClients, UpdatePolicy
from ..engine.client_store import ClientStore
from ..engine.cohort import Cohort
from ..engine.declaration import Declaration
from ..engine.job import JobResult
from ..engine.reports import AT_START, sent_apart, update_norm
from ..engine.task import Task
from ..engine.work_queue import read_values
from ..evaluation.measurable import measurable
from ..evaluation.metrics import Evaluator
from ..run.backends import BackendSetting
from . import wire
from .reply_collector import Replies, ReplyCollector


class ReplyPolicy(NamedTuple):
    """The conditions that replies must meet."""

    run: str
    deadline: float
    """Seconds for each request."""
    norm_bound: float | None
    reports: Sequence[str]
    """The reports that the selector declares."""
    train_metrics: bool


class Reply(NamedTuple):
    """The content of a client's reply, on the CPU."""

    vectors: Vectors
    numbers: Vectors


class _Request(NamedTuple):
    """A request to several clients, which receive x with it if they do not have it."""

    kind: str
    headers: Mapping[int, Mapping[str, Any]]
    """By client."""
    x: Tensor
    msg: Vectors
    vectors: wire.Shapes
    """The names and shapes of the tensors that a reply must have."""
    numbers: Sequence[str]
    dtype: torch.dtype
    """The dtype of the numbers."""
    sends_x: bool = True
    """Whether clients receive x with it."""
    counted: bool = True
    """Whether the bytes are part of the run's communication."""


class FlowerBackend:
    """Asks the clients of a deployment to do the clients' part; see `fedmos.engine.backend.Backend`.

    Clients store their own state. A client that does not answer, or whose reply is refused, is left out of the round.
    """

    def __init__(self, given: BackendSetting, collector: ReplyCollector, reply_policy: ReplyPolicy) -> None:
        self._task, self._plan = given.task, given.plan
        self._declaration = Declaration(given.algorithm, given.task.model.layers)
        self._collector, self._reply_policy = collector, reply_policy
        self.clients = ClientStore({}, len(given.task.data))
        self.clock = None
        self.policy = UpdatePolicy(check_each=True, drop=True)
        self.evaluator = _DeploymentEvaluator(self._task, self._train_metrics if reply_policy.train_metrics else None)
        self._round = -1
        self._has_model: set[int] = set()
        """Clients that have received this round's x."""
        self._answers: dict[Any, dict[int, Tensor]] = {}
        """The answers of clients to the selector's probes in this round."""
        self._reports: dict[int, Vectors] = {}
        self._late: set[int] = set()

    async def run_phase(self, cohort: Cohort, given: PhaseInput, observer: StepObserver | None = None) -> CohortUpdate:
        if observer is not None:
            raise ValueError("Cannot observe local steps because clients are remote")
        self._enter_round(given.ctx.t)
        S = len(cohort.ids)
        width = block_width(S, self._plan, given.x.device, 1)
        division = Division(S, width, [0] * -(S // -width), all_positions(S), ())
        partial = PartialUpdate(division, self._declaration, given.phase, given.x, reports=len(given.reports))
        result = self._train(cohort, given)
        finite = result.report[0].cpu().isfinite()
        factors = upload_factors(self._task, partial.rules, cohort.ids, cohort.weights)
        partial.add(all_positions(S), factors, result, all_positions(S), finite)
        kept, report, W = cohort, partial.report(), None
        if not bool(finite.all()):
            kept, W = Cohort.of(cohort.ids[finite], cohort.weights[finite], self._task.data), given.ctx.W
            report = report[:, finite.nonzero().flatten().to(report.device)]
        sums = total(partial.sums(), partial.rules, kept.weights, W)
        sums |= {name: v[finite.to(v.device)] for name, v in partial.all_rows().items()}
        return CohortUpdate(sums=sums, kept=kept, states=(kept.ids, {}), report=report)

    def _train(self, cohort: Cohort, given: PhaseInput) -> JobResult:
        """Ask the clients for their uploads; those that fail are marked as non-finite in the report."""
        prepare = given.phase == "prepare"
        kind, shapes = wire.PREPARE if prepare else wire.TRAIN, self._declaration.up(given.phase)
        declared = self._reply_policy.reports
        asked = [*(n for n in given.reports if n in declared), *(n for n in declared if n in AT_START and not prepare)]
        reports = sent_apart(asked, self._declaration)
        headers = self._headers(cohort, given, reports)
        dtype = self._task.model.dtype
        sends_x = "x" in self._declaration.down
        replies = self._ask(_Request(kind, headers, given.x, given.msg, shapes, reports, dtype, sends_x=sends_x))
        self._late |= replies.late
        self._reports |= {i: reply.numbers for i, reply in replies.accepted.items()}
        position = {i: row for row, i in enumerate(cohort.ids.tolist())}
        report = torch.full((1 + len(given.reports), len(cohort.ids)), torch.nan, dtype=torch.float64)
        uploads = {name: torch.zeros((len(cohort.ids), *shape), dtype=given.x.dtype) for name, shape in shapes.items()}
        for i, reply in replies.accepted.items():
            report[0, position[i]] = 0  # the reply is validated: all its values are finite
            for row, name in enumerate(given.reports, start=1):
                report[row, position[i]] = _reported(name, reply)
            for name, v in reply.vectors.items():
                uploads[name][position[i]] = v
        device = given.x.device
        return JobResult(
            uploads={name: v.to(device) for name, v in uploads.items()},
            own={},
            sums={},
            report=report.to(device),
            samples=lambda: torch.zeros_like(cohort.ids),
        )

    def _headers(self, cohort: Cohort, given: PhaseInput, reports: Sequence[str]) -> dict[int, dict[str, Any]]:
        """Return the header of each client's request."""
        last = self.clients.last[cohort.ids].tolist()
        return {
            i: {
                "lr": given.lr,
                "N": given.ctx.N,
                "S": given.ctx.S,
                "W": given.ctx.W,
                "p": float(self._task.data.importance[i]),
                "last": t,
                "width": cohort.max_samples,
                "reports": ",".join(reports),
                "keep": given.phase == "prepare",
            }
            for i, t in zip(cohort.ids.tolist(), last, strict=True)
        }

    async def evaluate(self, x: Tensor) -> Tensor:
        return self.evaluator(x[None])[0]

    async def read(self, values: Sequence[Tensor], now: bool = False) -> list[Tensor]:
        return read_values([values])[0]

    def losses(self, x: Tensor, t: int, ids: Tensor, batch: bool) -> Tensor:
        headers = {i: {"batch": batch, "keep": True} for i in ids.tolist()}
        request = _Request(wire.LOSSES, headers, x, {}, {}, ["loss"], self._task.model.dtype)
        losses = self._probe(request, t, ids, (wire.LOSSES, batch), lambda reply: reply.numbers["loss"][0])
        return torch.stack(losses).to(torch.float64)

    def gradients(self, x: Tensor, t: int, ids: Tensor) -> Tensor:
        headers = {i: {"keep": True} for i in ids.tolist()}
        shapes = {"gradient": (self._task.model.size,)}
        request = _Request(wire.GRADIENTS, headers, x, {}, shapes, (), self._task.model.dtype)
        return torch.stack(self._probe(request, t, ids, wire.GRADIENTS, lambda reply: reply.vectors["gradient"])).to(x)

    def reports(self, x: Tensor, ids: Tensor, names: Sequence[str]) -> Vectors:
        """Return the reports that came with the updates."""
        wanted = [name for name in names if name in AT_START]
        found = {name: [self._reports[i][name][0] for i in ids.tolist()] for name in wanted}
        return {name: torch.stack(v).to(torch.float64) for name, v in found.items() if v}

    def traffic(self, declared: tuple[int, int]) -> tuple[int, int]:
        """Return the measured bytes of vectors and numbers."""
        return self._collector.take_traffic()

    def late(self) -> list[int]:
        return sorted(self._late)

    def _train_metrics(self, x: Tensor, names: list[str]) -> Tensor:
        """Return Σ p_i · metric_i over the clients that answer, with p_i scaled to sum to one."""
        headers: dict[int, dict[str, Any]] = {i: {} for i in range(len(self._task.data))}
        replies = self._ask(_Request(wire.EVALUATE, headers, x, {}, {}, names, torch.float64, counted=False))
        if not replies.accepted:
            return torch.full((len(names),), torch.nan, dtype=torch.float64)
        ids = sorted(replies.accepted)
        p = self._task.data.importance[ids]
        table = torch.stack([torch.cat([replies.accepted[i].numbers[name] for name in names]) for i in ids])
        return (p / p.sum()) @ table

    def _enter_round(self, t: int) -> None:
        if t != self._round:
            self._round = t
            self._has_model, self._answers, self._reports, self._late = set(), {}, {}, set()

    def _probe(self, request: _Request, t: int, ids: Tensor, key: Any, part: Callable[[Reply], Tensor]) -> list[Tensor]:
        """Return each client's answer. A client is asked once per round, even if the selector starts again."""
        self._enter_round(t)
        known = self._answers.setdefault(key, {})
        headers = {i: header for i, header in request.headers.items() if i not in known}
        replies = self._ask(request._replace(headers=headers))
        known |= {i: part(reply) for i, reply in replies.accepted.items()}
        if replies.refused or replies.late:
            raise UnresponsiveClients(torch.tensor(sorted(replies.refused | replies.late)))
        return [known[i] for i in ids.tolist()]

    def _ask(self, request: _Request) -> Replies[Reply]:
        """Send a request and collect the validated replies."""
        policy, t, x, msg = self._reply_policy, self._round, request.x, request.msg
        has_model = self._has_model if request.counted else set()
        rest, whole = wire.pack(msg), wire.pack(({"x": x} if request.sends_x else {}) | msg)
        messages = {
            i: wire.compose(
                {"run": policy.run, "round": t, "client": i} | dict(header), rest if i in has_model else whole
            )
            for i, header in request.headers.items()
        }

        def validate_reply(client: int, content: RecordDict) -> Reply:
            return self._validate_reply(request, client, content)

        replies = self._collector.collect(request.kind, messages, validate_reply, policy.deadline, request.counted)
        if request.counted and any(header.get("keep") for header in request.headers.values()):
            self._has_model |= set(replies.accepted)
        return replies

    def _validate_reply(self, request: _Request, client: int, content: RecordDict) -> Reply:
        """Check a reply against the request; raises `wire.RefusedError` if it cannot be used."""
        model, policy = self._task.model, self._reply_policy
        header = wire.header_up(request.kind, content)
        samples = int(self._task.data.sizes[client])
        wire.check_equal(header, run=policy.run, round=self._round, client=client, samples=samples)
        reply = Reply(
            wire.vectors_in(content, request.vectors, model.dtype),
            wire.numbers_in(content, dict.fromkeys(request.numbers, (1,)), request.dtype),
        )
        wire.check_finite({name: v for name, v in reply.vectors.items() if v.numel() == model.size}, policy.norm_bound)
        wire.check_finite(reply.vectors | reply.numbers)
        return reply


def _reported(name: str, reply: Reply) -> float:
    """Return a report: a number of the reply, an upload, or the norm of the update, which the server can take."""
    if name == "update_norm" and name not in reply.numbers:
        return float(update_norm({key: v[None] for key, v in reply.vectors.items()}))
    return float(reply.numbers[name] if name in reply.numbers else reply.vectors[name])


class _DeploymentEvaluator(Evaluator):
    """Evaluates on the server's test set and, with `ask`, on the clients' training data."""

    def __init__(self, task: Task, ask: Callable[[Tensor, list[str]], Tensor] | None) -> None:
        super().__init__([task], train=False)
        self._ask = ask
        self._asked = [] if ask is None else [name for name in measurable(task) if name.startswith("train_")]
        self.names = self._asked + self.names

    def client_accuracy(self, x: Tensor) -> None:
        """Return None: the server cannot read the clients' data."""

    def __call__(self, xs: Tensor) -> Tensor:
        tested = super().__call__(xs)
        if self._ask is None:
            return tested
        trained = torch.stack([self._ask(x, self._asked).to(tested.device) for x in xs])
        return torch.cat([trained, tested], dim=1)
