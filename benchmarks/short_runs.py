"""Whole short runs, `engine="auto"` beside a hand-written loop over clients.

    python benchmarks/short_runs.py mnist mlp bert-tiny gru --rounds 60 600 --passes 5

Every run has a process of its own; the ways take turns. Everything from the call of `fm.run` to its return counts:
trials of engines, compilation, preparation, all rounds, and the evaluation of the last one, which the loop does, too.
Imports and making the data do not count. Without --warm, a run finds neither measurements nor compiled programs of an
earlier one. Ratios are medians over passes, of the loop's time to the other's in the same pass.

    lean       the hand-written loop of engines.py
    auto       engine="auto"
    loop, batched, compiled   these engines
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import engines
import numpy as np
import torch
import torch.nn.functional as F
from networks import NETWORKS, STEPS, Network, logits
from torch import Tensor, nn

import fedmos as fm
from fedmos.engine.malloc import keep_memory


@dataclass(frozen=True)
class NetworkJob:
    """A network of networks.py in its small size, as a job of engines.py."""

    network: Network
    steps: int = STEPS

    @property
    def clients(self) -> int:
        return self.network.small.clients

    cohort = clients

    @property
    def batch(self) -> int:
        return self.network.small.batch

    def model(self) -> nn.Module:
        torch.manual_seed(0)
        return self.network.model(self.network.small)

    def federation(self) -> fm.FederatedData:
        return self.network.federation(self.network.small)


class LeanRun(engines.Lean):
    """The hand-written loop with an evaluation at its end."""

    def gradient(self, x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
        loss = F.cross_entropy(logits(self.model(x)), y)
        return torch.autograd.grad(loss, self.parameters)

    def play(self, rounds: int) -> None:
        for _ in range(rounds):
            self.round()
        self.put(self.x)
        x, y = (torch.cat(v) for v in zip(*self.clients, strict=True))
        with torch.no_grad():
            outputs = [logits(self.model(some)) for some in x.split(1024)]
            F.cross_entropy(torch.cat(outputs), y).item()


def find_job(name: str) -> Any:
    return engines.JOBS[name] if name in engines.JOBS else NetworkJob(NETWORKS[name])


def child(way: str, name: str, algorithm: str, rounds: int) -> dict[str, Any]:
    """Play one run in this process; return its time and what was chosen."""
    job, chosen = find_job(name), ""
    keep_memory()
    torch.ones(8, 8) @ torch.ones(8, 8)  # starts threads
    if way == "lean":
        lean = LeanRun(job, algorithm, "cpu")
        began = time.perf_counter(), time.process_time()
        lean.play(rounds)
    else:
        arguments = engines.Ours(job, algorithm, "cpu", way, None).arguments
        if way == "compiled":
            os.environ["FEDMOS_ENGINE"] = "compiled"
        began = time.perf_counter(), time.process_time()
        result = fm.run(**arguments | {"rounds": rounds, "eval_every": rounds})
        chosen = (
            result.info["engine"] + (", compiled: " if result.info["compiled"] else ": ") + result.info["engine_why"]
        )
    seconds, cpu = (now - then for now, then in zip((time.perf_counter(), time.process_time()), began, strict=True))
    return {"seconds": seconds, "cpu": cpu, "chosen": chosen}


def play(way: str, name: str, algorithm: str, rounds: int, caches: Path) -> dict[str, Any]:
    """Play one run in another process."""
    given = [str(v) for v in (Path(__file__).resolve(), "--child", way, name, algorithm, rounds)]
    environment = os.environ | {"FEDMOS_CACHE": str(caches), "TORCHINDUCTOR_CACHE_DIR": str(caches / "inductor")}
    done = subprocess.run([sys.executable, *given], env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(done.stderr[-2000:])
    out: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return out


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("jobs", nargs="*", default=["mnist", "mlp", "bert-tiny", "gru"])
    parser.add_argument("--rounds", nargs="*", type=int, default=[60, 600])
    parser.add_argument("--passes", type=int, default=3)
    parser.add_argument("--algorithms", nargs="*", default=["FedAvg"], choices=list(engines.ALGORITHMS))
    parser.add_argument("--ways", nargs="*", default=["lean", "auto"])
    parser.add_argument("--warm", action="store_true", help="keep measurements and compiled programs between passes")
    given = parser.parse_args()
    print(f"torch {torch.__version__}, {torch.get_num_threads()} threads; {given.passes} passes\n")
    headings = ("job", "algorithm", "rounds", "way", "s in all", "ms a round", "× lean", "× lean, CPU time", "chosen")
    print("| " + " | ".join(headings) + " |\n" + "|---" * len(headings) + "|")
    for name in given.jobs:
        for algorithm in given.algorithms:
            for rounds in given.rounds:
                compare(name, algorithm, rounds, given)


def compare(name: str, algorithm: str, rounds: int, given: argparse.Namespace) -> None:
    found: dict[str, list[dict[str, Any]]] = {way: [] for way in given.ways}
    with tempfile.TemporaryDirectory() as kept:
        for number in range(given.passes):
            for way in given.ways if number % 2 == 0 else reversed(given.ways):
                with tempfile.TemporaryDirectory() as empty:
                    caches = Path(kept if given.warm else empty)
                    found[way].append(play(way, name, algorithm, rounds, caches))
    for way, runs in found.items():
        ratios = [ratio(found.get("lean"), runs, kind) for kind in ("seconds", "cpu")]
        seconds = statistics.median(run["seconds"] for run in runs)
        row = (name, algorithm, rounds, way, f"{seconds:.1f}", f"{1e3 * seconds / rounds:.0f}", *ratios)
        print("| " + " | ".join(map(str, (*row, runs[-1]["chosen"]))) + " |", flush=True)


def ratio(lean: list[dict[str, Any]] | None, runs: list[dict[str, Any]], kind: str) -> str:
    """Return the median of the passes' ratios."""
    if lean is None:
        return ""
    return f"{np.median([a[kind] / b[kind] for a, b in zip(lean, runs, strict=True)]):.2f}"


if __name__ == "__main__":
    if sys.argv[1:2] == ["--child"]:
        way, name, algorithm, rounds = sys.argv[2:]
        print(json.dumps(child(way, name, algorithm, int(rounds))))
    else:
        main()
