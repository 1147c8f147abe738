"""pfl's benchmark of central differential privacy: CIFAR-10, 1,000 users with 50 images, 50 users a round.

    python benchmarks/private_pfl.py iid --seeds 0 1 2 --out runs/studies/private-pfl
    python benchmarks/private_pfl.py dirichlet --method FedAvgM --minutes 8
    python benchmarks/private_pfl.py iid --no-private               # neither clipped nor noisy
    python benchmarks/private_pfl.py iid --images 500 --rounds 3    # 10 users with the first 500 images, to try it out
    python benchmarks/private_pfl.py iid --rounds 3000 --noise-only # the noise multipliers of both ways to account

Settings are those of benchmarks/image_classification of https://github.com/apple/pfl-research at c9d1f32: `simple_cnn`,
an epoch of batches of 10 with step size 0.1, updates clipped to norm 0.4 and averaged with equal weights, 3,000 rounds
(1,500 for IID users without privacy), ε = 2, δ = 1e-6. `peers/pfl_private_job.py` runs pfl's own code with the same
users, network and arguments, and writes the same files: one per seed, again after every evaluation.

What ε means: as in pfl, it is that of an imagined federation, of 1,000,000 users who take part in a round with
probability 0.001. There, the sum of about 1,000 updates gets noise of standard deviation 0.4 z. Here, the sum of 50
updates of 1,000 users gets 50/1000 of that, so that the mean update has the same noise. For the 1,000 users that are
simulated, ε is far larger. As pfl does, this program computes z from privacy loss distributions; `--accountant rdp`
composes Rényi divergences, and gives a larger z.

Differences to pfl: cohorts have 50 distinct users, where pfl draws with replacement, and the order of a user's images
is drawn anew in every round. `seconds_per_round` includes evaluations: it is the median over the intervals between two
of them, without the first. Evaluations cover training and test images; in pfl, test images and the users of the round.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from torch import nn

import fedmos as fm

STARTED = time.monotonic()
USER_IMAGES, COHORT, LOCAL_LR, BATCH = 50, 50, 0.1, 10
CLIP, DELTA, NOISE_COHORT, POPULATION = 0.4, 1e-6, 1000, 10**6
SPLITS = {"iid": fm.partition.IID(), "dirichlet": fm.partition.Dirichlet(alpha=0.1)}
METHODS = {"FedAvg": fm.FedAvg, "FedAvgM": fm.FedAvgM, "FedMoS": fm.FedMoS}
NORMALIZE = fm.Normalize((0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616))
"""Means and standard deviations of the channels of the training images."""


def parser(doc: str | None, methods: Sequence[str]) -> argparse.ArgumentParser:
    """Return the arguments of both programs."""
    out = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    out.add_argument("split", choices=list(SPLITS))
    out.add_argument("--method", choices=methods, default="FedAvg")
    out.add_argument("--private", action=argparse.BooleanOptionalAction, default=True)
    out.add_argument("--epsilon", type=float, default=2.0)
    out.add_argument("--rounds", type=int, help="default: those of pfl, 1,500 for iid without privacy, else 3,000")
    out.add_argument("--seeds", type=int, nargs="+", default=[0])
    out.add_argument("--out", default="runs/studies/private-pfl")
    out.add_argument("--eval-every", type=int, default=50, help="rounds between evaluations")
    out.add_argument("--minutes", type=float, default=1e9, help="end after so many minutes of the process")
    default = "tf32" if torch.cuda.is_available() else "float32"
    out.add_argument("--precision", choices=["tf32", "bf16", "float32"], default=default)
    out.add_argument("--images", type=int, help="use the first so many images")
    out.add_argument("--timed", action="store_true", help="nothing else runs here: the run is for the table of times")
    out.add_argument("--noise-only", action="store_true", help="print the noise multiplier and train nothing")
    return out


def parsed(arguments: argparse.ArgumentParser) -> argparse.Namespace:
    """Return the arguments, with pfl's number of rounds by default."""
    given = arguments.parse_args()
    if given.rounds is None:
        given.rounds = 1500 if given.split == "iid" and not given.private else 3000
    return given


