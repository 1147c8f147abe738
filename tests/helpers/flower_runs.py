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
from helpers.flower_network import Network

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
