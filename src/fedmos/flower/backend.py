"""The clients of a deployment, as the engine's crew."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from flwr.app import RecordDict
from torch import Tensor

from ..algorithm import Algorithm, Vectors
from ..engine.job import Job, JobResult
from ..engine.local_backend import ExecutionPlan, LocalBackend, UnresponsiveClients
from ..engine.local_update import Watch
from ..engine.ranks import Ranks
from ..engine.task import Task
from ..evaluation.metrics import Evaluator, measurable
from . import wire
from .reply_collector import Replies, ReplyCollector


class ReplyPolicy(NamedTuple):
    """What replies are held to."""

    run: str
    deadline: float
    """Seconds for each request."""
    norm_bound: float | None
    reports: Sequence[str]
    """What the selector wants reported."""
    train_metrics: bool


class Reply(NamedTuple):
    """What a client sent, on the CPU."""

    vectors: Vectors
    numbers: Vectors


class FlowerBackend(LocalBackend):
    """Asks clients to do what a crew at hand would do."""

    remote = True

    def __init__(
        self, task: Task, algorithm: Algorithm, plan: ExecutionPlan, collector: ReplyCollector, policy: ReplyPolicy
    ) -> None:
        super().__init__(task, algorithm, plan)
        self._collector, self._policy = collector, policy
        self._round = -1
        self._holding: set[int] = set()
        """Clients that have received this round's x."""
        self._answers: dict[Any, dict[int, Tensor]] = {}
        """What clients answered to the selector's questions in this round."""
        self._reports: dict[int, Vectors] = {}
        self._late: set[int] = set()

    def chunks(self, ids: Tensor) -> tuple[Tensor, ...]:
        """All at once."""
        return (ids,)

    def do(self, job: Job, watch: Watch | None = None) -> JobResult:
        assert watch is None
        self._enter(job.ctx.t)
        prepare = job.phase == "prepare"
        kind, names = (wire.PREPARE, self.algorithm.prepare_up) if prepare else (wire.TRAIN, self.algorithm.up)
        reports = [] if prepare else list(self._policy.reports)
        headers = {
            i: {
                "lr": job.lr[0],
                "N": job.ctx.N,
                "S": job.ctx.S,
                "W": job.W[0],
                "p": float(self.task.data.importance[i]),
                "last": last,
                "width": job.width,
                "reports": ",".join(reports),
                "keep": prepare,
            }
            for i, last in zip(job.ids.tolist(), job.last.tolist(), strict=True)
        }
        answers = self._ask(kind, headers, job.x, job.msg, names, reports)
        self._late |= answers.late
        self._reports |= {i: reply.numbers for i, reply in answers.accepted.items()}
        place = {i: row for row, i in enumerate(job.ids.tolist())}
        D, report = self.task.model.size, torch.full((2, len(job.ids)), torch.nan, dtype=torch.float64)
        uploads = {name: torch.zeros((len(job.ids), D), dtype=job.x.dtype) for name in names}
        for i, reply in answers.accepted.items():
            report[0, place[i]] = 0  # finite: it was looked at
            if "loss" in reply.numbers:
                report[1, place[i]] = reply.numbers["loss"][0]
            for name, v in reply.vectors.items():
                uploads[name][place[i]] = v
        device = job.x.device
        return JobResult(
            uploads={name: v.to(device) for name, v in uploads.items()},
            own={},
            sums={},
            report=report.to(device),
            samples=lambda: torch.zeros_like(job.ids),
        )

    def losses(self, x: Tensor, t: int, ids: Tensor, batch: bool) -> Tensor:
        header = {"batch": batch, "keep": True}
        found = self._answered(wire.LOSSES, header, x, t, ids, (), ["loss"], lambda reply: reply.numbers["loss"][0])
        return torch.stack(found).to(torch.float64)

    def gradients(self, x: Tensor, t: int, ids: Tensor) -> Tensor:
        def vector(reply: Reply) -> Tensor:
            return reply.vectors["gradient"]

        return torch.stack(self._answered(wire.GRADIENTS, {"keep": True}, x, t, ids, ["gradient"], [], vector)).to(x)

    def reports(self, x: Tensor, ids: Tensor, names: Sequence[str]) -> Vectors:
        """As they came with the updates."""
        wanted = [name for name in names if name != "loss"]
        found = {name: [self._reports[i][name][0] for i in ids.tolist()] for name in wanted}
        return {name: torch.stack(v).to(torch.float64) for name, v in found.items() if v}

    def traffic(self) -> tuple[int, int]:
        return self._collector.take_traffic()

    def late(self) -> list[int]:
        return sorted(self._late)

    def evaluator(self, ranks: Ranks) -> Evaluator:
        return _RemoteEvaluator(self.task, self._train_metrics if self._policy.train_metrics else None)

    def _train_metrics(self, x: Tensor, names: list[str]) -> Tensor:
        """Σ p_i · metric_i over the clients that answer, their p_i scaled to sum to one."""
        headers: dict[int, dict[str, Any]] = {i: {} for i in range(len(self.task.data))}
        answers = self._ask(wire.EVALUATE, headers, x, {}, (), names, torch.float64, counted=False)
        if not answers.accepted:
            return torch.full((len(names),), torch.nan, dtype=torch.float64)
        ids = sorted(answers.accepted)
        p = self.task.data.importance[ids]
        table = torch.stack([torch.cat([answers.accepted[i].numbers[name] for name in names]) for i in ids])
        return (p / p.sum()) @ table

    def _enter(self, t: int) -> None:
        if t != self._round:
            self._round = t
            self._holding, self._answers, self._reports, self._late = set(), {}, {}, set()

    def _answered(
        self,
        kind: str,
        header: Mapping[str, Any],
        x: Tensor,
        t: int,
        ids: Tensor,
        vectors: Sequence[str],
        numbers: Sequence[str],
        part: Callable[[Reply], Tensor],
    ) -> list[Tensor]:
        """What each client answers; asked once in a round, however often a selector begins anew."""
        self._enter(t)
        known = self._answers.setdefault((kind, tuple(header.items())), {})
        headers = {i: header for i in ids.tolist() if i not in known}
        answers = self._ask(kind, headers, x, {}, vectors, numbers)
        known |= {i: part(reply) for i, reply in answers.accepted.items()}
        if answers.refused or answers.late:
            raise UnresponsiveClients(torch.tensor(sorted(answers.refused | answers.late)))
        return [known[i] for i in ids.tolist()]

    def _ask(
        self,
        kind: str,
        headers: Mapping[int, Mapping[str, Any]],
        x: Tensor,
        msg: Vectors,
        vectors: Sequence[str],
        numbers: Sequence[str],
        dtype: torch.dtype | None = None,
        counted: bool = True,
    ) -> Replies[Reply]:
        """Send x, to those who do not hold it, with what goes with it; replies of these vectors and numbers."""
        model, policy, t = self.task.model, self._policy, self._round
        kept = self._holding if counted else set()
        rest = wire.pack(msg)
        whole = wire.pack({"x": x} | msg)

        def validate_reply(client: int, content: RecordDict) -> Reply:
            said = wire.header_up(kind, content)
            samples = int(self.task.data.sizes[client])
            wire.check_equal(said, run=policy.run, round=t, client=client, samples=samples)
            reply = Reply(
                wire.vectors_in(content, dict.fromkeys(vectors, (model.size,)), model.dtype),
                wire.numbers_in(content, dict.fromkeys(numbers, (1,)), dtype or model.dtype),
            )
            wire.check_finite(reply.vectors, policy.norm_bound)
            wire.check_finite(reply.numbers)
            return reply

        requests = {
            i: wire.compose({"run": policy.run, "round": t, "client": i} | dict(header), rest if i in kept else whole)
            for i, header in headers.items()
        }
        answers = self._collector.collect(kind, requests, validate_reply, policy.deadline, counted)
        if counted and any(header.get("keep") for header in headers.values()):
            self._holding |= set(answers.accepted)
        return answers


class _RemoteEvaluator(Evaluator):
    """On the server's test set, and by asking clients."""

    def __init__(self, task: Task, ask: Callable[[Tensor, list[str]], Tensor] | None) -> None:
        super().__init__([task], train=False)
        self._ask = ask
        self._asked = [] if ask is None else [name for name in measurable(task) if name.startswith("train_")]
        self.names = self._asked + self.names

    def __call__(self, xs: Tensor) -> Tensor:
        tested = super().__call__(xs)
        if self._ask is None:
            return tested
        trained = torch.stack([self._ask(x, self._asked).to(tested.device) for x in xs])
        return torch.cat([trained, tested], dim=1)