def federation(given: argparse.Namespace, seed: int) -> fm.FederatedData:
    """Return CIFAR-10 divided among users with 50 images each."""
    dataset = fm.datasets.load("cifar10").declare(normalize=NORMALIZE)
    if n := given.images:
        dataset = replace(dataset, x_train=dataset.x_train[:n], y_train=dataset.y_train[:n]).fewer_tests(n)
    return dataset.partition(SPLITS[given.split], clients=len(dataset.y_train) // USER_IMAGES, seed=seed)


def cohort_size(data: fm.FederatedData) -> int:
    return min(COHORT, len(data))


def network(seed: int) -> nn.Module:
    """Return pfl's `simple_cnn` for 32×32 images, with Glorot weights, 1,626,442 parameters."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        net = nn.Sequential(
            nn.Conv2d(3, 32, 3),
            nn.ReLU(),
            nn.Conv2d(32, 64, 3),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Dropout(0.25),
            nn.Flatten(),
            nn.Linear(64 * 14 * 14, 128),
            nn.ReLU(),
            nn.Dropout(0.5),
            nn.Linear(128, 10),
        )
        for layer in net:
            if isinstance(layer, nn.Conv2d | nn.Linear):
                nn.init.xavier_uniform_(layer.weight)
        return net


def noise_multiplier(epsilon: float, rounds: int, accountant: str) -> float:
    """Return z, the noise of the sum of the imagined cohort over the clipping bound."""
    selection = fm.Bernoulli(rate=NOISE_COHORT / POPULATION)
    how: dict[str, Any] = {"delta": DELTA, "selection": selection, "clients": POPULATION, "accountant": accountant}
    return fm.privacy.plan(epsilon, rounds=rounds, **how)


class Curve:
    """The test accuracy of a run, written to a file after every evaluation.

    Args:
        code: Whose code trains.
        given: The arguments of the program.
        seed: The seed of the run.
        noise: The noise multiplier z; None without privacy.
        accountant: How z was computed.
    """

    def __init__(
        self, code: str, given: argparse.Namespace, seed: int, noise: float | None, accountant: str | None
    ) -> None:
        kind = f"epsilon{given.epsilon:g}" if given.private else "plain"
        name = f"{code}-{given.split}-{kind}-{given.method}-{seed}{'-timed' if given.timed else ''}"
        self.file = Path(given.out) / f"{name}.json"
        self.file.parent.mkdir(parents=True, exist_ok=True)
        self.limit = 60 * given.minutes
        self.accuracy: dict[int, float] = {}
        self.marks: list[tuple[int, float]] = []
        self.record: dict[str, Any] = {
            "study": "private-pfl",
            "code": code,
            "split": given.split,
            "method": given.method,
            "epsilon": given.epsilon if given.private else None,
            "delta": DELTA if given.private else None,
            "noise_multiplier": noise,
            "accountant": accountant if given.private else None,
            "seed": seed,
            "precision": given.precision,
            "device": torch.cuda.get_device_name() if torch.cuda.is_available() else "CPU",
            "torch": torch.__version__,
            "images": given.images or 50_000,
            "timed": given.timed,
            "planned": given.rounds,
            "rounds": 0,
            "accuracy": self.accuracy,
        }

    def add(self, t: int, accuracy: float) -> None:
        """Add the accuracy after round t."""
        self.marks.append((t, time.perf_counter()))
        self.accuracy[t] = round(accuracy, 5)
        best = max(self.accuracy, key=self.accuracy.__getitem__)
        taken = [(b - a) / (later - earlier) for (earlier, a), (later, b) in pairwise(self.marks)][1:]
        self.record |= {
            "rounds": t,
            "last": self.accuracy[t],
            "best": {"round": best, "accuracy": self.accuracy[best]},
            "seconds_per_round": round(statistics.median(taken), 5) if taken else None,
            "seconds": round(time.monotonic() - STARTED, 1),
        }
        self.write()
        print(f"{self.file.stem}: round {t}, {100 * accuracy:.2f} %, {self.record['seconds']} s", flush=True)

    def is_late(self) -> bool:
        return time.monotonic() - STARTED > self.limit

    def write(self) -> None:
        """Replace the file, so that an interrupted run leaves a whole one."""
        partial = self.file.with_suffix(".part")
        partial.write_text(json.dumps(self.record, indent=1) + "\n", "utf-8")
        os.replace(partial, self.file)


class Watch(fm.Callback):
    """Adds evaluations of `fm.run` to a curve, and ends the run at the time limit."""

    def __init__(self, curve: Curve) -> None:
        self.curve = curve

    def on_round(self, record: fm.Record) -> None:
        if record.accuracy is not None:
            self.curve.add(record.round, record.accuracy)

    def should_stop(self, history: fm.History) -> bool:
        return self.curve.is_late()


def train(given: argparse.Namespace, seed: int, noise: float | None) -> None:
    data = federation(given, seed)
    size = cohort_size(data)
    privacy = None
    if noise is not None:
        scaled = noise * size / NOISE_COHORT
        privacy = fm.privacy.Gaussian(clip=CLIP, noise_multiplier=scaled, delta=DELTA)
    curve = Curve("fedmos", given, seed, noise, given.accountant)
    try:
        fm.run(
            network(seed),
            data,
            METHODS[given.method](lr=LOCAL_LR),
            fm.Uniform(m=size),
            rounds=given.rounds,
            local_epochs=1,
            batch_size=BATCH,
            privacy=privacy,
            eval_every=given.eval_every,
            precision=None if given.precision == "float32" else given.precision,
            engine="batched",
            seed=seed,
            callbacks=[Watch(curve)],
            progress=False,
        )
    except fm.DivergenceError as error:
        curve.record["diverged"] = str(error)
        curve.write()
        print(f"{curve.file.stem}: {error}", flush=True)


def main() -> None:
    arguments = parser(__doc__, list(METHODS))
    arguments.add_argument("--accountant", choices=["pld", "rdp"], default="pld")
    given = parsed(arguments)
    if given.noise_only:
        found = {name: noise_multiplier(given.epsilon, given.rounds, name) for name in ("pld", "rdp")}
        print(json.dumps({"code": "fedmos", "rounds": given.rounds, **found}))
        return
    noise = noise_multiplier(given.epsilon, given.rounds, given.accountant) if given.private else None
    for seed in given.seeds:
        train(given, seed, noise)


if __name__ == "__main__":
    main()
