"""Time per round over Flower, with real processes on loopback, TLS and node authentication.

    python benchmarks/deploy.py [--clients 4 16] [--megabytes 1 50] [--bits 32 4] [--rounds 6] [--poll SECONDS]
        [--stock]

All clients take part in every round, with one step on one sample, so that transport dominates. Uploads have `--bits`
bits per number: 32 for no codec, fewer for `fm.codecs.Quantize`. `--stock` uses
Flower's own SuperNode and SuperExec, with their polling intervals, under the same apps.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
from itertools import product
from pathlib import Path

import torch
from flower_apps import run_app, write_app

from fedmos.flower.local.local_deployment import LocalDeployment
from fedmos.run.result import Result

_RUN = """\
import torch

import fedmos as fm

CLIENTS, WIDTH, ROUNDS, BITS = {clients}, {width}, {rounds}, {bits}


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
        "uplink": None if BITS == 32 else fm.codecs.Quantize(BITS),
    }}
"""


def width(megabytes: float) -> int:
    """Return the width of a layer between 8 inputs and 2 outputs for a model of this size."""
    return round((megabytes * 1e6 / 4 - 2) / 11)


def write_overhead_app(folder: Path, clients: int, megabytes: float, rounds: int, bits: int = 32) -> Path:
    """Write an app whose server and clients are modules of their own, so that each process imports one side."""
    modules = {"run": _RUN.format(clients=clients, width=width(megabytes), rounds=rounds, bits=bits)}
    for side in ("server", "client"):
        imports = f"from fedmos.flower import {side}_app\n\nfrom .run import run\n\n"
        modules[f"{side}_side"] = f"{imports}{side} = {side}_app(run())\n"
    return write_app(folder, modules, "server_side", "client_side")


def measure(deployment: LocalDeployment, folder: Path, clients: int, megabytes: float, rounds: int, bits: int) -> str:
    name = f"{megabytes:g}-{bits}"
    app = write_overhead_app(folder / f"app-{name}", clients, megabytes, rounds, bits)
    out = run_app(deployment, app, folder / f"run-{name}")
    seconds = [record.seconds for record in Result.load(out).history][1:]
    return f"{statistics.median(seconds):.2f} | {min(seconds):.2f} to {max(seconds):.2f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=int, nargs="+", default=[4, 16])
    parser.add_argument("--megabytes", type=float, nargs="+", default=[1, 50])
    parser.add_argument("--bits", type=int, nargs="+", default=[32])
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--poll", type=float)
    parser.add_argument("--stock", action="store_true")
    given = parser.parse_args()
    kind = "Flower's own programs" if given.stock else "fedmos"
    print(f"torch {torch.__version__}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f} before; {kind};")
    print(f"median of rounds 2 to {given.rounds}\n")
    print("| clients | model, MB | bits of an upload | s a round | range |\n|---:|---:|---:|---:|---|")
    for clients in given.clients:
        with tempfile.TemporaryDirectory(prefix="fedmos-deploy-") as scratch:
            folder = Path(scratch)
            names = [str(i) for i in range(clients)]
            with LocalDeployment(folder / "deployment", names, given.poll, plain=given.stock) as deployment:
                for megabytes, bits in product(given.megabytes, given.bits):
                    found = measure(deployment, folder, clients, megabytes, given.rounds, bits)
                    print(f"| {clients} | {megabytes:g} | {bits} | {found} |", flush=True)


if __name__ == "__main__":
    main()
