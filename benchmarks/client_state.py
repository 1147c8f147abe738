"""Memory of stateful clients: 100,000 clients of an 800,000-parameter model, of which 1,000 take part.

SCAFFOLD keeps a vector per client, 320 GB for all clients. Prints the size of the sparse file's content and the
memory of the run: `python benchmarks/client_state.py`.
"""

from __future__ import annotations

import argparse
import resource
import statistics

import numpy as np
import torch

import fedmos as fm


def rss() -> float:
    """Return the resident memory in GB."""
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * resource.getpagesize() / 1e9


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=int, default=100_000)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--cohort", type=int, default=50)
    arguments = parser.parse_args()
    features, classes = 100, 7_900
    x = np.random.default_rng(0).normal(size=(arguments.clients, 1, features)).astype(np.float32)
    data = fm.FederatedData.from_arrays([(x[i], [i % classes]) for i in range(arguments.clients)])
    model = torch.nn.Linear(features, classes)
    cohorts = [range(t * arguments.cohort, (t + 1) * arguments.cohort) for t in range(arguments.rounds)]
    before, peaks = rss(), []
    result = fm.run(
        model,
        data,
        fm.Scaffold(lr=0.01),
        fm.FixedCohorts(cohorts),
        rounds=arguments.rounds,
        local_steps=1,
        eval_every=arguments.rounds,
        engine="loop",
        callbacks=[lambda record: peaks.append(rss())],
    )
    taken_part, D = len(result.clients), len(result.params)
    print(f"{arguments.clients:,} clients, D = {D:,}, {taken_part:,} took part in {arguments.rounds} rounds")
    whole, held = (n * D * 4 / 1e9 for n in (arguments.clients, taken_part))
    print(f"client state: {whole:.0f} GB if all took part, {held:.2f} GB held")
    print(f"resident memory: {before:.2f} GB before the run, at most {max(peaks):.2f} GB after a round")
    print(f"median seconds a round: {statistics.median(r.seconds for r in result.history):.2f}")


if __name__ == "__main__":
    main()
