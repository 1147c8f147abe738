"""PFLlib's table for Fashion-MNIST: 20 clients, pathological and Dirichlet split, seven methods.

    python benchmarks/pfllib.py train pathological:FedAvg dirichlet:Ditto --rounds 2000 --minutes 8 --out runs/pfllib
    python benchmarks/pfllib.py time FedAvg SCAFFOLD Ditto --rounds 4

`train` writes one JSON file per run, again after every evaluation, and ends after `--minutes` of the process. With
`--folders FOLDER`, runs are stored there and continue when the command is repeated, also on another machine. The
accuracy is PFLlib's: correct answers over all test samples of all clients, under the clients' own models for Local,
Ditto, FedPer and FedRep. PFLlib reports the best of all rounds. `time` prints the median time of a round without and
with an evaluation; `peers/pfllib_job.py` prints that of PFLlib's code. `--images 2000` uses so few of the 70,000
images, to try it out.

Settings are those of https://github.com/TsingZ0/PFLlib at d832e76 (defaults of system/main.py, dataset_utils.py); the
weights of FedProx's and Ditto's terms are not given with its table. As there, SCAFFOLD counts all clients alike, and
the others count by training samples; FedRep trains the head for an epoch of each client, then the rest for another.
Differences: other random numbers, a last batch of fewer than 10 samples counts as a step (PFLlib leaves it out), and
test samples have the classes of the client's training samples in proportion.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor

import fedmos as fm
from fedmos.experiments.reproduce.pfllib import Pathological, cnn, fashion_mnist

STARTED = time.monotonic()
LR, MU, LAMBDA, CLIENTS = 0.005, 0.001, 0.001, 20
HEAD = "9.*"
"""The parameters of the last layer, which are the last ones of the model."""
HEAD_SIZE = 512 * 10 + 10


@dataclass(frozen=True, kw_only=True)
class FedRep(fm.FedAvg):
    """FedRep as PFLlib trains it: the first half of a client's steps is an epoch of the head, the second of the rest.

    `fm.Personal(..., steps=...)` does so with the same number of steps for all clients.
    """

    client_state: ClassVar[Sequence[str]] = ("own",)

    def init(self, x: Tensor) -> dict[str, Tensor]:
        return {"own": x}

    def start(self, c: fm.ClientContext) -> Tensor:
        return _joined(c.x, c.own["own"])

    def step(
        self, y: Tensor, s: dict[str, Any], c: fm.ClientContext, grad: fm.Gradient, k: int
    ) -> tuple[Tensor, dict[str, Any]]:
        g, head = grad(y), (2 * k < c.K).to(y.dtype)
        rest = y[..., :-HEAD_SIZE] - c.lr * (1 - head) * g[..., :-HEAD_SIZE]
        return torch.cat([rest, y[..., -HEAD_SIZE:] - c.lr * head * g[..., -HEAD_SIZE:]], -1), s

    def finish(
        self, y: Tensor, s: dict[str, Any], c: fm.ClientContext, grad: fm.Gradient
    ) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        return {"delta": _joined(y - c.x, torch.zeros_like(y))}, {"own": y}

    def personal(self, c: fm.ClientContext) -> Tensor:
        return _joined(c.x, c.own["own"])


def _joined(x: Tensor, own: Tensor) -> Tensor:
    """Return a model whose head is the client's own."""
    own = own[..., -HEAD_SIZE:]
    return torch.cat([x[..., :-HEAD_SIZE].expand(*own.shape[:-1], -1), own], -1)


METHODS: Mapping[str, Callable[[], dict[str, Any]]] = {
    "Local": lambda: {"algorithm": fm.LocalOnly(lr=LR)},
    "FedAvg": lambda: {"algorithm": fm.FedAvg(lr=LR)},
    "FedProx": lambda: {"algorithm": fm.FedProx(lr=LR, mu=MU)},
    "SCAFFOLD": lambda: {"algorithm": fm.Scaffold(lr=LR)},
    "Ditto": lambda: {"algorithm": fm.Ditto(lr=LR, lam=LAMBDA)},
    "FedPer": lambda: {"algorithm": fm.FedAvg(lr=LR), "personal": [HEAD]},
    "FedRep": lambda: {"algorithm": FedRep(lr=LR), "local_epochs": 2},
}
EQUAL = {"SCAFFOLD"}
"""Methods in which all clients count alike."""
SPLITS = {
    "pathological": Pathological(),
    "dirichlet": fm.partition.DirichletByClass(alpha=0.1, least=40),
}


def federation(split: str, images: int | None = None) -> fm.FederatedData:
    """Return Fashion-MNIST divided among the clients, of which each holds out a quarter for tests."""
    dataset = fashion_mnist()
    if images is not None:
        dataset = replace(dataset, x_train=dataset.x_train[:images], y_train=dataset.y_train[:images])
    return dataset.partition(SPLITS[split], clients=CLIENTS, seed=0, holdout=0.25)


def options(split: str, method: str, images: int | None = None) -> dict[str, Any]:
    """Return the arguments of `fm.run` for a split and a method."""
    data = federation(split, images)
    if method in EQUAL:
        data = replace(data, importance=torch.full((CLIENTS,), 1 / CLIENTS, dtype=torch.float64))
    shared = {
        "model": cnn(),
        "data": data,
        "selection": fm.Full(),
        "local_epochs": 1,
        "batch_size": 10,
        "engine": "batched",
        "progress": False,
    }
    return shared | METHODS[method]()


