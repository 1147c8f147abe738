"""Time per round over Flower, with real processes on loopback, TLS and node authentication.

    python benchmarks/deploy.py [--clients 4 16] [--megabytes 1 50] [--rounds 6] [--poll SECONDS] [--stock]

All clients take part in every round, with one step on one sample, so that transport dominates. `--stock` uses
Flower's own SuperNode and SuperExec, with their polling intervals, under the same apps.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
from pathlib import Path

import torch

from fedmos.flower.local.environment import POLL
from fedmos.flower.local.local_deployment import SUPEREXEC, SUPERLINK, LocalDeployment
from fedmos.run.result import Result

_PROJECT = """\
[project]
name = "overhead"
version = "1.0.0"

[tool.flwr.app]
publisher = "fedmos"

[tool.flwr.app.components]
serverapp = "overhead.apps:server"
clientapp = "overhead.apps:client"

[tool.flwr.app.config]
out = ""
"""

_APPS = """\
import torch

import fedmos as fm
from fedmos.flower import client_app, server_app

CLIENTS, WIDTH, ROUNDS = {clients}, {width}, {rounds}


def run():
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(CLIENTS, 1, 8, generator=generator)
    y = torch.zeros(CLIENTS, 1, dtype=torch.int64)
    return {{
        "model": torch.nn.Sequential(torch.nn.Linear(8, WIDTH), torch.nn.Linear(WIDTH, 2)),
        "data": fm.FederatedData.from_arrays([(x[i], y[i]) for i in range(CLIENTS)]),
        "algorithm": fm.FedAvg(lr=0.1),
        "selection": fm.Full(),
        "rounds": ROUNDS,
        "local_steps": 1,
        "eval_every": ROUNDS,
    }}


server, client = server_app(run()), client_app(run())
"""


def width(megabytes: float) -> int:
    """Return the width of a layer between 8 inputs and 2 outputs for a model of this size."""
    return round((megabytes * 1e6 / 4 - 2) / 11)


def write_app(folder: Path, clients: int, megabytes: float, rounds: int) -> Path:
    (folder / "overhead").mkdir(parents=True)
    (folder / "pyproject.toml").write_text(_PROJECT)
    (folder / "overhead" / "__init__.py").touch()
    text = _APPS.format(clients=clients, width=width(megabytes), rounds=rounds)
    (folder / "overhead" / "apps.py").write_text(text)
    return folder


class Stock(LocalDeployment):
    """A deployment with Flower's own programs and polling intervals; they start the processes of apps themselves."""

    def command(self, name: str) -> tuple[list[str], dict[str, str]]:
        if name == SUPEREXEC:
            return ["sleep", "infinity"], {}
        command, own = super().command(name)
        command = ["subprocess" if text == "process" else text for text in command]
        own = own | {POLL: "1"}
        if name != SUPERLINK:
            command = ["flower-supernode", *command[command.index("--superlink") :]]
            own["FLWR_HOME"] = str(self.folder / name / "flower")
        return command, own


def measure(deployment: LocalDeployment, folder: Path, clients: int, megabytes: float, rounds: int) -> str:
    app = write_app(folder / f"app-{megabytes:g}", clients, megabytes, rounds)
    out = folder / f"run-{megabytes:g}"
    state = deployment.run(app, out, timeout=3600)
    if not state.completed:
        raise RuntimeError(f"{state.details}\n{deployment.server_log(60)}")
    seconds = [record.seconds for record in Result.load(out).history][1:]
    return f"{statistics.median(seconds):.2f} | {min(seconds):.2f} to {max(seconds):.2f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=int, nargs="+", default=[4, 16])
    parser.add_argument("--megabytes", type=float, nargs="+", default=[1, 50])
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--poll", type=float)
    parser.add_argument("--stock", action="store_true")
    given = parser.parse_args()
    kind = Stock if given.stock else LocalDeployment
    print(f"torch {torch.__version__}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f} before; {kind.__name__};")
    print(f"median of rounds 2 to {given.rounds}\n")
    print("| clients | model, MB | s a round | range |\n|---:|---:|---:|---|")
    for clients in given.clients:
        with tempfile.TemporaryDirectory(prefix="fedmos-deploy-") as scratch:
            folder = Path(scratch)
            with kind(folder / "deployment", [str(i) for i in range(clients)], given.poll) as deployment:
                for megabytes in given.megabytes:
                    found = measure(deployment, folder, clients, megabytes, given.rounds)
                    print(f"| {clients} | {megabytes:g} | {found} |", flush=True)


if __name__ == "__main__":
    main()
