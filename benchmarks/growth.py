"""How cost grows: with the cohort, with the number of clients, and how much memory a cohort takes.

The *mnist* job of engines.py, FedAvg, vectorised; and a wide linear model whose parameters dwarf everything else, so
that what a round adds to the process's memory, in units of (clients × parameters × 4 bytes), can be read off.
"""

from __future__ import annotations

import os
import statistics
from dataclasses import replace
from pathlib import Path

import numpy as np
from engines import JOBS, Ours
from torch import nn

import fedmos as fm

os.environ["FEDMOS_ENGINE"] = "batched"


def milliseconds(cohort: int, clients: int) -> float:
    job = replace(JOBS["mnist"], cohort=cohort, clients=clients)
    taken, _ = Ours(job, "FedAvg", "cpu", "batched", None).times(warm=2, rounds=7)
    return 1e3 * statistics.median(taken)


def resident(name: str) -> int:
    """Bytes: "VmRSS" now, or "VmHWM" at most since the last reset."""
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(name))
    return 1024 * int(line.split()[1])


def memory(algorithm: fm.Algorithm, cohort: int) -> float:
    """What a round takes at most beyond what there was before it, in numbers per client and parameter."""
    rng = np.random.default_rng(0)
    pairs = [(rng.standard_normal((2, 1000), dtype=np.float32), rng.integers(0, 1000, 2)) for _ in range(cohort)]
    before = 0

    def watch(record: fm.Record) -> None:
        nonlocal before
        if record.round == 1:
            before = resident("VmRSS")
            Path("/proc/self/clear_refs").write_text("5")

    model = nn.Linear(1000, 1000)
    data = fm.FederatedData.from_arrays(pairs)
    fm.run(model, data, algorithm, fm.Full(), rounds=4, local_steps=2, batch_size=2, eval_every=4, callbacks=[watch])
    kept = sum(p.numel() for p in model.parameters()) * cohort * 4
    return (resident("VmHWM") - before) / kept


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
    for algorithm in (fm.FedAvg(lr=0.01), fm.FedMoS(lr=0.01), fm.Scaffold(lr=0.01)):
        taken = memory(algorithm, 40)
        print(f"{type(algorithm).__name__}: {taken:.1f} numbers for each client and parameter of a cohort of 40")


if __name__ == "__main__":
    main()
