"""FL-Simulator's setting: CIFAR-10, ResNet-18 with GroupNorm, 10 of 100 clients, 5 epochs of batches of 50.

    python benchmarks/fl_simulator.py train dirichlet-0.1:FedAvg dirichlet-0.1:FedSMOO --rounds 300 --out results
    python benchmarks/fl_simulator.py time FedAvg FedSMOO --rounds 10
    python benchmarks/fl_simulator.py export dirichlet-0.6 FL-Simulator/Data

`train` writes one JSON file per run, after every evaluation. `time` prints the median time of a round without and with
an evaluation on all training and test samples, which FL-Simulator makes in every round. `export` writes a split in the
format of https://github.com/woodenchild95/FL-Simulator, so that `peers/fl_simulator_job.py` times that code on it.

Differences from that code, none of which concerns the model, its initial weights, the step sizes or the number of
steps: exactly 10 clients take part in a round, not each with probability 0.1; a split has no sample twice; the norm of
the gradient is clipped before, not after, the corrections of SCAFFOLD, FedCM, FedSpeed and FedSMOO are added to it.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

import fedmos as fm
from fedmos.rng import draws

LR, WEIGHT_DECAY, CLIP, ALPHA, RHO = 0.1, 0.001, 10.0, 0.1, 0.1
MEAN, STD = (0.491, 0.482, 0.447), (0.247, 0.243, 0.262)
# FL-Simulator adds the weight decay to, and clips, α g + (1 − α) D; here both are inside the parentheses of α (g + …).
SCALED = {"weight_decay": WEIGHT_DECAY / ALPHA, "clip": CLIP / ALPHA}

METHODS: Mapping[str, Callable[[], dict[str, Any]]] = {
    "FedAvg": lambda: {"algorithm": fm.FedAvg(lr=LR)},
    "SCAFFOLD": lambda: {"algorithm": fm.Scaffold(lr=LR)},
    "FedCM": lambda: {"algorithm": fm.FedCM(lr=LR, alpha=ALPHA), **SCALED},
    "MoFedSAM": lambda: {"algorithm": fm.FedCM(lr=LR, alpha=ALPHA), "local": fm.local.SAM(rho=RHO), **SCALED},
    "FedSpeed": lambda: {"algorithm": fm.FedSpeed(lr=LR, rho=RHO, lam=0.1)},
    "FedSMOO": lambda: {"algorithm": fm.FedSMOO(lr=LR, rho=RHO, lam=0.1)},
    "FedHBM": lambda: {"algorithm": fm.FedHBM(lr=LR)},
    "FedMoS": lambda: {"algorithm": fm.FedMoS(lr=LR)},
    "FedMoS-0.02": lambda: {"algorithm": fm.FedMoS(lr=0.02)},  # times 1/(1 − β) as far a round as FedAvg with LR
}
SPLITS = {
    "dirichlet-0.6": fm.partition.Dirichlet(alpha=0.6),
    "dirichlet-0.1": fm.partition.Dirichlet(alpha=0.1),
    "one-class": fm.partition.Dirichlet(alpha=0.0),
}


@dataclass(frozen=True, kw_only=True)
class HalfCropped(fm.Augment):
    """FL-Simulator's augmentation: each image is flipped with probability ½, and shifted with probability ½.

    The border is what normalisation makes nearly zero: the mean colour.
    """

    def __call__(self, x: Tensor, key: Tensor) -> Tensor:
        chance, size = draws(key, 4), x.shape[-1]
        shift = (chance[:, :2] * (2 * self.crop + 1)).to(torch.int64) - self.crop
        shift = torch.where(chance[:, 3:] < 0.5, shift, 0)
        places = torch.arange(size, device=x.device)
        rows, columns = places + shift[:, :1], places + shift[:, 1:]
        columns = torch.where(chance[:, 2:3] < 0.5, columns.flip(1), columns)
        inside = ((rows >= 0) & (rows < size))[:, :, None] & ((columns >= 0) & (columns < size))[:, None]
        flat = rows.clamp(0, size - 1)[:, :, None] * size + columns.clamp(0, size - 1)[:, None]
        taken = x.flatten(2).gather(2, flat.flatten(1)[:, None].expand(-1, x.shape[1], -1)).view(x.shape)
        return torch.where(inside[:, None], taken, _mean_colour(x.device))


@cache
def _mean_colour(device: torch.device) -> Tensor:
    """(3, 1, 1), copied once: a copy from the host cannot be part of a CUDA graph."""
    return torch.tensor([round(255 * m) for m in MEAN], dtype=torch.uint8, device=device)[:, None, None]


def federation(split: str, fake: bool = False) -> fm.FederatedData:
    """Return CIFAR-10, or random images of its shape, divided among 100 clients."""
    scheme = SPLITS[split]
    if fake:
        make = torch.Generator().manual_seed(0)
        sets = [(torch.randint(0, 256, (n, 3, 32, 32), dtype=torch.uint8, generator=make), n) for n in (50_000, 10_000)]
        (x, n), (tests, n_test) = sets
        parts = x.split(500)
        labels = torch.arange(n) % 10
        data = fm.FederatedData.from_arrays(
            list(zip(parts, labels.split(500), strict=True)), test=(tests, torch.arange(n_test) % 10)
        )
        return data.declare(normalize=fm.Normalize(mean=MEAN, std=STD), augment=HalfCropped())
    dataset = fm.datasets.load("cifar10").declare(normalize=fm.Normalize(mean=MEAN, std=STD), augment=HalfCropped())
    return dataset.partition(scheme, clients=100, seed=0)


def options(method: str) -> dict[str, Any]:
    """Return the arguments of `fm.run` for a method."""
    shared = {
        "model": fm.models.resnet18(stem="imagenet"),
        "selection": fm.Uniform(m=10, weights="mean"),
        "local_epochs": 5,
        "batch_size": 50,
        "lr_decay": 0.998,
        "weight_decay": WEIGHT_DECAY,
        "clip": CLIP,
    }
    return shared | METHODS[method]()


def train(job: str, given: argparse.Namespace) -> None:
    """Train one run, given as "split:method[:rounds]", and write its results to a file after every evaluation."""
    split, method, *rounds = job.split(":")
    file = Path(given.out) / f"{split}-{method}.json"
    file.parent.mkdir(parents=True, exist_ok=True)
    curve: dict[int, float] = {}
    marks = [time.perf_counter()]
    record: dict[str, Any] = {
        "split": split,
        "method": method,
        "precision": given.precision or "float32",
        "seed": given.seed,
        "device": torch.cuda.get_device_name() if torch.cuda.is_available() else "CPU",
        "torch": torch.__version__,
        "accuracy": curve,
    }

    def write() -> None:
        partial = file.with_suffix(".part")
        partial.write_text(json.dumps(record, indent=1) + "\n", "utf-8")
        os.replace(partial, file)

    def after_round(done: fm.Record) -> None:
        marks.append(time.perf_counter())
        record["rounds"] = done.round
        if done.accuracy is not None:
            curve[done.round] = round(done.accuracy, 4)
            record["train_loss"] = done.train_loss
            record["seconds_per_round"] = round(_plain_rounds(marks, given.eval_every), 4)
            write()
            print(f"{job}: round {done.round}, accuracy {done.accuracy:.4f}, {marks[-1] - marks[0]:.0f} s", flush=True)

    try:
        fm.run(
            data=federation(split, given.fake),
            rounds=int(rounds[0]) if rounds else given.rounds,
            eval_every=given.eval_every,
            precision=given.precision,
            seed=given.seed,
            callbacks=[after_round],
            **options(method),
        )
    except fm.DivergenceError as error:
        record["diverged"] = str(error)
        print(f"{job}: {error}", flush=True)
    write()


def _plain_rounds(marks: list[float], eval_every: int) -> float:
    """Return the median seconds of the rounds after the first two without an evaluation; NaN if there is none."""
    taken = [b - a for t, (a, b) in enumerate(pairwise(marks), 1) if t > 2 and t % eval_every]
    return statistics.median(taken) if taken else float("nan")


def timed(method: str, given: argparse.Namespace) -> None:
    """Print the median seconds of a round without and with an evaluation."""
    marks: list[float] = []
    began = time.perf_counter()
    fm.run(
        data=federation("one-class", given.fake),
        rounds=2 * given.rounds,
        eval_every=2,
        precision=given.precision,
        callbacks=[lambda _: marks.append(time.perf_counter())],
        **options(method),
    )
    taken = [b - a for a, b in pairwise(marks)][2:]  # the first rounds compile and capture
    plain, evaluated = (statistics.median(taken[start::2]) for start in (1, 0))
    line = {"method": method, "precision": given.precision or "float32", "seconds": plain, "evaluated": evaluated}
    more = {"before_round_2": marks[1] - began, "memory_GiB": torch.cuda.max_memory_allocated() / 2**30}
    print(json.dumps(line | more), flush=True)


def export(split: str, folder: Path) -> None:
    """Write a split as FL-Simulator stores it, normalised, under the name of its Dirichlet split 0.6 with seed 20."""
    data = federation(split)
    folder = folder / "CIFAR10_100_20_Dirichlet_0.600"
    folder.mkdir(parents=True, exist_ok=True)
    clients = [data.client(i) for i in range(len(data))]
    np.save(folder / "client_x.npy", torch.stack([data.inputs(x) for x, _ in clients]).numpy())
    np.save(folder / "client_y.npy", torch.stack([y for _, y in clients]).numpy()[..., None])
    assert data.test is not None
    np.save(folder / "test_x.npy", data.inputs(data.test[0]).numpy())
    np.save(folder / "test_y.npy", data.test[1].numpy()[:, None])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    runs = commands.add_parser("train")
    runs.add_argument("jobs", nargs="+", help="SPLIT:METHOD or SPLIT:METHOD:ROUNDS")
    runs.add_argument("--out", default="runs/fl_simulator")
    runs.add_argument("--eval-every", type=int, default=10)
    runs.add_argument("--seed", type=int, default=0)
    times = commands.add_parser("time")
    times.add_argument("methods", nargs="+", choices=list(METHODS))
    for command, rounds in ((runs, 300), (times, 10)):
        command.add_argument("--rounds", type=int, default=rounds)
        command.add_argument("--precision", choices=["tf32", "bf16"])
        command.add_argument("--fake", action="store_true", help="random images instead of CIFAR-10")
    exported = commands.add_parser("export")
    exported.add_argument("split", choices=list(SPLITS))
    exported.add_argument("folder", type=Path)
    given = parser.parse_args()
    if given.command == "train":
        for job in given.jobs:
            train(job, given)
    elif given.command == "time":
        for method in given.methods:
            timed(method, given)
    else:
        export(given.split, given.folder)


if __name__ == "__main__":
    main()
