"""Time per round of five seeds side by side and of one: *mnist* of engines.py, FedAvg, without evaluation.

`FEDMOS_ENGINE=compiled python benchmarks/seeds.py --precision tf32` is the fastest on a GPU.
"""

from __future__ import annotations

import argparse
import statistics
import time
from itertools import pairwise

from engines import JOBS

import fedmos as fm
from fedmos.core.history import Record

ROUNDS = 240


def milliseconds(runs: int, precision: str | None) -> tuple[float, float]:
    """Return the time of one round of all runs: mean and median over the second half of the rounds."""
    job, marks = JOBS["mnist"], []
    data = job.federation()

    def mark(record: Record) -> None:
        marks.append(time.perf_counter())

    fm.run_many(
        [{"seed": s, "model": job.model(seed=s), "callbacks": [mark] if s == 0 else []} for s in range(runs)],
        data=data,
        algorithm=fm.FedAvg(lr=0.01),
        selection=fm.Uniform(m=job.cohort),
        rounds=ROUNDS,
        eval_every=ROUNDS,
        local_steps=job.steps,
        batch_size=job.batch,
        precision=precision,
    )
    later = [1e3 * (b - a) for a, b in pairwise(marks[ROUNDS // 2 : -1])]
    return statistics.fmean(later), statistics.median(later)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--precision", choices=["tf32", "bf16"])
    parser.add_argument("--passes", type=int, default=3)
    given = parser.parse_args()
    for runs in (1, 5):  # fills the compiler's cache
        milliseconds(runs, given.precision)
    ratios = []
    for n in range(given.passes):
        one, five = milliseconds(1, given.precision), milliseconds(5, given.precision)
        ratios.append(five[0] / one[0])
        print(
            f"pass {n}: one {one[0]:.2f} ms a round (median {one[1]:.2f}), five {five[0]:.2f} ({five[1]:.2f}): "
            f"{five[0] / one[0]:.2f} × ({five[1] / one[1]:.2f})",
            flush=True,
        )
    print(f"median over passes {statistics.median(ratios):.2f} ×")


if __name__ == "__main__":
    main()
