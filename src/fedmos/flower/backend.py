"""The clients of a Flower deployment as a backend of the engine."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from flwr.app import ArrayRecord, RecordDict
from torch import Tensor

from ..algorithm import Vectors
from ..codecs.compose import HELD
from ..core.personal_parameters import PERSONAL
from ..core.statistics_layout import AFFINE, STATISTICS
from ..engine.aggregation import (
    Division,
    PartialUpdate,
    add_blocks,
    all_positions,
    block_width,
    normalise,
    upload_factors,
)
from ..engine.backend import CohortUpdate, PhaseInput, StepObserver, UnresponsiveClients, UpdatePolicy
from ..engine.client_store import ClientStore
from ..engine.cohort import Cohort
from ..engine.declaration import Declaration
from ..engine.job import JobResult
from ..engine.reports import AT_START, extra_reports, update_norm
from ..engine.secure_sums import secure_rule
from ..engine.work_queue import read_values
from ..run.backends import BackendSetting
from . import wire
from .coded_messages import CodedMessages, HeldVectors
from .evaluator import DeploymentEvaluator
from .norm_bound import AdaptiveNormBound
from .private_uploads import UploadClipping
from .reply_collector import Replies, ReplyCollector
from .requests import Reply, ReplyPolicy, Request


class FlowerBackend:
    """Asks the clients of a deployment to do the clients' part; see `fedmos.engine.backend.Backend`.

    Clients store their own state. A client that does not answer, or whose reply is refused, is left out of the round.
    """

    def __init__(self, given: BackendSetting, collector: ReplyCollector, reply_policy: ReplyPolicy) -> None:
        self._task, self._plan = given.task, given.plan
        self._declaration = Declaration(given.algorithm, given.task.model.layers)
        self._collector, self._reply_policy = collector, reply_policy
        self._clipping = UploadClipping(given.algorithm)
        if reply_policy.train_metrics or any(name in AT_START for name in reply_policy.reports):
            check_no_client_models(self._declaration)
        self._coded = CodedMessages(given.algorithm, given.task.model, given.task.seed)
        held = {HELD + name: torch.zeros_like(given.task.model.initial()) for name in self._coded.down}
        compares = not self._clipping.private and secure_rule(given.algorithm) is None
        factor = reply_policy.norm_factor if compares else None
        self._bound = AdaptiveNormBound(self._declaration, self._task.model.size, factor, collector.registry.describe)
        self.clients = ClientStore(held | self._bound.initial, len(given.task.data), given.scratch)
        self._held = HeldVectors(self._coded, self.clients)
        self.clock = None
        self.policy = UpdatePolicy(check_each=True, drop=True)
        self.evaluator = DeploymentEvaluator(self._task, self._train_metrics if reply_policy.train_metrics else None)
        self._round = -1
        self._has_model: set[int] = set()
        """Clients that have received this round's x."""
        self._has_difference: set[int] = set()
        """Clients that have received x as the difference to what they hold, in the extra phase of this round."""
        self._answers: dict[Any, dict[int, Tensor]] = {}
        """The answers of clients to the selector's probes in this round."""
        self._reports: dict[int, Vectors] = {}
        self._late: set[int] = set()

    async def run_phase(self, cohort: Cohort, given: PhaseInput, observer: StepObserver | None = None) -> CohortUpdate:
        if observer is not None:
            raise ValueError("Cannot observe local steps because clients are remote")
        self._enter_round(given.ctx.t)
        thin = given.thin
        shapes = {} if thin is not None else self._declaration.up(given.phase)
        replies = self._train(cohort, given, shapes)
        received = self._bound.accepted(given, {i: reply.vectors for i, reply in replies.items()}, self.clients)
        arrived = self._subset(cohort, received)
        kept, W = arrived, None if len(arrived.ids) == len(cohort.ids) else given.ctx.W
        if thin is not None:
            reported = self._report(arrived, given, received)
            asked = thin(arrived.scaled(given.ctx.W), dict(zip(given.reports, reported[1:], strict=True)))
            received = self._bound.accepted(given, self._uploads(asked, given), self.clients)
            kept = self._subset(asked, received)
            W = None if len(kept.ids) == len(asked.ids) else asked.W
        partial = self._add(cohort, given, kept, received)
        rows, uploads = partial.all_rows(), torch.isin(cohort.ids, kept.ids)
        updates = partial.take_updates(rows, uploads)
        sums = normalise(add_blocks(partial.sums()), partial, kept.weights, W)
        return CohortUpdate(
            sums=sums | {name: v[uploads.to(v.device)] for name, v in rows.items()},
            kept=kept if W is None else kept.scaled(W),
            arrived=arrived,
            states=(kept.ids, self._states(kept.ids) if given.phase == "train" else {}),
            report=self._report(arrived, given, received).to(given.x.device),
            updates=updates,
        )

    def _states(self, ids: Tensor) -> Vectors:
        """Return what the server stores of clients after a round."""
        return self._held.states(ids) | self._bound.states(ids, self.clients)

    def _subset(self, cohort: Cohort, found: Mapping[int, Any]) -> Cohort:
        """Return the clients of the cohort that are in `found`, with their weights."""
        here = torch.tensor([i in found for i in cohort.ids.tolist()], dtype=torch.bool)
        return cohort if bool(here.all()) else Cohort.of(cohort.ids[here], cohort.weights[here], self._task.data)

    def _train(self, cohort: Cohort, given: PhaseInput, shapes: wire.Shapes) -> dict[int, Reply]:
        """Have the clients train; returns the replies with their reports and, if they have shapes, their uploads."""
        kind = wire.PREPARE if given.phase == "prepare" else wire.REPORT if given.thin is not None else wire.TRAIN
        return self._collect_training(self._training_request(cohort, given, kind, shapes))

    def _training_request(self, cohort: Cohort, given: PhaseInput, kind: str, shapes: wire.Shapes) -> Request:
        """Return the request to train, or to do the work of the extra phase."""
        declared = self._reply_policy.reports if given.phase == "train" else ()
        asked = [*(n for n in given.reports if n in declared), *(n for n in declared if n in AT_START)]
        reports = asked if given.thin is not None else extra_reports(asked, self._declaration)
        headers = self._headers(cohort, given, reports)
        dtype, sends_x = self._task.model.dtype, "x" in self._declaration.down
        return Request(kind, headers, given.x, given.msg, shapes, reports, dtype, sends_x=sends_x, phase=given.phase)

    def _collect_training(self, request: Request) -> dict[int, Reply]:
        """Return the replies to a request to train, and note who is late and what clients report."""
        replies = self._ask(request)
        self._late |= replies.late
        self._reports |= {i: reply.numbers for i, reply in replies.accepted.items()}
        return replies.accepted

    def _report(self, arrived: Cohort, given: PhaseInput, received: Mapping[int, Vectors]) -> Tensor:
        """Return the reports of the clients that replied, (1 + reports, M). Values of replies are finite."""
        ids = arrived.ids.tolist()
        rows = [[_reported(name, self._reports[i], received.get(i, {})) for i in ids] for name in given.reports]
        return torch.tensor([[0.0] * len(ids), *rows], dtype=torch.float64)

    def _uploads(self, cohort: Cohort, given: PhaseInput) -> dict[int, Vectors]:
        """Ask clients that have reported for their uploads. Numbers that they have reported are not sent again."""
        shapes = self._declaration.up("train")
        sent = [name for name in given.reports if name in shapes]
        headers = {i: {"reports": ",".join(sent)} for i in cohort.ids.tolist()}
        rest = {name: shape for name, shape in shapes.items() if name not in sent}
        dtype = self._task.model.dtype
        request = Request(wire.UPLOAD, headers, given.x, {}, rest, (), dtype, sends_x=False, phase="train")
        replies = self._ask(request) if headers else Replies({}, set(), set())
        self._late |= replies.late
        known = {i: {name: self._reports[i][name][0] for name in sent} for i in replies.accepted}
        return {i: reply.vectors | known[i] for i, reply in replies.accepted.items()}

    def _add(self, cohort: Cohort, given: PhaseInput, kept: Cohort, received: Mapping[int, Vectors]) -> PartialUpdate:
        """Add the uploads of the kept clients."""
        S, device = len(cohort.ids), given.x.device
        width = block_width(S, self._plan, device, 1)
        division = Division(S, width, [0] * -(S // -width), all_positions(S), ())
        partial = PartialUpdate(division, self._declaration, given.phase, given.x, updates=given.updates)
        shapes = self._declaration.up(given.phase)
        uploads = {name: torch.zeros((S, *shape), dtype=given.x.dtype) for name, shape in shapes.items()}
        weights, here = torch.zeros_like(cohort.weights), torch.isin(cohort.ids, kept.ids)
        weights[here] = kept.weights
        for row, i in enumerate(cohort.ids.tolist()):
            for name, v in received[i].items() if bool(here[row]) else ():
                uploads[name][row] = v
        result = JobResult(
            uploads={name: v.to(device) for name, v in uploads.items()},
            own={},
            sums={},
            report=torch.empty(0),
            samples=lambda: torch.zeros_like(cohort.ids),
        )
        factors = upload_factors(self._task, partial.rules, cohort.ids, weights)
        partial.add(all_positions(S), factors, result, here)
        return partial

    def _headers(self, cohort: Cohort, given: PhaseInput, reports: Sequence[str]) -> dict[int, dict[str, Any]]:
        """Return the header of each client's request."""
        last = self.clients.last[cohort.ids].tolist()
        # Importances and the largest number of samples would tell a client of a private run about the others' data.
        public = not self._clipping.private
        return {
            i: {
                "lr": given.lr,
                "N": given.ctx.N,
                "S": given.ctx.S,
                "W": given.ctx.W,
                "p": float(self._task.data.importance[i]) if public else 1 / given.ctx.N,
                "last": t,
                "width": cohort.max_samples if public else 0,
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
        check_no_client_models(self._declaration)
        headers = {i: {"batch": batch, "keep": True} for i in ids.tolist()}
        request = Request(wire.LOSSES, headers, x, {}, {}, ["loss"], self._task.model.dtype)
        losses = self._probe(request, t, ids, (wire.LOSSES, batch), lambda reply: reply.numbers["loss"][0])
        return torch.stack(losses).to(torch.float64)

    def gradients(self, x: Tensor, t: int, ids: Tensor) -> Tensor:
        if AFFINE in self._declaration.client_state or PERSONAL in self._declaration.client_state:
            check_no_client_models(self._declaration)
        headers = {i: {"keep": True} for i in ids.tolist()}
        shapes = {"gradient": (self._task.model.size,)}
        request = Request(wire.GRADIENTS, headers, x, {}, shapes, (), self._task.model.dtype)
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
        """Return the clients that were late in the current round, and forget them: a round may have no clients."""
        late, self._late = sorted(self._late), set()
        return late

    def _train_metrics(self, x: Tensor, names: list[str]) -> Tensor:
        """Return Σ p_i · metric_i over the clients that answer, with p_i scaled to sum to one."""
        headers: dict[int, dict[str, Any]] = {i: {} for i in range(len(self._task.data))}
        replies = self._ask(Request(wire.EVALUATE, headers, x, {}, {}, names, torch.float64, counted=False))
        if not replies.accepted:
            return torch.full((len(names),), torch.nan, dtype=torch.float64)
        ids = sorted(replies.accepted)
        p = self._task.data.importance[ids]
        table = torch.stack([torch.cat([replies.accepted[i].numbers[name] for name in names]) for i in ids])
        return (p / p.sum()) @ table

    def _enter_round(self, t: int) -> None:
        if t != self._round:
            self._round = t
            self._has_model, self._has_difference = set(), set()
            self._answers, self._reports, self._late = {}, {}, set()
            self._held.enter_round()
            self._bound.enter_round()

    def _probe(self, request: Request, t: int, ids: Tensor, key: Any, part: Callable[[Reply], Tensor]) -> list[Tensor]:
        """Return each client's answer. A client is asked once per round, even if the selector starts again."""
        self._enter_round(t)
        known = self._answers.setdefault(key, {})
        headers = {i: header for i, header in request.headers.items() if i not in known}
        replies = self._ask(request._replace(headers=headers))
        known |= {i: part(reply) for i, reply in replies.accepted.items()}
        if replies.refused or replies.late:
            raise UnresponsiveClients(torch.tensor(sorted(replies.refused | replies.late)))
        return [known[i] for i in ids.tolist()]

    def _ask(self, request: Request) -> Replies[Reply]:
        """Send a request and collect the validated replies."""
        policy, t = self._reply_policy, self._round
        has_model = self._holding_x(request)
        vectors = self._packed(request, has_model)
        messages = {
            i: wire.compose({"run": policy.run, "round": t, "client": i} | dict(header), vectors(i))
            for i, header in request.headers.items()
        }

        def validate_reply(client: int, content: RecordDict) -> Reply:
            return self._validate_reply(request, client, content)

        replies = self._collector.collect(request.kind, messages, validate_reply, policy.deadline, request.counted)
        if request.counted and any(header.get("keep") for header in request.headers.values()):
            has_model |= set(replies.accepted)
        return replies

    def _holding_x(self, request: Request) -> set[int]:
        """Return the clients to which x is not sent again; the set is extended as clients receive it."""
        if not request.counted:
            return set()
        return self._has_difference if request.phase is not None and "x" in self._coded.down else self._has_model

    def _packed(self, request: Request, has_model: set[int]) -> Callable[[int], ArrayRecord]:
        """Return what gives the vectors of the message to a client."""
        rest, whole = request.msg, ({"x": request.x} if request.sends_x else {}) | request.msg
        if request.phase is not None and self._coded.down:
            compress = self._reply_policy.compress
            return lambda i: wire.pack(self._held.message(rest if i in has_model else whole, self._round, i), compress)
        packed_rest, packed_whole = wire.pack(rest), wire.pack(whole)
        return lambda i: packed_rest if i in has_model else packed_whole

    def _validate_reply(self, request: Request, client: int, content: RecordDict) -> Reply:
        """Check a reply against the request; raises `wire.RefusedError` if it cannot be used."""
        model, policy = self._task.model, self._reply_policy
        header = wire.header_up(request.kind, content)
        samples = int(self._task.data.sizes[client])
        wire.check_equal(header, run=policy.run, round=self._round, client=client, samples=samples)
        codecs = {} if request.phase is None else self._coded.up
        shapes = self._coded.shapes(request.vectors, codecs)
        vectors = wire.vectors_in(content, shapes, model.dtype, request.raw.union(codecs))
        reply = Reply(
            vectors if request.phase is None else self._coded.uploads(vectors, self._round, client, request.phase),
            wire.numbers_in(content, dict.fromkeys(request.numbers, (1,)), request.dtype),
        )
        wire.check_finite({name: v for name, v in reply.vectors.items() if v.numel() == model.size}, policy.norm_bound)
        wire.check_finite(reply.vectors | reply.numbers)
        return reply if request.raw else self._clipping.applied(request, reply)


def check_no_client_models(declaration: Declaration) -> None:
    """Refuse to ask clients for values at x that depend on the part of the model that they keep."""
    if {STATISTICS, AFFINE, PERSONAL} & set(declaration.client_state):
        raise ValueError(
            "Cannot ask the clients of a deployment for losses, gradients or metrics at x with batchnorm='local' or "
            "personal= because they depend on what each client keeps; use a selection without them and "
            "train_metrics=False"
        )


def _reported(name: str, numbers: Vectors, uploads: Vectors) -> float:
    """Return a report: a number that was sent, an upload, or the norm of the update, which the server can take."""
    if name in numbers or name in uploads:
        return float(numbers[name] if name in numbers else uploads[name])
    return float(update_norm({key: v[None] for key, v in uploads.items()})) if uploads else float("nan")
