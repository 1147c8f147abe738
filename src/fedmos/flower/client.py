"""The client's side: what comes in messages, done by the simulator's own crew on the client's own data."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from flwr.app import Context, Message, RecordDict
from flwr.clientapp import ClientApp
from torch import Tensor

from ..algorithm import Context as RoundContext
from ..algorithm import Vectors
from ..core.flat_model import FlatModel
from ..core.formatting import format_value
from ..core.losses import Loss
from ..core.precision import arithmetic
from ..data.federated import FederatedData
from ..engine.declaration import check_declaration, shapes
from ..engine.execution_plan import choose_plan
from ..engine.job import Job, Phase
from ..engine.local_backend import LocalBackend
from ..engine.sampling import cohort_size
from ..engine.task import Task, on_device
from ..evaluation.metrics import Evaluator
from ..rng import signed
from ..run.preflight import check_fit
from ..run.settings import find_device
from ..selection.selector import REPORTS
from . import wire
from .client_folder import RUN, ClientFolder
from .deployment import Deployment, Given, client_part

OwnData = Callable[[str], Any]
"""A client's name → its samples, (x, y), or a federation of it alone."""


def client_app(config: Given, *, data: OwnData | None = None) -> ClientApp:
    """The Flower app of every client.

    Args:
        config: as `server_app`'s, and the same.
        data: gives a client its own samples by its name; without it, they are its part of the configuration's.

    Which client a node is stands in its node configuration: `client="name"` (or its number, or Flower's
    `partition-id`); `state="folder"` is where it keeps what must outlive it, by default ~/.fedmos/clients.
    """
    sites: dict[tuple[str, str], ClientRuntime] = {}

    def site(context: Context) -> ClientRuntime:
        who = (str(_named(context.node_config)), str(context.node_config.get("state") or _default_folder()))
        if who not in sites:
            sites[who] = ClientRuntime(Deployment.of(config), *who, data)
        return sites[who]

    def answering(kind: str) -> Callable[[Message, Context], Message]:
        def answer(message: Message, context: Context) -> Message:
            return Message(site(context).answer(kind, message.content), reply_to=message)

        return answer

    app = ClientApp()
    for kind in (wire.HELLO, wire.LOSSES, wire.GRADIENTS, wire.PREPARE, wire.TRAIN, wire.EVALUATE):
        category, action = kind.split(".")
        getattr(app, category)(action)(answering(kind))
    return app


