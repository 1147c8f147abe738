"""Secure aggregation over Flower beside plain rounds, with real processes on loopback, TLS and node authentication.

    python benchmarks/secure.py [--clients 4 16] [--epochs 5] [--rounds 2] [--runs 2] [--protocol]

McMahan et al.'s setting: their CNN for MNIST (1.66 million parameters), 600 samples per client, batches of 10. All
clients take part in every round. Runs with and without secure aggregation alternate in one deployment; the first round
of each is not counted. `--protocol` measures the protocol alone in this process: seconds of CPU time of a client and of
the server.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
from collections.abc import Callable
from pathlib import Path
from time import process_time
from typing import Any

import numpy as np
import torch

from fedmos.aggregation import Secure
from fedmos.flower.local.local_deployment import LocalDeployment
from fedmos.run.result import Result
from fedmos.secure import masks
from fedmos.secure.client import ClientSession, Secrets
from fedmos.secure.server import ServerSession

_PROJECT = """\
[project]
name = "secured"
version = "1.0.0"

[tool.flwr.app]
publisher = "fedmos"

[tool.flwr.app.components]
serverapp = "secured.apps:server"
clientapp = "secured.apps:client"

[tool.flwr.app.config]
out = ""
"""

_APPS = """\
import torch

import fedmos as fm
from fedmos.flower import client_app, server_app

CLIENTS, ROUNDS, EPOCHS, RULE = {clients}, {rounds}, {epochs}, {rule}


def run():
    torch.manual_seed(0)
    clients = [(torch.randn(600, 1, 28, 28), torch.randint(10, (600,))) for _ in range(CLIENTS)]
    layers = (torch.nn.Conv2d(1, 32, 5, padding=2), torch.nn.ReLU(), torch.nn.MaxPool2d(2))
    layers += (torch.nn.Conv2d(32, 64, 5, padding=2), torch.nn.ReLU(), torch.nn.MaxPool2d(2), torch.nn.Flatten())
    return {{
        "model": torch.nn.Sequential(*layers, torch.nn.Linear(3136, 512), torch.nn.ReLU(), torch.nn.Linear(512, 10)),
        "data": fm.FederatedData.from_arrays(clients),
        "algorithm": fm.FedAvg(lr=0.01),
        "selection": fm.Full(),
        "rounds": ROUNDS,
        "local_epochs": EPOCHS,
        "batch_size": 10,
        "eval_every": ROUNDS,
        "aggregation": RULE,
    }}


server, client = server_app(run()), client_app(run())
"""
_RULES = {"plain": "None", "secure": "fm.aggregation.Secure(bits=32)"}


def write_app(folder: Path, **values: object) -> Path:
    (folder / "secured").mkdir(parents=True)
    (folder / "pyproject.toml").write_text(_PROJECT)
    (folder / "secured" / "__init__.py").touch()
    (folder / "secured" / "apps.py").write_text(_APPS.format(**values))
    return folder


def seconds(deployment: LocalDeployment, folder: Path, **values: object) -> list[float]:
    """Return the seconds of the rounds of one run."""
    state = deployment.run(write_app(folder / "app", **values), folder / "run", timeout=3600)
    if not state.completed:
        raise RuntimeError(f"{state.details}\n{deployment.server_log(60)}")
    history = Result.load(folder / "run").history
    assert not any(record.abandoned for record in history)
    return [record.seconds for record in history]


def over_flower(clients: int, epochs: int, rounds: int, runs: int) -> str:
    found: dict[str, list[float]] = {name: [] for name in _RULES}
    with tempfile.TemporaryDirectory(prefix="fedmos-secure-") as scratch:
        folder = Path(scratch)
        with LocalDeployment(folder / "deployment", [str(i) for i in range(clients)]) as deployment:
            for part in range(runs):
                for name, rule in _RULES.items():
                    values = {"clients": clients, "rounds": rounds + 1, "epochs": epochs, "rule": rule}
                    found[name] += seconds(deployment, folder / f"{name}-{part}", **values)[1:]
    plain, secure = (statistics.median(v) for v in found.values())
    ranges = " | ".join(f"{statistics.median(v):.2f} ({min(v):.2f} to {max(v):.2f})" for v in found.values())
    return f"| {clients} | {ranges} | {secure / plain:.2f} |"


def protocol(clients: int, size: int, gone: int) -> str:
    """Return the CPU time of the parts of one session; `gone` clients leave before they upload."""
    layout = {"delta": masks.RingVector(size, 32)}
    t, spent = Secure().needed(clients), 0.0
    sessions = {i: ClientSession(Secrets.new(), "benchmark", i, t) for i in range(clients)}
    values = {"delta": np.arange(size, dtype=np.int64)}

    def by_client(ask: Callable[[int], Any], first: int = 0) -> dict[int, Any]:
        nonlocal spent
        began = process_time()
        found = {i: ask(i) for i in range(first, clients)}
        spent += (process_time() - began) / (clients - first)
        return found

    server = ServerSession(
        by_client(lambda i: sessions[i].keys()), context="benchmark", layout=layout, threshold=t, needed=t
    )
    server.add_shares(by_client(lambda i: sessions[i].shares(server.members)))
    masked = by_client(lambda i: sessions[i].masked(server.members, server.sharing, values, layout))
    began = process_time()
    server.add_uploads({i: v for i, v in masked.items() if i >= gone})
    at_server = process_time() - began
    uploaded = list(server.uploaded)
    shares = by_client(
        lambda i: sessions[i].unmask(server.members, server.sharing, server.sealed_for(i), uploaded), gone
    )
    began = process_time()
    sums = server.unmask(shares)
    at_server += process_time() - began
    assert bool((sums["delta"] & 0xFFFFFFFF == (clients - gone) * values["delta"] & 0xFFFFFFFF).all())
    return f"| {clients} | {size:,} | {gone} | {spent:.3f} | {at_server:.3f} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=int, nargs="+", default=[4, 16])
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--runs", type=int, default=2)
    parser.add_argument("--protocol", action="store_true")
    given = parser.parse_args()
    print(f"torch {torch.__version__}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f} before\n")
    if given.protocol:
        print("| clients | numbers | leave | client, s | server, s |\n|---:|---:|---:|---:|---:|")
        for clients in given.clients:
            for gone in (0, 1, 3) if clients > 4 else (0, 1):
                print(protocol(clients, 1_663_370, gone), flush=True)
        return
    print("| clients | plain, s a round | secure, s a round | ratio |\n|---:|---|---|---:|")
    for clients in given.clients:
        print(over_flower(clients, given.epochs, given.rounds, given.runs), flush=True)


if __name__ == "__main__":
    main()
