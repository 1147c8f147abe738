"""Time per round of every engine, a hand-written loop and centralised training: `make bench`.

For each job, in one process after warm-up:

    lean       a hand-written PyTorch loop over clients, without fedmos
    loop       engine="loop"
    batched    engine="batched": the cohort as one vectorised program
    compiled   the same, compiled (FEDMOS_ENGINE=compiled)
    auto       engine="auto" in a long run
    central    one model on the same number of samples per step: close to the upper bound for a federated round

Data is random: only shapes matter. Times are medians over rounds; ratios are to `lean` and to `central`.
"""

from __future__ import annotations

import argparse
import os
import resource
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import fedmos as fm
from fedmos.engine.malloc import keep_memory


@dataclass(frozen=True)
class Job:
    model: Callable[[], nn.Module]
    shape: tuple[int, ...]
    clients: int
    samples: tuple[int, int]
    cohort: int
    steps: int
    batch: int

    def federation(self) -> fm.FederatedData:
        rng = np.random.default_rng(0)
        sizes = rng.integers(self.samples[0], self.samples[1] + 1, self.clients)
        x = rng.integers(0, 256, (int(sizes.sum()), *self.shape), dtype=np.uint8)
        y = rng.integers(0, 10, len(x))
        ends = np.cumsum(sizes)
        pairs = [(x[e - n : e], y[e - n : e]) for e, n in zip(ends, sizes, strict=True)]
        return fm.FederatedData.from_arrays(pairs).declare(normalize=fm.Normalize(mean=0.5, std=0.5))


JOBS = {
    "mlp": Job(fm.models.mlp, (1, 28, 28), 100, (200, 1000), 10, 30, 64),
    "mnist": Job(fm.models.cnn_mnist, (1, 28, 28), 500, (10, 50), 25, 5, 10),
    "pfl-cifar": Job(fm.models.cnn_cifar, (3, 32, 32), 1000, (50, 50), 50, 5, 10),
    "lenet": Job(fm.models.lenet, (3, 32, 32), 100, (512, 512), 10, 8, 64),
    "resnet20": Job(fm.models.resnet20, (3, 32, 32), 100, (512, 512), 10, 8, 64),
    "resnet18": Job(fm.models.resnet18, (3, 32, 32), 100, (500, 500), 10, 10, 50),
}
ALGORITHMS = {"FedAvg": fm.FedAvg(lr=0.01), "FedMoS": fm.FedMoS(lr=0.01)}


