"""What a round costs over Flower, with real processes on loopback, TLS and node authentication.

    python benchmarks/deploy.py [--clients 4 16] [--megabytes 1 50] [--rounds 6] [--poll 0.1]

Each client takes one step on one sample, so that a round is little but transport.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
from pathlib import Path

import torch

from fedmos.deploy.local import LocalDeployment
from fedmos.result import Result

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
    """Of a layer between 8 inputs and 2 outputs, for a model of so many megabytes."""
    return round((megabytes * 1e6 / 4 - 2) / 11)


def write_app(folder: Path, clients: int, megabytes: float, rounds: int) -> Path:
    (folder / "overhead").mkdir(parents=True)
    (folder / "pyproject.toml").write_text(_PROJECT)
    (folder / "overhead" / "__init__.py").touch()
    text = _APPS.format(clients=clients, width=width(megabytes), rounds=rounds)
    (folder / "overhead" / "apps.py").write_text(text)
    return folder


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=int, nargs="+", default=[4, 16])
    parser.add_argument("--megabytes", type=float, nargs="+", default=[1, 50])
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--poll", type=float, default=0.1)
    given = parser.parse_args()
    print(f"torch {torch.__version__}, poll {given.poll:g} s, median of rounds 2 to {given.rounds} (range)\n")
    print("| clients | model, MB | s a round | range |\n|---:|---:|---:|---|")
    for clients in given.clients:
        with tempfile.TemporaryDirectory(prefix="fedmos-deploy-") as scratch:
            folder = Path(scratch)
            with LocalDeployment(folder / "deployment", [str(i) for i in range(clients)], given.poll) as deployment:
                for megabytes in given.megabytes:
                    app = write_app(folder / f"app-{megabytes:g}", clients, megabytes, given.rounds)
                    out = folder / f"run-{megabytes:g}"
                    state = deployment.run(app, out, seconds=1800)
                    if not state.completed:
                        raise RuntimeError(f"{state.details}\n{deployment.server_log(60)}")
                    seconds = [record.seconds for record in Result.load(out).history][1:]
                    spread = f"{min(seconds):.2f} to {max(seconds):.2f}"
                    print(f"| {clients} | {megabytes:g} | {statistics.median(seconds):.2f} | {spread} |", flush=True)


if __name__ == "__main__":
    main()