class ClientRuntime:
    """One client with its data, its model's shape, and its folder."""

    def __init__(self, deployment: Deployment, who: str, folder: str, own: OwnData | None) -> None:
        self._deployment, self._root = deployment, Path(folder)
        given, names = deployment.arguments, deployment.names
        self.number = _number(who, names)
        self.name = names[self.number]
        self.algorithm = given["algorithm"]
        check_declaration(self.algorithm)
        device = find_device(given["device"])
        self.model = FlatModel(given["model"], device, given["dtype"], given["precision"])
        here = torch.zeros(1, dtype=torch.int64, device=device)
        self._task = Task(
            model=self.model,
            data=on_device(_part(deployment, own, self.number), device, given["dtype"]),
            loss=Loss(given["loss"]),
            seed=given["seed"],
            local_steps=given["local_steps"],
            local_epochs=given["local_epochs"],
            batch_size=given["batch_size"],
            weight_decay=given["weight_decay"],
            clip=given["clip"],
            origin=(here + signed(given["seed"]), here + self.number),
        )
        check_fit(self._task)
        m = cohort_size(given["selection"], given["system"], len(names))
        with arithmetic(self.model.precision):
            self._plan = choose_plan(deployment.engine, self._task, m)

    @property
    def samples(self) -> int:
        return int(self._task.data.sizes[0])

    @torch.no_grad()
    def answer(self, kind: str, content: RecordDict) -> RecordDict:
        """What to send back."""
        header = wire.header_down(kind, content)
        said = {"run": header["run"], "round": header["round"], "client": self.number, "samples": self.samples}
        if kind == wire.HELLO:
            return wire.compose(said | {"name": self.name, "agreement": self._deployment.agreement(self.model)})
        wire.check_equal(header, client=self.number)
        if not RUN.fullmatch(header["run"]) or not 0 <= header["round"] < 10**9:
            raise wire.RefusedError(f"there is no round {header['round']} of run {format_value(header['run'])}")
        with arithmetic(self.model.precision):
            vectors, numbers = self._do(kind, header, content)
        return wire.compose(said, wire.pack(vectors), wire.pack(numbers))

    def _do(self, kind: str, header: Mapping[str, Any], content: RecordDict) -> tuple[Vectors, Vectors]:
        """Vectors and numbers to send."""
        folder = ClientFolder(self._root, self.name, header["run"])
        if kind in (wire.PREPARE, wire.TRAIN):
            return self._job("prepare" if kind == wire.PREPARE else "train", header, content, folder)
        x, _ = self._received(header, content, folder)
        crew, me = self._crew(), torch.zeros(1, dtype=torch.int64)
        if kind == wire.LOSSES:
            return {}, {"loss": crew.losses(x, header["round"], me, header["batch"]).to(x.dtype)}
        if kind == wire.GRADIENTS:
            return {"gradient": crew.gradients(x, header["round"], me)[0]}, {}
        evaluator = Evaluator([self._task])
        return {}, dict(zip(evaluator.names, evaluator(x[None])[0].split(1), strict=True))

    def _job(
        self, phase: Phase, header: Mapping[str, Any], content: RecordDict, folder: ClientFolder
    ) -> tuple[Vectors, Vectors]:
        reports = header["reports"].split(",") if header["reports"] else []
        if not set(reports) <= set(REPORTS):
            raise wire.RefusedError(f"there are no reports {format_value(header['reports'])}")
        x, msg = self._received(header, content, folder, () if phase == "prepare" else self.algorithm.down)
        t, last = header["round"], header["last"]
        given = self.algorithm.init(self.model.initial())
        first = {name: given.get(name, torch.zeros_like(x)) for name in self.algorithm.client_state}
        own = folder.state(last, first)
        crew, me = self._crew(header["p"]), torch.zeros(1, dtype=torch.int64)
        lr = torch.full((), header["lr"], dtype=x.dtype, device=x.device)
        done = crew.do(
            Job(
                phase=phase,
                ids=me,
                ctx=RoundContext(t=t, lr=lr, N=header["N"], S=header["S"], W=header["W"]),
                lr=[header["lr"]],
                W=[header["W"]],
                x=x,
                msg=msg,
                own={name: v[None] for name, v in own.items()},
                last=torch.tensor([last]),
                factors={},
                width=max(header["width"], self.samples),
            )
        )
        if not bool(done.report[0, 0].isfinite()):
            raise ValueError(f"The update of client {self.name} in round {t + 1} is not finite")
        uploads = {name: v[0] for name, v in done.uploads.items()}
        numbers = {name: v.to(x.dtype) for name, v in crew.reports(x, me, reports).items()}
        if "loss" in reports:
            numbers["loss"] = done.report[1, :1].to(x.dtype)
        if phase == "train":
            folder.keep_state(t, last, own | {name: v[0] for name, v in done.own.items()})
        return uploads, numbers

    def _received(
        self, header: Mapping[str, Any], content: RecordDict, folder: ClientFolder, down: Any = ()
    ) -> tuple[Tensor, Vectors]:
        """x, which may have come earlier in the round, and what came with it."""
        rows = dict(shapes(self.algorithm.server_state, self.model.size))
        expected = {name: rows.get(name, (self.model.size,)) for name in down if name != "x"}
        sent = "x" in wire.names_in(content)
        came = wire.vectors_in(content, expected | ({"x": (self.model.size,)} if sent else {}), self.model.dtype)
        came = {name: v.to(self.model.device) for name, v in came.items()}
        if not sent:
            return folder.model(header["round"], self.model.initial()), came
        x = came.pop("x")
        if header.get("keep"):
            folder.keep_model(header["round"], x)
        return x, came

    def _crew(self, importance: float = 1.0) -> LocalBackend:
        data = replace(self._task.data, importance=torch.tensor([importance], dtype=torch.float64))
        return LocalBackend(replace(self._task, data=data), self.algorithm, self._plan)


def _named(node: Mapping[str, Any]) -> Any:
    for key in ("client", "partition-id"):
        if key in node:
            return node[key]
    raise ValueError("Cannot tell which client this node is; use --node-config 'client=\"name\"'")


def _default_folder() -> Path:
    return Path.home() / ".fedmos" / "clients"


def _number(who: str, names: Any) -> int:
    """A client's number, by its name or its number in words."""
    known = list(names)
    if who in known:
        return known.index(who)
    if who.isascii() and who.isdigit() and int(who) < len(known):
        return int(who)
    raise ValueError(f"node: 'client' must be one of {', '.join(known[:20])}, or its number, got {format_value(who)}")


def _part(deployment: Deployment, own: OwnData | None, number: int) -> FederatedData:
    if own is None:
        if deployment.data is None:
            raise ValueError("client_app: 'data' must be given where the configuration holds none")
        return client_part(deployment.data, number)
    found = own(deployment.names[number])
    data = found if isinstance(found, FederatedData) else FederatedData.from_arrays([found])
    if len(data) != 1:
        raise ValueError(f"client_app: 'data' must give the samples of one client, got {len(data)}")
    return client_part(data, 0)
