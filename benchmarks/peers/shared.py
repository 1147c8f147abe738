"""Shared by the jobs in peers/: clients, command line, and the line of JSON that they print."""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import torch
from torch import Tensor, nn

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from engines import JOBS, Lean, Ours, by_hand, precision, synchronise

from fedmos.engine.malloc import keep_memory

LR = 0.01


@dataclass(frozen=True)
class Client:
    samples: int
    batches: list[list[Tensor]]  # as many as local steps, each [inputs, labels] with as many samples as a batch


@cache
def clients(name: str, device: str) -> list[Client]:
    """Return the clients of a job, normalised, on the device and cut into batches beforehand.

    A client with fewer samples than its steps use repeats them, so that every client takes all steps on full batches.
    The other simulators are thus timed without drawing or gathering batches, which fedmos does in every step.
    """
    keep_memory()
    job = JOBS[name]
    data = job.federation()
    out = []
    for i in range(len(data)):
        x, y = data.client(i)
        x, y = data.inputs(x).to(device), y.to(device)
        n = len(x)
        batches = []
        for k in range(job.steps):
            start = k * job.batch
            if start + job.batch <= n:
                chosen: slice | Tensor = slice(start, start + job.batch)
            else:
                chosen = torch.arange(start, start + min(job.batch, n), device=device) % n
            batches.append([x[chosen], y[chosen]])
        out.append(Client(n, batches))
    return out


@cache
def model(name: str) -> nn.Module:
    return JOBS[name].model()


class Marks:
    """The times at which rounds ended. The first is the end or the start of the first round, which is warm-up."""

    def __init__(self) -> None:
        self.at: list[float] = []

    def mark(self) -> None:
        synchronise()
        self.at.append(time.perf_counter())

    def rounds(self, last: int) -> list[float]:
        taken = [b - a for a, b in zip(self.at, self.at[1:], strict=False)]
        return taken[-last:]


def parser(doc: str | None) -> argparse.ArgumentParser:
    out = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    out.add_argument("job", choices=list(JOBS))
    out.add_argument("--rounds", type=int, default=7)
    out.add_argument("--warm", type=int, default=2, help="warm-up rounds, at least 1")
    return out


def report(peer: str, name: str, device: str, times: Sequence[float], **more: str) -> None:
    where = torch.cuda.get_device_name() if device == "cuda" else f"CPU, {torch.get_num_threads()} threads"
    line = {"peer": peer, "job": name, "seconds": statistics.median(times), "times": [round(t, 6) for t in times]}
    print(json.dumps(line | {"torch": torch.__version__, "device": where} | more), flush=True)


def device() -> str:
    return "cuda" if torch.cuda.is_available() else "cpu"


__all__ = [
    "JOBS",
    "LR",
    "Client",
    "Lean",
    "Marks",
    "Ours",
    "by_hand",
    "clients",
    "device",
    "keep_memory",
    "model",
    "parser",
    "precision",
    "report",
]
