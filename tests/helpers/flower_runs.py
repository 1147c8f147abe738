"""Federations deployed on a network within the test process."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import fedmos as fm

pytest.importorskip("flwr", reason="flwr is not installed: pip install 'fedmos[flower]'")
from fedmos.flower import Deploy, client_app
from fedmos.flower.deployment import Deployment
from fedmos.flower.server import serve
from helpers.flower_network import Network, Node

CLIENTS, ROUNDS = 6, 4


def federation(clients: int = CLIENTS) -> fm.FederatedData:
    g = torch.Generator().manual_seed(3)
    sizes = [4, 9, 6, 5, 12, 7, 8, 10][:clients]
    pairs = [(torch.randn(n, 5, generator=g), torch.randint(3, (n,), generator=g)) for n in sizes]
    return fm.FederatedData.from_arrays(
        pairs, test=(torch.randn(40, 5, generator=g), torch.randint(3, (40,), generator=g))
    )


def model() -> torch.nn.Module:
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(5, 8), torch.nn.Tanh(), torch.nn.Linear(8, 3))


def arguments(**changes: Any) -> dict[str, Any]:
    given = {
        "model": model(),
        "data": federation(),
        "algorithm": fm.FedAvg(lr=0.1),
        "selection": fm.Uniform(m=3),
        "rounds": ROUNDS,
        "local_steps": 3,
        "batch_size": 4,
        "engine": "loop",
        "seed": 7,
        "device": "cpu",
    }
    return given | changes


class Deployed:
    """A deployment in this process, to be started as often as one likes."""

    def __init__(self, folder: Path, given: dict[str, Any], **deploy: Any) -> None:
        self.folder = folder
        self.given = given | {"deploy": Deploy(**{"wait": 1.0, "rejoin": 0.2, "poll": 0.001} | deploy)}
        names = Deployment.of(self.given).names
        self.network = Network(lambda: client_app(self.given), folder / "state", names)

    def client_folder(self, client: str) -> Path:
        """The folder of a client in the only run."""
        (folder,) = (path for path in (self.folder / "state" / client).iterdir() if path.is_dir())
        return folder

    def run(self, **changes: Any) -> fm.Result:
        return serve(self.network, Deployment.of(self.given | changes), self.folder / "run")


FACTS = (
    "round",
    "cohort",
    "weights",
    "uploaded",
    "bytes_down",
    "bytes_up",
    "available",
    "probed",
    "abandoned",
    "accuracy",
)


def assert_same(got: fm.Result, expected: fm.Result, exact: bool = True) -> None:
    for mine, theirs in zip(got.history, expected.history, strict=True):
        for fact in FACTS:
            assert getattr(mine, fact) == getattr(theirs, fact), (mine.round, fact)
    tolerance = {"rtol": 0, "atol": 0} if exact else {"rtol": 0, "atol": 1e-5}
    torch.testing.assert_close(got.params, expected.params, **tolerance)
    for name, v in expected.server_state.items():
        torch.testing.assert_close(got.server_state[name], v, **tolerance)


SELECTORS = {
    "Uniform": fm.Uniform(m=3),
    "Full": fm.Full(),
    "MD": fm.MD(m=3),
    "Bernoulli": fm.Bernoulli(rate=0.5),
    "Cyclic": fm.Cyclic(m=2),
    "ACS": fm.ACS(m=3),
    "CACS": fm.CACS(m=3, warmup=2, clusters=2),
    "pow-d": fm.PowerOfChoice(m=2, d=4),
    "cpow-d": fm.PowerOfChoice(m=2, d=4, loss="batch"),
    "rpow-d": fm.PowerOfChoice(m=2, d=4, loss="reported"),
    "ActiveFL": fm.ActiveFL(m=3),
    "Oort": fm.Oort(m=3),
    "OCS": fm.OCS(m=2, d=4),
    "OCS, all": fm.OCS(m=3),
    "Clustered": fm.Clustered(m=3, by="similarity"),
    "DELTA": fm.DELTA(m=3),
    "FedCor": fm.FedCor(m=2, warmup=1, interval=2, steps=5),
    "UCB": fm.UCB(m=2),
    "FixedCohorts": fm.FixedCohorts([[0, 2], [1, 1, 5], [3]]),
}

BAD = 1
EVERYONE = fm.Full()


class OwnDeployed(Deployed):
    """A deployment of the named clients, each with data of its own, which the configuration does not have."""

    def __init__(self, folder: Path, given: dict[str, Any], data: fm.FederatedData, names: list[str], **deploy: Any):
        self.folder, self.data = folder, data
        self.samples = {name: data.stored(i) for i, name in enumerate(names)}
        """The samples of each client, which a test may change."""
        deploy = {"wait": 1.0, "rejoin": 0.2, "poll": 0.001, "clients": names} | deploy
        self.given = {key: v for key, v in given.items() if key != "data"} | {"deploy": Deploy(**deploy)}
        self.network = Network(self._app, folder / "state", names)

    def _app(self) -> Any:
        return client_app(self.given, data=self.samples.__getitem__)

    def connect(self, name: str, number: int) -> None:
        """Connect a further client, that the configuration does not name, with the data of its number."""
        self.samples[name] = self.data.stored(number)
        config = {"client": name, "number": number, "state": str(self.folder / "state")}
        self.network.nodes[100 + number] = Node(100 + number, self._app, config)

    def run(self, **changes: Any) -> fm.Result:
        return serve(self.network, Deployment.of(self.given | changes), self.folder / "run", self.data.test)
