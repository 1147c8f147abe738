"""Time per round by cohort size and by number of clients, and the memory of a cohort.

Times are of the *mnist* job of engines.py with FedAvg, vectorised. Memory is that of a wide linear model whose
parameters dominate, in units of clients × parameters × 4 bytes.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
from engines import JOBS, Ours
from torch import nn

import fedmos as fm

os.environ["FEDMOS_ENGINE"] = "batched"
MEMORY = {"FedAvg": fm.FedAvg(lr=0.01), "FedMoS": fm.FedMoS(lr=0.01), "Scaffold": fm.Scaffold(lr=0.01)}


def milliseconds(cohort: int, clients: int) -> float:
    job = replace(JOBS["mnist"], cohort=cohort, clients=clients)
    taken, _ = Ours(job, "FedAvg", "cpu", "batched", None).times(warm=2, rounds=7)
    return 1e3 * statistics.median(taken)


def resident(name: str) -> int:
    """Return resident bytes: "VmRSS" at present, or "VmHWM" at the peak."""
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(name))
    return 1024 * int(line.split()[1])


def memory(algorithm: fm.Algorithm, cohort: int) -> float:
    """Return the peak memory of a run beyond that before it, in numbers per client and parameter.

    Freed memory is returned to the system at once, so that live memory is measured.
    """
    for module in [m for name, m in sys.modules.items() if name.startswith("fedmos.") and hasattr(m, "keep_memory")]:
        module.keep_memory = lambda: None

    def run(features: int) -> None:
        rng = np.random.default_rng(0)
        pairs = [(rng.standard_normal((2, features), np.float32), rng.integers(0, features, 2)) for _ in range(cohort)]
        data, model = fm.FederatedData.from_arrays(pairs), nn.Linear(features, features)
        fm.run(model, data, algorithm, fm.Full(), rounds=3, local_steps=2, batch_size=2, eval_every=3)

    run(10)  # the first run initialises libraries
    before = resident("VmRSS")
    run(1000)
    return (resident("VmHWM") - before) / (4 * cohort * 1_001_000)


def main() -> None:
    print(
        "| cohort, of 500 clients | "
        + " | ".join(str(m) for m in (5, 10, 25, 50, 100))
        + " |\n|---|---|---|---|---|---|"
    )
    print("| ms a round | " + " | ".join(f"{milliseconds(m, 500):.0f}" for m in (5, 10, 25, 50, 100)) + " |\n")
    counts = (500, 5_000, 50_000, 200_000)
    print("| clients, cohorts of 25 | " + " | ".join(f"{n:,}" for n in counts) + " |\n|---|---|---|---|---|")
    print("| ms a round | " + " | ".join(f"{milliseconds(25, n):.0f}" for n in counts) + " |\n")
    for name in MEMORY:
        taken = subprocess.run([sys.executable, __file__, name], stdout=subprocess.PIPE, text=True, check=True).stdout
        print(f"{name}: {float(taken):.1f} numbers for each client and parameter of a cohort of 40")


if __name__ == "__main__":
    print(memory(MEMORY[sys.argv[1]], 40)) if len(sys.argv) > 1 else main()
