"""Secure aggregation over Flower beside plain rounds, with real processes on loopback, TLS and node authentication.

    python benchmarks/secure.py [--clients 4 16] [--epochs 5] [--samples 600] [--rounds 2] [--runs 2]
        [--protocol]

McMahan et al.'s setting: their CNN for MNIST (1.66 million parameters), 600 samples per client, batches of 10.
Fewer `--samples` train shorter, which leaves a larger share of a round to the messages. All
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
from flower_apps import run_app, write_app

from fedmos.aggregation import Secure
from fedmos.flower.local.local_deployment import LocalDeployment
from fedmos.run.result import Result
from fedmos.secure import masks
from fedmos.secure.client import ClientSession, Secrets
from fedmos.secure.server import ServerSession

_APPS = """\
import torch

import fedmos as fm
from fedmos.flower import client_app, server_app

CLIENTS, ROUNDS, EPOCHS, SAMPLES, RULE = {clients}, {rounds}, {epochs}, {samples}, {rule}


def run():
    torch.manual_seed(0)
    clients = [(torch.randn(SAMPLES, 1, 28, 28), torch.randint(10, (SAMPLES,))) for _ in range(CLIENTS)]
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


server = server_app(run())
client = client_app(run())
"""
_RULES = {"plain": "None", "secure": "fm.aggregation.Secure(bits=32)"}


def seconds(deployment: LocalDeployment, folder: Path, **values: object) -> list[float]:
    """Return the seconds of the rounds of one run."""
    app = write_app(folder / "app", {"apps": _APPS.format(**values)})
    history = Result.load(run_app(deployment, app, folder / "run")).history
    assert not any(record.abandoned for record in history)
    return [record.seconds for record in history]


def over_flower(clients: int, rounds: int, runs: int, **training: int) -> str:
    found: dict[str, list[float]] = {name: [] for name in _RULES}
    with tempfile.TemporaryDirectory(prefix="fedmos-secure-") as scratch:
        folder = Path(scratch)
        with LocalDeployment(folder / "deployment", [str(i) for i in range(clients)]) as deployment:
            for part in range(runs):
                for name, rule in _RULES.items():
                    values = {"clients": clients, "rounds": rounds + 1, "rule": rule} | training
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
    parser.add_argument("--samples", type=int, default=600)
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
    training = {"epochs": given.epochs, "samples": given.samples}
    print("| clients | plain, s a round | secure, s a round | ratio |\n|---:|---|---|---:|")
    for clients in given.clients:
        print(over_flower(clients, given.rounds, given.runs, **training), flush=True)


if __name__ == "__main__":
    main()