class Lean:
    """FedAvg and FedMoS as a hand-written loop over clients. Data is on the device and normalised beforehand."""

    def __init__(self, job: Job, algorithm: str, device: str) -> None:
        self.job, self.algorithm, self.device = job, algorithm, device
        data = job.federation()
        self.clients = []
        for i in range(len(data)):
            x, y = data.client(i)
            self.clients.append((data.inputs(x).to(device), y.to(device)))
        self.p = data.importance.tolist()
        self.model = job.model().to(device)
        self.parameters = list(self.model.parameters())
        self.x = [p.detach().clone() for p in self.parameters]
        self.v = [torch.zeros_like(p) for p in self.x]
        self.rng = np.random.default_rng(1)

    def gradient(self, x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
        return torch.autograd.grad(F.cross_entropy(self.model(x), y), self.parameters)

    def put(self, values: list[Tensor]) -> None:
        with torch.no_grad():
            torch._foreach_copy_(self.parameters, values)

    def batches(self, n: int) -> Iterator[Tensor]:
        for _ in range(self.job.steps):
            yield torch.from_numpy(self.rng.choice(n, min(self.job.batch, n), replace=False)).to(self.device)

    def client(self, x: Tensor, y: Tensor) -> None:
        if self.algorithm == "FedAvg":
            for chosen in self.batches(len(x)):
                g = self.gradient(x[chosen], y[chosen])
                with torch.no_grad():
                    torch._foreach_sub_(self.parameters, g, alpha=0.01)
            return
        d = list(self.gradient(x, y))
        before = [p.detach().clone() for p in self.parameters]
        for k, chosen in enumerate(self.batches(len(x))):
            if k > 0:
                here = [p.detach().clone() for p in self.parameters]
                new = self.gradient(x[chosen], y[chosen])
                self.put(before)
                old = self.gradient(x[chosen], y[chosen])
                self.put(here)
                d = [a + 0.9 * (b - c) for a, b, c in zip(new, d, old, strict=True)]
                before = here
            with torch.no_grad():
                for p, step, x0 in zip(self.parameters, d, self.x, strict=True):
                    p.sub_(0.01 * step + 0.001 * (p - x0))

    def round(self) -> None:
        cohort = self.rng.choice(self.job.clients, self.job.cohort, replace=False)
        sums = [torch.zeros_like(x) for x in self.x]
        weight = self.job.clients / self.job.cohort
        for i in cohort:
            self.put(self.x)
            self.client(*self.clients[i])
            with torch.no_grad():
                for s, p, x in zip(sums, self.parameters, self.x, strict=True):
                    s.add_(p.detach() - x, alpha=weight * self.p[i])
        if self.algorithm == "FedMoS":
            self.v = [0.8 * v - s for v, s in zip(self.v, sums, strict=True)]
            self.x = [x - v for x, v in zip(self.x, self.v, strict=True)]
        else:
            self.x = [x + s for x, s in zip(self.x, sums, strict=True)]


class Central(Lean):
    """One model, with as many samples per step as the whole cohort (FedMoS: as many gradients)."""

    def round(self) -> None:
        job = self.job
        n = job.cohort * job.batch
        if not hasattr(self, "pool"):
            self.pool = (torch.cat([x for x, _ in self.clients]), torch.cat([y for _, y in self.clients]))
        x, y = self.pool
        for _ in range(job.steps):
            chosen = torch.from_numpy(self.rng.choice(len(x), n, replace=False)).to(self.device)
            for _ in range(1 if self.algorithm == "FedAvg" else 2):
                g = self.gradient(x[chosen], y[chosen])
            with torch.no_grad():
                torch._foreach_sub_(self.parameters, g, alpha=0.01)


class Ours:
    """Rounds of `fm.run`, interrupted when enough have been timed."""

    def __init__(self, job: Job, algorithm: str, device: str, engine: str, precision: str | None) -> None:
        self.arguments: dict[str, Any] = {
            "model": job.model(),
            "data": job.federation(),
            "algorithm": ALGORITHMS[algorithm],
            "selection": fm.Uniform(m=job.cohort),
            "rounds": 5_000,  # long enough for "auto" to consider compilation
            "local_steps": job.steps,
            "batch_size": job.batch,
            "eval_every": 10**6,
            "device": device,
            "precision": precision,
            "engine": engine if engine in ("loop", "batched", "auto") else "auto",
        }
        self.compiled = engine == "compiled"

    def times(self, warm: int, rounds: int) -> tuple[list[float], str]:
        marks: list[float] = []

        def mark(record: fm.Record) -> None:
            synchronise()
            marks.append(time.perf_counter())
            if len(marks) > warm + rounds:
                raise KeyboardInterrupt

        if self.compiled:
            os.environ["FEDMOS_ENGINE"] = "compiled"
        try:
            result = fm.run(**self.arguments, callbacks=[mark])
        finally:
            os.environ.pop("FEDMOS_ENGINE", None)
        how = result.info["engine"] + (", compiled" if result.info["compiled"] else "")
        return list(np.diff(marks[warm:])), how


def synchronise() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def by_hand(job: Lean, warm: int, rounds: int) -> list[float]:
    taken = []
    for k in range(warm + rounds):
        synchronise()
        began = time.perf_counter()
        job.round()
        synchronise()
        if k >= warm:
            taken.append(time.perf_counter() - began)
    return taken


def peak(device: str) -> float:
    """Return the peak memory in MiB: of the process, or of the device since the last call."""
    if device == "cpu":
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    most = torch.cuda.max_memory_allocated() / 2**20
    torch.cuda.reset_peak_memory_stats()
    return most


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    usual = ["mlp", "mnist", "pfl-cifar", "lenet"]
    parser.add_argument("jobs", nargs="*", default=usual, help=f"any of {', '.join(JOBS)}")
    parser.add_argument("--algorithms", nargs="*", default=list(ALGORITHMS))
    parser.add_argument("--ways", nargs="*", default=["lean", "loop", "batched", "compiled", "auto", "central"])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--warm", type=int, default=2)
    parser.add_argument("--precision", choices=["tf32", "bf16"])
    given = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    keep_memory()
    where = torch.cuda.get_device_name() if device == "cuda" else f"CPU, {torch.get_num_threads()} threads"
    print(f"torch {torch.__version__}, {where}; median of {given.rounds} rounds; precision {given.precision}\n")
    headings = ("job", "algorithm", "way", "ms a round", "× lean", "× central", "peak MiB", "chosen")
    print("| " + " | ".join(headings) + " |\n" + "|---" * len(headings) + "|")
    for name in given.jobs:
        for algorithm in given.algorithms:
            rows = {}
            for way in given.ways:
                how = ""
                if way in ("lean", "central"):
                    with precision(given.precision):
                        kind = Lean if way == "lean" else Central
                        taken = by_hand(kind(JOBS[name], algorithm, device), given.warm, given.rounds)
                else:
                    ours = Ours(JOBS[name], algorithm, device, way, given.precision)
                    taken, how = ours.times(given.warm, given.rounds)
                rows[way] = (statistics.median(taken), peak(device), how if way == "auto" else "")
            for way, (seconds, memory, how) in rows.items():
                ratios = [f"{rows[base][0] / seconds:.2f}" if base in rows else "" for base in ("lean", "central")]
                print(
                    f"| {name} | {algorithm} | {way} | {1e3 * seconds:.1f} | {ratios[0]} | {ratios[1]} | "
                    f"{memory:.0f} | {how} |",
                    flush=True,
                )


@contextmanager
def precision(name: str | None) -> Iterator[None]:
    from fedmos.core.precision import arithmetic

    with arithmetic(name), torch.autocast("cuda", torch.bfloat16, enabled=name == "bf16", cache_enabled=False):  # type: ignore[arg-type]
        yield


if __name__ == "__main__":
    main()
