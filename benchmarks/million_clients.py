"""Time and memory to divide data among a million clients of twenty samples, and to start a run on it.

    python benchmarks/million_clients.py [--clients 1000000] [--samples 20]

Each partition runs in its own process: seconds, and peak resident memory beyond the data. The run is FedAvg with 100
clients a round, evaluated at the end of its three rounds.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path

import numpy as np

import fedmos as fm

SCHEMES = {
    "IID": fm.partition.IID(),
    "ByClass (2 classes, 10 to 20 samples)": fm.partition.ByClass(classes=2, size=(10, 20)),
    "ByClass (2 classes, everything)": fm.partition.ByClass(classes=2),
    "ByClass (2 classes, evenly)": fm.partition.ByClass(classes=2, size=(10, 20), share="even"),
    "ByClass (1 class)": fm.partition.ByClass(classes=1, size=20),
    "Dirichlet (α = 0.3)": fm.partition.Dirichlet(alpha=0.3),
    "Dirichlet (α = 0.3, prior = data)": fm.partition.Dirichlet(alpha=0.3, prior="data"),
    "Dirichlet (α = 0)": fm.partition.Dirichlet(alpha=0),
    "DirichletByClass (α = 100)": fm.partition.DirichletByClass(alpha=100.0, least=1),
    "Shards": fm.partition.Shards(),
    "QuantitySkew (power)": fm.partition.QuantitySkew(),
    "QuantitySkew (log-normal)": fm.partition.QuantitySkew(law="lognormal"),
    "Natural": fm.partition.Natural(),
}


def resident(which: str) -> float:
    """Return resident MiB: "VmRSS" at present, or "VmHWM" at the peak since the last reset."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith(which))


def dataset(clients: int, samples: int) -> fm.Dataset:
    rng = np.random.default_rng(0)
    n = clients * samples
    return fm.Dataset(
        "random",
        rng.integers(0, 256, (n, 16), dtype=np.uint8),
        rng.integers(0, 10, n),
        normalize=fm.Normalize(mean=0.5, std=0.5),
        owner=rng.permutation(n) % clients,
    )


def measure(name: str, clients: int, samples: int) -> dict[str, float]:
    data = dataset(clients, samples)
    Path("/proc/self/clear_refs").write_text("5")  # resets the peak
    before, began = resident("VmRSS"), time.perf_counter()
    federation = data.partition(SCHEMES[name], clients=clients, seed=0)
    made, peak = time.perf_counter() - began, resident("VmHWM") - before
    held = (federation.index.nbytes + federation.offsets.nbytes + federation.importance.nbytes) / 2**20
    began = time.perf_counter()
    first: list[float] = []
    fm.run(
        model=fm.models.logistic(features=16),
        data=federation,
        algorithm=fm.FedAvg(lr=0.1),
        selection=fm.Uniform(m=100),
        rounds=3,
        local_steps=2,
        batch_size=10,
        eval_every=1000,
        callbacks=[lambda record: first.append(time.perf_counter() - began)],
    )
    return {"seconds": made, "beyond": peak, "held": held, "start": first[0], "whole": time.perf_counter() - began}


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--clients", type=int, default=1_000_000)
    arguments.add_argument("--samples", type=int, default=20)
    arguments.add_argument("--only", choices=SCHEMES)
    given = arguments.parse_args()
    if given.only:
        print(json.dumps(measure(given.only, given.clients, given.samples)))
        return
    headings = (
        "partition",
        "seconds",
        "peak MiB beyond the data",
        "MiB kept",
        "first round (s)",
        "3 rounds, evaluated (s)",
    )
    print("| " + " | ".join(headings) + " |")
    print("|---|---|---|---|---|---|")
    for name in SCHEMES:
        command = [sys.executable, __file__, "--clients", str(given.clients), "--samples", str(given.samples)]
        result = subprocess.run([*command, "--only", name], check=True, capture_output=True, text=True)
        m = json.loads(result.stdout.splitlines()[-1])
        print(
            f"| {name} | {m['seconds']:.1f} | {m['beyond']:.0f} | {m['held']:.0f} | {m['start']:.1f} | "
            f"{m['whole']:.1f} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
