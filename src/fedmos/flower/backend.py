"""The clients of a Flower deployment as a backend of the engine."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from flwr.app import RecordDict
from torch import Tensor

from ..algorithm import Vectors
from ..codecs.compose import HELD, coding_of
from ..core.personal_parameters import PERSONAL
from ..core.rounding import ceil_of
from ..core.statistics_layout import AFFINE
from ..engine.aggregation import normalise
from ..engine.backend import CohortUpdate, PhaseInput, StepObserver, UnresponsiveClients, UpdatePolicy
from ..engine.client_store import ClientStore
from ..engine.cohort import Cohort
from ..engine.declaration import Declaration
from ..engine.reports import AT_START, extra_reports, update_norm
from ..engine.secure_sums import secure_rule
from ..engine.work_queue import read_values
from ..privacy.compose import is_private
from ..run.backends import BackendSetting
from . import wire
from .backend_checks import check_no_client_models, refuse_observer
from .evaluator import DeploymentEvaluator
from .exchanges import Replies
from .members.sources import StateSources
from .norm_bound import AdaptiveNormBound
from .outages import OutageWatch
from .request_messages import RequestMessages
from .requests import Reply, ReplyPolicy, Request
from .upload_spool import SpooledVectors, UploadSpool
from .upload_sums import Uploads, UploadSums


class FlowerBackend:
    """Asks the clients of a deployment to do the clients' part; see `fedmos.engine.backend.Backend`.

    Clients store their own state. A client that does not answer, or whose reply is refused, is left out of the round.
    While fewer answer than the quorum, the round waits for them.
    """

    def __init__(self, given: BackendSetting, outages: OutageWatch, reply_policy: ReplyPolicy) -> None:
        collector = outages.collector
        self._outages = outages
        self._task, self._scratch = given.task, given.scratch
        self._declaration = Declaration(given.algorithm, given.task.model.layers)
        self._sums = UploadSums(given.task, given.plan, self._declaration)
        self._collector, self._reply_policy = collector, reply_policy
        self._private = is_private(given.algorithm)
        if reply_policy.train_metrics or any(name in AT_START for name in reply_policy.reports):
            check_no_client_models(self._declaration)
        coded = coding_of(given.algorithm).down
        held = {HELD + vector.name: torch.zeros_like(given.task.model.initial()) for vector in coded}
        compares = not self._private and secure_rule(given.algorithm) is None
        factor = reply_policy.norm_factor if compares else None
        self._bound = AdaptiveNormBound(
            self._declaration, self._task.model.size, factor, collector.registry.describe, collector.refusals.note
        )
        self.clients = ClientStore(held | self._bound.initial, len(given.task.data), given.scratch)
        names = collector.registry.names
        self._messages = RequestMessages(self._task, given.algorithm, reply_policy, names, self.clients)
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
        refuse_observer(observer)
        self._enter_round(given.ctx.t)
        thin = given.thin
        shapes = {} if thin is not None else self._declaration.up(given.phase)
        replies = self._train(cohort, given, shapes)
        received = self._bounded(given, {i: reply.vectors for i, reply in replies.items()})
        arrived = self._subset(cohort, received)
        kept, W = arrived, None if len(arrived.ids) == len(cohort.ids) else given.ctx.W
        if thin is not None:
            reported = self._report(arrived, given, received)
            asked = thin(arrived.scaled(given.ctx.W), dict(zip(given.reports, reported[1:], strict=True)))
            received = self._bounded(given, self._uploads(asked, given))
            kept = self._subset(asked, received)
            W = None if len(kept.ids) == len(asked.ids) else asked.W
        return self._summed(cohort, given, arrived, kept, received, W)

    def _summed(
        self,
        cohort: Cohort,
        given: PhaseInput,
        arrived: Cohort,
        kept: Cohort,
        received: Mapping[int, Uploads],
        W: float | None = None,
    ) -> CohortUpdate:
        """Return the sums of the uploads of a cohort.

        Args:
            cohort: The clients that were asked.
            given: The input of the phase.
            arrived: Those that replied.
            kept: Those whose uploads count.
            received: The uploads by client.
            W: The sum of the weights that those of the kept clients stand for; None for their own.
        """
        partial, added = self._sums.add(cohort, given, kept, received)
        rows, uploads = partial.all_rows(), torch.isin(cohort.ids, kept.ids)
        updates = partial.take_updates(rows, uploads)
        sums = normalise(added, partial, kept.weights, W)
        return CohortUpdate(
            sums=sums | {name: v[uploads.to(v.device)] for name, v in rows.items()},
            kept=kept if W is None else kept.scaled(W),
            arrived=arrived,
            states=(kept.ids, self._states(kept.ids) if given.phase == "train" else {}),
            report=self._report(arrived, given, received).to(given.x.device),
            updates=updates,
        )

    def _bounded(self, given: PhaseInput, received: Mapping[int, Uploads]) -> dict[int, Uploads]:
        """Return the uploads whose norms are within the bound."""
        accepted = self._bound.accepted(given, received, self.clients)
        for i in received.keys() - accepted.keys():
            self._collector.monitor.refused(i, "norm_bound", "its update is over the norm bound")
        return accepted

    def _states(self, ids: Tensor) -> Vectors:
        """Return what the server stores of clients after a round."""
        return self._messages.held.states(ids) | self._bound.states(ids, self.clients)

    def _subset(self, cohort: Cohort, found: Mapping[int, Any]) -> Cohort:
        """Return the clients of the cohort that are in `found`, with their weights."""
        here = torch.tensor([i in found for i in cohort.ids.tolist()], dtype=torch.bool)
        return cohort if bool(here.all()) else Cohort.of(cohort.ids[here], cohort.weights[here], self._task.data)

    def _train(self, cohort: Cohort, given: PhaseInput, shapes: wire.Shapes) -> dict[int, Reply]:
        """Have the clients train; returns the replies with their reports and, if they have shapes, their uploads."""
        kind = wire.PREPARE if given.phase == "prepare" else wire.REPORT if given.thin is not None else wire.TRAIN
        return self._collect_training(
            self._training_request(cohort, given, kind, shapes), clients_needed(cohort, given)
        )

    def _training_request(self, cohort: Cohort, given: PhaseInput, kind: str, shapes: wire.Shapes) -> Request:
        """Return the request to train, or to do the work of the extra phase."""
        declared = self._reply_policy.reports if given.phase == "train" else ()
        asked = [*(n for n in given.reports if n in declared), *(n for n in declared if n in AT_START)]
        reports = asked if given.thin is not None else extra_reports(asked, self._declaration)
        headers = self._headers(cohort, given, reports)
        dtype, sends_x = self._task.model.dtype, "x" in self._declaration.down
        return Request(kind, headers, given.x, given.msg, shapes, reports, dtype, sends_x=sends_x, phase=given.phase)

    def _collect_training(self, request: Request, needed: int) -> dict[int, Reply]:
        """Return the replies to a request to train, and note who is late and what clients report."""
        replies = self._ask_until(request, needed)
        self._late |= replies.late
        self._reports |= {i: reply.numbers for i, reply in replies.accepted.items()}
        return replies.accepted

    def _report(self, arrived: Cohort, given: PhaseInput, received: Mapping[int, Uploads]) -> Tensor:
        """Return the reports of the clients that replied, (1 + reports, M). Values of replies are finite."""
        ids = arrived.ids.tolist()
        rows = [[_reported(name, self._reports[i], received.get(i, {})) for i in ids] for name in given.reports]
        return torch.tensor([[0.0] * len(ids), *rows], dtype=torch.float64)

    def _uploads(self, cohort: Cohort, given: PhaseInput) -> dict[int, Uploads]:
        """Ask clients that have reported for their uploads. Numbers that they have reported are not sent again."""
        shapes = self._declaration.up("train")
        sent = [name for name in given.reports if name in shapes]
        headers = {i: {"reports": ",".join(sent)} for i in cohort.ids.tolist()}
        rest = {name: shape for name, shape in shapes.items() if name not in sent}
        dtype = self._task.model.dtype
        request = Request(wire.UPLOAD, headers, given.x, {}, rest, (), dtype, sends_x=False, phase="train")
        replies = self._ask_until(request, clients_needed(cohort, given)) if headers else Replies({}, set(), set())
        self._late |= replies.late
        known = {i: {name: self._reports[i][name][0] for name in sent} for i in replies.accepted}
        return {i: SpooledVectors.of(reply.vectors, known[i]) for i, reply in replies.accepted.items()}

    def _headers(self, cohort: Cohort, given: PhaseInput, reports: Sequence[str]) -> dict[int, dict[str, Any]]:
        """Return the header of each client's request."""
        last = self.clients.last[cohort.ids].tolist()
        # Importances and the largest number of samples would tell a client of a private run about the others' data.
        public = not self._private
        width = cohort.max_samples if public and cohort.max_samples <= wire.MAX_WIDTH else 0
        return {
            i: {
                "lr": given.lr,
                "N": given.ctx.N,
                "S": given.ctx.S,
                "W": given.ctx.W,
                "p": float(self._task.data.importance[i]) if public else 1 / given.ctx.N,
                "last": t,
                "width": width,
                "reports": ",".join(reports),
                "keep": given.phase == "prepare",
            }
            | self._reply_policy.sources.header(t)
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
        registry = self._collector.registry
        headers: dict[int, dict[str, Any]] = {i: {} for i in range(len(registry.names)) if i not in registry.retired}
        replies = self._ask(Request(wire.EVALUATE, headers, x, {}, {}, names, torch.float64, counted=False))
        if not replies.accepted:
            return torch.full((len(names),), torch.nan, dtype=torch.float64)
        ids = sorted(replies.accepted)
        p = self._task.data.importance[ids]
        table = torch.stack([torch.cat([replies.accepted[i].numbers[name] for name in names]) for i in ids])
        return (p / p.sum()) @ table

    @property
    def sources(self) -> StateSources:
        """From which of its files each client starts."""
        return self._reply_policy.sources

    @property
    def retired(self) -> frozenset[int]:
        """The clients that the operator has removed."""
        return self._collector.registry.retired

    def numbers(self, request: Request, t: int) -> dict[int, Vectors]:
        """Return the numbers of the clients that answer a request about the model after round t, from 0."""
        self._enter_round(t)
        return {i: reply.numbers for i, reply in self._ask(request).accepted.items()}

    def _enter_round(self, t: int) -> None:
        if t != self._round:
            self._round = t
            self._has_model, self._has_difference = set(), set()
            self._answers, self._reports, self._late = {}, {}, set()
            self._messages.held.enter_round()
            self._bound.enter_round()

    def _probe(self, request: Request, t: int, ids: Tensor, key: Any, part: Callable[[Reply], Tensor]) -> list[Tensor]:
        """Return each client's answer. A client is asked once per round, even if the selector starts again."""
        self._enter_round(t)
        known = self._answers.setdefault(key, {})
        headers = {i: header for i, header in request.headers.items() if i not in known}
        answered = len(request.headers) - len(headers)
        needed = max(1, ceil_of(self._reply_policy.quorum, len(request.headers))) - answered
        replies = self._ask_until(request._replace(headers=headers), needed)
        known |= {i: part(reply) for i, reply in replies.accepted.items()}
        if replies.refused or replies.late:
            raise UnresponsiveClients(torch.tensor(sorted(replies.refused | replies.late)))
        return [known[i] for i in ids.tolist()]

    def _ask_until(self, request: Request, needed: int) -> Replies[Reply]:
        """Ask clients until enough of them have answered, or too many replies are refused for that.

        With noise on sums, late clients are not asked again: others, which answer or not, would decide who counts.

        Raises:
            OutageError: If clients do not answer for too long.
        """
        replies, outage = self._ask(request), None
        while len(replies.accepted) < needed <= len(replies.accepted) + len(replies.late):
            outage = outage or self._outages.begin(f"Round {self._round + 1}")
            outage.wait(replies.late, needed - len(replies.accepted))
            if self._private and self._declaration.algorithm.steps_without_updates:
                break
            headers = {i: header for i, header in request.headers.items() if i in replies.late}
            again = self._ask(request._replace(headers=headers))
            replies = Replies(replies.accepted | again.accepted, replies.refused | again.refused, again.late)
        if outage is not None:
            outage.end()
        return replies

    def _ask(self, request: Request) -> Replies[Reply]:
        """Send a request and collect the validated replies."""
        policy, t = self._reply_policy, self._round
        has_model = self._holding_x(request)
        messages, spool = self._messages.compose(request, t, has_model), UploadSpool(self._scratch)

        def validate_reply(client: int, content: RecordDict) -> Reply:
            reply = self._messages.validate(request, t, client, content)
            return reply._replace(vectors=spool.store(reply.vectors))

        replies = self._collector.collect(request.kind, messages, validate_reply, policy.deadline, request.counted)
        if request.counted and any(header.get("keep") for header in request.headers.values()):
            has_model |= set(replies.accepted)
        return replies

    def _holding_x(self, request: Request) -> set[int]:
        """Return the clients to which x is not sent again; the set is extended as clients receive it."""
        if not request.counted:
            return set()
        differs = request.phase is not None and self._messages.sends_differences
        return self._has_difference if differs else self._has_model


def clients_needed(cohort: Cohort, given: PhaseInput) -> int:
    """Return how many clients of a cohort must answer: the quorum, and one where a round counts without any."""
    return min(len(cohort.ids), max(1, given.quorum))


def _reported(name: str, numbers: Vectors, uploads: Uploads) -> float:
    """Return a report: a number that was sent, an upload, or the norm of the update, which the server can take."""
    if name in numbers or name in uploads:
        return float(numbers[name] if name in numbers else uploads[name])
    names = ["delta"] if "delta" in uploads else list(uploads)  # those that the norm is of: each is read from the disk
    return float(update_norm({key: uploads[key][None] for key in names})) if uploads else float("nan")
