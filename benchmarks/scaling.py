"""Time per round on one and on two ranks with one thread each, and the efficiency: `python benchmarks/scaling.py`.

The *lenet* (shortened) and *pfl-cifar* jobs of engines.py, FedAvg, vectorised; two ranks have twice the cores.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
from dataclasses import replace
from itertools import pairwise
from time import perf_counter

JOBS = ("pfl-cifar", "lenet")
ROUNDS = 6


def work(name: str) -> None:
    """Run as one of the ranks; rank 0 prints the times of the rounds."""
    from engines import JOBS as KNOWN

    import fedmos as fm
    from fedmos.engine.process_group import leave

    job = replace(KNOWN[name], samples=(128, 128)) if name == "lenet" else KNOWN[name]
    marks: list[float] = []
    fm.run(
        job.model(),
        job.federation(),
        fm.FedAvg(lr=0.01),
        fm.Uniform(m=job.cohort),
        rounds=ROUNDS + 1,
        local_steps=min(job.steps, 4),
        batch_size=job.batch,
        eval_every=ROUNDS + 1,
        engine="batched",
        callbacks=[lambda record: marks.append(perf_counter())],
    )
    leave()
    if marks:
        print(json.dumps([later - earlier for earlier, later in pairwise(marks[:-1])]))


def main() -> None:
    print("| job | one rank (s a round) | two ranks | efficiency |\n|---|---|---|---|")
    for name in JOBS:
        taken = []
        for ranks in (1, 2):
            launcher = ["-m", "torch.distributed.run", "--nproc-per-node", str(ranks), __file__, name]
            done = subprocess.run(
                [sys.executable, *launcher],
                env=os.environ | {"OMP_NUM_THREADS": "1"},
                stdout=subprocess.PIPE,
                text=True,
                check=True,
            )
            taken.append(statistics.median(json.loads(done.stdout.splitlines()[-1])))
        print(f"| {name} | {taken[0]:.2f} | {taken[1]:.2f} | {taken[0] / taken[1] / 2:.2f} |", flush=True)


if __name__ == "__main__":
    work(sys.argv[1]) if len(sys.argv) > 1 else main()
