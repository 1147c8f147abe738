"""A server that asks one client of a deployment whatever it likes, and reconstructs rows from the answers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import fedmos as fm

pytest.importorskip("flwr", reason="flwr is not installed: pip install 'fedmos[flower]'")
from flwr.app import Message

from fedmos.flower import ClientPolicy, Deploy, client_app, wire
from helpers.flower_network import Network
from helpers.flower_runs import arguments

RUN = "a" * 32
HIDDEN, FEATURES, CLASSES, ROWS = 400, 5, 3, 60


def rows() -> tuple[Tensor, Tensor]:
    g = torch.Generator().manual_seed(11)
    return torch.randn(ROWS, FEATURES, generator=g), torch.randint(CLASSES, (ROWS,), generator=g)


def network_of(hidden: int = HIDDEN) -> torch.nn.Module:
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(FEATURES, hidden), torch.nn.ReLU(), torch.nn.Linear(hidden, CLASSES))


class Asked:
    """One client, "a", whose server is this test."""

    def __init__(self, folder: Path, policy: ClientPolicy | None = None, **changes: Any) -> None:
        data = fm.FederatedData.from_arrays([rows(), rows()], test=rows())
        given = arguments(**{"model": network_of(), "data": data, "selection": fm.Full()} | changes)
        self.given = given | {"deploy": Deploy(clients=["a", "b"])}
        self.folder = folder / "state" / "a"
        self._network = Network(lambda: client_app(self.given, policy=policy), folder / "state", ["a", "b"])

    def ask(self, kind: str, x: Tensor | None = None, round: int = 0, **header: Any) -> Message:
        common = {"run": RUN, "round": round, "client": 0}
        message = Message(wire.compose(common | header, wire.pack({} if x is None else {"x": x})), 100, kind)
        message.metadata.__dict__["_message_id"] = "asked"
        return self._network.nodes[100].answer(message)

    def train(self, x: Tensor, round: int = 0, kind: str = wire.TRAIN, **changes: Any) -> Message:
        job = {"lr": 0.1, "N": 2, "S": 2, "W": 1.0, "p": 0.5, "last": -1, "width": ROWS, "reports": "", "keep": False}
        job |= {"stored": "", "restart": ""}
        return self.ask(kind, x, round, **job | changes)


def vectors(reply: Message, **shapes: tuple[int, ...]) -> dict[str, Tensor]:
    return wire.vectors_in(reply.content, shapes, torch.float32)


def initial() -> Tensor:
    return torch.cat([p.detach().flatten() for p in network_of().parameters()])


def imprint(g: torch.Generator) -> Tensor:
    """A model whose hidden units sort the rows along a random direction into bins (Fowl et al., 2022)."""
    direction = torch.randn(FEATURES, generator=g)
    direction = direction / direction.norm()
    bounds = torch.linspace(-3, 3, HIDDEN)
    outer = torch.randn(CLASSES, 1, generator=g).expand(CLASSES, HIDDEN) * 1e-3
    return torch.cat([direction.expand(HIDDEN, -1).flatten(), -bounds, outer.flatten(), torch.zeros(CLASSES)])


def reconstructed(gradient: Tensor, within: float = 1e-3) -> set[int]:
    """The rows of the client that differences between neighbouring hidden units give away."""
    weight, bias = gradient[: HIDDEN * FEATURES].view(HIDDEN, FEATURES).double(), gradient[HIDDEN * FEATURES :][:HIDDEN]
    difference, count = weight[:-1] - weight[1:], (bias[:-1] - bias[1:]).double()
    guesses = (difference / count[:, None])[count.abs() > 1e-9]
    distance = (rows()[0].double()[:, None] - guesses[None]).norm(dim=2)
    return set((distance.min(dim=1).values < within * rows()[0].norm(dim=1)).nonzero().flatten().tolist())