class Curve(fm.Callback):
    """Writes the accuracy of the clients to a file after every evaluation, and ends the run at a time limit."""

    def __init__(self, split: str, method: str, given: argparse.Namespace) -> None:
        self.file = Path(given.out) / f"{split}-{method}.json"
        self.file.parent.mkdir(parents=True, exist_ok=True)
        self.every, self.limit = given.eval_every, 60 * given.minutes
        self.accuracy: dict[int, float] = {}
        self.marks = [time.perf_counter()]
        self.record: dict[str, Any] = {
            "split": split,
            "method": method,
            "precision": given.precision,
            "seed": given.seed,
            "device": torch.cuda.get_device_name() if torch.cuda.is_available() else "CPU",
            "torch": torch.__version__,
            "images": given.images or 70_000,
            "rounds": 0,
            "accuracy": self.accuracy,
        }
        if given.folders is not None and self.file.exists():
            before = json.loads(self.file.read_text("utf-8"))["accuracy"]
            self.accuracy.update({int(t): value for t, value in before.items()})

    def on_round(self, record: fm.Record) -> None:
        self.marks.append(time.perf_counter())
        self.record["rounds"] = record.round
        scores = record.client_metrics or {}
        found = scores.get("personal_accuracy_weighted", scores.get("client_accuracy_weighted"))
        if found is None:
            return
        self.accuracy[record.round] = round(found, 5)
        best = max(self.accuracy, key=self.accuracy.__getitem__)
        self.record["best"] = {"round": best, "accuracy": self.accuracy[best]}
        if "personal_accuracy_weighted" in scores:
            self.record["global"] = round(scores["client_accuracy_weighted"], 5)
        plain = [b - a for t, (a, b) in enumerate(pairwise(self.marks), 1) if t > 2 and t % self.every]
        self.record["seconds_per_round"] = round(statistics.median(plain), 4) if plain else None
        self.record["seconds"] = round(time.monotonic() - STARTED, 1)
        self.write()
        name = f"{self.record['split']}:{self.record['method']}"
        text = f"{100 * found:.2f} %, best {100 * self.accuracy[best]:.2f} %, {self.record['seconds']} s"
        print(f"{name}: round {record.round}, {text}", flush=True)

    def should_stop(self, history: fm.History) -> bool:
        return time.monotonic() - STARTED > self.limit

    def write(self) -> None:
        """Replace the file, so that an interrupted run leaves a whole one."""
        partial = self.file.with_suffix(".part")
        partial.write_text(json.dumps(self.record, indent=1) + "\n", "utf-8")
        os.replace(partial, self.file)


def train(job: str, given: argparse.Namespace) -> None:
    """Train one run, given as "split:method[:rounds]"."""
    split, method, *rounds = job.split(":")
    curve = Curve(split, method, given)
    try:
        fm.run(
            **options(split, method, given.images),
            rounds=int(rounds[0]) if rounds else given.rounds,
            eval_every=10**6,
            evaluate_clients=given.eval_every,
            precision=None if given.precision == "float32" else given.precision,
            seed=given.seed,
            callbacks=[curve],
            **({} if given.folders is None else {"out": given.folders / f"{split}-{method}", "resume": True}),
        )
    except fm.DivergenceError as error:
        curve.record["diverged"] = str(error)
        print(f"{job}: {error}", flush=True)
    curve.write()


def timed(method: str, given: argparse.Namespace) -> None:
    """Print the median seconds of a round without and with an evaluation of all clients."""
    marks: list[float] = []
    began = time.perf_counter()
    fm.run(
        **options(given.split, method, given.images),
        rounds=2 * given.rounds + 2,
        eval_every=10**6,
        evaluate_clients=2,
        precision=None if given.precision == "float32" else given.precision,
        callbacks=[lambda _: marks.append(time.perf_counter())],
    )
    taken = [b - a for a, b in pairwise(marks)][1:-1]  # the first rounds compile and capture; the last one also ends
    plain, evaluated = (statistics.median(taken[start::2]) for start in (0, 1))
    line = {"method": method, "split": given.split, "precision": given.precision}
    times = {"seconds": round(plain, 4), "evaluated": round(evaluated, 4), "before_round_2": round(marks[0] - began, 1)}
    where = torch.cuda.get_device_name() if torch.cuda.is_available() else "CPU"
    print(json.dumps({"code": "fedmos", **line, "device": where, **times}), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    runs = commands.add_parser("train")
    runs.add_argument("jobs", nargs="+", help="SPLIT:METHOD or SPLIT:METHOD:ROUNDS")
    runs.add_argument("--out", default="runs/pfllib")
    runs.add_argument("--folders", type=Path, help="folder of the runs' checkpoints")
    runs.add_argument("--eval-every", type=int, default=5, help="rounds between evaluations")
    runs.add_argument("--minutes", type=float, default=1e9, help="end after so many minutes of the process")
    runs.add_argument("--seed", type=int, default=0)
    times = commands.add_parser("time")
    times.add_argument("methods", nargs="+", choices=list(METHODS))
    times.add_argument("--split", choices=list(SPLITS), default="pathological")
    default = "tf32" if torch.cuda.is_available() else "float32"
    for command, rounds in ((runs, 2000), (times, 5)):
        command.add_argument("--rounds", type=int, default=rounds)
        command.add_argument("--precision", choices=["tf32", "bf16", "float32"], default=default)
        command.add_argument("--images", type=int, help="use the first so many images")
    given = parser.parse_args()
    if given.command == "train":
        for job in given.jobs:
            train(job, given)
    else:
        for method in given.methods:
            timed(method, given)


if __name__ == "__main__":
    main()
