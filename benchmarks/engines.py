"""Seconds a round, loop and batched side by side: `make bench`.

Each job is timed for both engines in turn, in one process, after a warm-up round; the median over
rounds is printed. Data is random: only shapes matter here.
"""

from __future__ import annotations

import argparse
import statistics

import numpy as np
import torch

import fedmos as fm

JOBS = {
    # name: model, input shape, clients, cohort, local steps, batch
    "digits": (fm.models.cnn_digits, (1, 8, 8), 100, 20, 5, 8),
    "mlp": (fm.models.mlp, (1, 28, 28), 100, 9, 30, 64),
    "mnist": (fm.models.cnn_mnist, (1, 28, 28), 500, 25, 5, 10),
}


def federation(shape: tuple[int, ...], clients: int, batch: int) -> fm.FederatedData:
    rng = np.random.default_rng(0)
    n = max(30, batch)
    return fm.FederatedData.from_arrays(
        [(rng.normal(size=(n, *shape)).astype(np.float32), rng.integers(0, 10, n)) for _ in range(clients)]
    )


def seconds(job: str, algorithm: fm.Algorithm, engine: str, rounds: int) -> float:
    make, shape, clients, m, steps, batch = JOBS[job]
    result = fm.run(
        make(),
        federation(shape, clients, batch),
        algorithm,
        fm.Uniform(m=m),
        rounds=rounds + 1,
        local_steps=steps,
        batch_size=batch,
        eval_every=rounds + 1,
        engine=engine,
    )
    return statistics.median(record.seconds for record in list(result.history)[1:])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("jobs", nargs="*", default=list(JOBS), help=f"of {', '.join(JOBS)}")
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else f"CPU, {torch.get_num_threads()} threads"
    print(f"torch {torch.__version__}, {device}; median of {arguments.rounds} rounds, milliseconds a round")
    print(f"{'job':8} {'algorithm':10} {'loop':>8} {'batched':>8} {'ratio':>6}")
    for job in arguments.jobs:
        for algorithm in (fm.FedAvg(lr=0.01), fm.FedMoS(lr=0.01)):
            loop, batched = (1e3 * seconds(job, algorithm, engine, arguments.rounds) for engine in ("loop", "batched"))
            print(f"{job:8} {type(algorithm).__name__:10} {loop:8.1f} {batched:8.1f} {loop / batched:6.2f}", flush=True)


if __name__ == "__main__":
    main()
