"""Synchronous against asynchronous rounds over Flower where one client is slow, with real processes on loopback.

    python benchmarks/buffered.py [--seconds 0.5] [--factor 10] [--steps 20] [--runs 2]

Four clients, TLS and node authentication. An answer takes each client `--seconds` more than its computation, and the
last client `--factor` times that: a pause, so that the result does not depend on the number of cores. Runs alternate
in one deployment.
"""

from __future__ import annotations

import argparse
import math
import os
import tempfile
from pathlib import Path

import torch
from flower_apps import run_app, write_app

from fedmos.flower.local.local_deployment import LocalDeployment
from fedmos.run.result import Result

_APPS = """\
from time import sleep

import torch

import fedmos as fm
from fedmos.flower import Deploy, client_app, server_app

NAMES = ["a", "b", "c", "d"]
SECONDS = dict.fromkeys(NAMES, {seconds}) | {{"d": {seconds} * {factor}}}
GENERATOR = torch.Generator().manual_seed(0)
CENTRES = torch.randn(10, 64, generator=GENERATOR)


def samples(classes, n):
    y = classes[torch.randint(len(classes), (n,), generator=GENERATOR)]
    return CENTRES[y] + 2 * torch.randn(n, 64, generator=GENERATOR), y


PARTS = {{name: samples(torch.randperm(10, generator=GENERATOR)[:5], 400) for name in NAMES}}
TEST = samples(torch.arange(10), 1000)


def load(name):
    sleep(SECONDS[name])
    return PARTS[name]


run = {{
    "model": fm.models.mlp(features=64),
    "algorithm": fm.FedAvg(lr=0.1),
    "rounds": {steps},
    "local_steps": 10,
    "batch_size": 32,
    "engine": "loop",
    "deploy": Deploy(clients=NAMES),
    **{options},
}}
server = server_app(run, test=TEST)
client = client_app(run, data=load)
"""
_OPTIONS = {
    "synchronous": '{"selection": fm.Full()}',
    "Buffer(size=3, concurrency=4)": '{"selection": fm.Uniform(m=1), "buffer": fm.Buffer(3, 4)}',
    "Buffer(size=2, concurrency=4)": '{"selection": fm.Uniform(m=1), "buffer": fm.Buffer(2, 4)}',
}
_TARGET = 0.7
"""An accuracy."""


def play(deployment: LocalDeployment, folder: Path, **values: object) -> Result:
    app = write_app(folder / "app", {"apps": _APPS.format(**values)})
    return Result.load(run_app(deployment, app, folder / "run"))


def seconds_to(result: Result, accuracy: float) -> float:
    """Return the seconds up to the first server step with this accuracy."""
    total = 0.0
    for record in result.history:
        total += record.seconds
        if record.accuracy >= accuracy:
            return total
    return math.inf


def row(name: str, results: list[Result]) -> str:
    times = [sum(record.seconds for record in result.history) for result in results]
    reached = [round(seconds_to(result, _TARGET)) for result in results]
    updates = [sum(len(record.cohort) for record in result.history) for result in results]
    slow = [sum(3 in record.cohort for record in result.history) for result in results]
    accuracy = [100 * result.history[-1].accuracy for result in results]
    cells = (f"{min(times):.0f} to {max(times):.0f}", reached, updates, slow, [round(value, 1) for value in accuracy])
    return "| " + " | ".join([name, *(str(cell).strip("[]") for cell in cells)]) + " |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=0.5)
    parser.add_argument("--factor", type=float, default=10.0)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--runs", type=int, default=2)
    given = parser.parse_args()
    print(f"torch {torch.__version__}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f} before")
    print(f"{given.steps} server steps; pauses of {given.seconds:g} s, and {given.factor:g} times that\n")
    found: dict[str, list[Result]] = {name: [] for name in _OPTIONS}
    with tempfile.TemporaryDirectory(prefix="fedmos-buffered-") as scratch:
        folder = Path(scratch)
        with LocalDeployment(folder / "deployment", list("abcd")) as deployment:
            for part in range(given.runs):
                for number, (name, options) in enumerate(_OPTIONS.items()):
                    values = {"seconds": given.seconds, "factor": given.factor, "steps": given.steps}
                    found[name].append(play(deployment, folder / f"{part}-{number}", options=options, **values))
    print(f"| server | s | s to {100 * _TARGET:g} % | updates | of the slow client | accuracy, % |")
    print("|---|---:|---:|---:|---:|---:|")
    for name, results in found.items():
        print(row(name, results), flush=True)


if __name__ == "__main__":
    main()
