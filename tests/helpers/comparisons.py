"""A small comparison, and its numbers computed again from the files, by other means than the library's."""

import json
import statistics
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import Any
from unittest import mock

from fedmos.config import schema as config
from fedmos.experiments import compare as comparing
from fedmos.experiments import executors
from fedmos.experiments.progress import ComparisonObserver
from fedmos.experiments.table import ComparisonTable

METHODS = [
    {"label": "FedAvg", "algorithm": {"name": "FedAvg", "lr": 0.05}, "selection": {"name": "Uniform", "m": 5}},
    {
        "label": "<SCAFFOLD> & co",
        "algorithm": {"name": "Scaffold", "lr": 0.1},
        "selection": {"name": "Uniform", "m": 5},
    },
    {
        "label": "hopeless",
        "algorithm": {"name": "FedAvg", "lr": 0.01, "server_lr": 1e-6},
        "selection": {"name": "MD", "m": 5},
    },
]
SETTINGS = {
    "title": "A <small> one",
    "rounds": 8,
    "local_steps": 2,
    "batch_size": 4,
    "seeds": [0, 1, 2],
    "target": {"train_loss": 2.1},
    "system": {"speed": {"name": "LogNormal", "median": 100.0}},
    "data": {"name": "digits", "clients": 20, "partition": {"name": "ByClass", "classes": 2}},
    "model": {"name": "logistic", "features": 64},
    "methods": METHODS,
}


def settings(**changes) -> config.CompareConfig:
    table = {k: v for k, v in (SETTINGS | changes).items() if v is not None}
    return config.parse(config.CompareConfig, table)


class InlineExecutor:
    """A pool whose tasks run at once, in this process: it takes seconds to start another and to import torch there."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        pass

    def __enter__(self) -> "InlineExecutor":
        return self

    def __exit__(self, *error: object) -> None:
        pass

    def submit(self, function: Callable, *arguments: Any) -> Future:
        future: Future = Future()
        try:
            future.set_result(function(*arguments))
        except Exception as error:
            future.set_exception(error)
        return future

    def shutdown(self, **options: Any) -> None:
        pass


def compare(given: config.CompareConfig, out: Path, observer: ComparisonObserver | None = None) -> ComparisonTable:
    """`compare` with one worker, which is this process."""
    with mock.patch.object(executors, "ProcessPoolExecutor", InlineExecutor):
        return comparing.compare(given, out, observer, workers=1)


def run(out: Path, **changes) -> ComparisonTable:
    return compare(settings(**changes), out)


def lines(folder: Path) -> list[dict]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def expected(out: Path, method: dict, number: int, metric: str, target: float, seeds) -> dict:
    """What the table should say of a method."""
    found = {"rounds": [], "megabytes_down": [], "megabytes_up": [], "megabytes": [], "seconds": [], "final": []}
    for seed in seeds:
        records = lines(out / "runs" / f"{number}-lr{method['algorithm']['lr']:g}-seed{seed}")
        down = up = 0
        hit = None
        for record in records:
            down, up = down + record["bytes_down"], up + record["bytes_up"]
            value = record[metric]
            good = value is not None and (value <= target if "loss" in metric else value >= target)
            if good and hit is None:
                hit = (record["round"], down / 1e6, up / 1e6, (down + up) / 1e6, record["clock"])
        for name, value in zip(found, hit or [None] * 5, strict=False):
            found[name].append(value)
        found["final"].append([r[metric] for r in records if r[metric] is not None][-1])
    known = {name: [v for v in values if v is not None] for name, values in found.items()}
    return {
        "per_seed": found,
        "mean": {name: statistics.mean(v) if v else None for name, v in known.items()},
        "std": {name: statistics.stdev(v) if len(v) > 1 else None for name, v in known.items()},
    }
