"""Rounds of clients with unequal numbers of local steps: one after another, all together, and in groups.

    python benchmarks/uneven.py mlp cnn_mnist logistic

An epoch of batches of 10 for clients whose sizes are those of PFLlib's pathological split of Fashion-MNIST, scaled to
4,000 samples in all, and for as many clients of 200 samples. Seconds are the least of several rounds.
"""

from __future__ import annotations

import argparse
from itertools import pairwise
from time import perf_counter

import torch

import fedmos as fm
from fedmos.engine import executor
from fedmos.engine.malloc import keep_memory
from fedmos.engine.similar_steps import similar_steps

SIZES = (48, 54, 80, 83, 107, 111, 111, 113, 123, 128, 132, 149, 149, 173, 189, 386, 412, 416, 505, 531)
MODELS = {"mlp": fm.models.mlp, "cnn_mnist": fm.models.cnn_mnist, "logistic": fm.models.logistic}


def round_time(name: str, sizes: tuple[int, ...], engine: str, grouped: bool, rounds: int) -> float:
    """Return the least time of a round, in seconds."""
    executor.similar_steps = similar_steps if grouped else lambda steps: None  # type: ignore[assignment]
    generator = torch.Generator().manual_seed(0)
    clients = [
        (torch.randn(n, 1, 28, 28, generator=generator), torch.randint(10, (n,), generator=generator)) for n in sizes
    ]
    marks: list[float] = []
    fm.run(
        MODELS[name](),
        fm.FederatedData.from_arrays(clients),
        fm.FedAvg(lr=0.01),
        fm.Full(),
        rounds=rounds + 2,
        local_epochs=1,
        batch_size=10,
        engine=engine,
        device="cpu",
        eval_every=10**6,
        progress=False,
        callbacks=[lambda _: marks.append(perf_counter())],
    )
    return min(b - a for a, b in pairwise(marks[1:]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", default=list(MODELS), help=f"of {', '.join(MODELS)}")
    parser.add_argument("--rounds", type=int, default=6)
    given = parser.parse_args()
    keep_memory()
    print("| model | sizes | client by client, s | together, s | in groups, s | groups / together |")
    print("| --- | --- | ---: | ---: | ---: | ---: |")
    for name in given.models:
        for title, sizes in (("equal", (200,) * 20), ("unequal", SIZES)):
            ways = (("loop", False), ("batched", False), ("batched", True))
            loop, together, groups = (round_time(name, sizes, *way, given.rounds) for way in ways)
            print(
                f"| {name} | {title} | {loop:.3f} | {together:.3f} | {groups:.3f} | {groups / together:.2f} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
