"""Events per second of an asynchronous run, beside a plain loop over clients, APPFL's simulator and Flower's.

An event is the arrival of a client's update: the selection of a client, its local training, and its share of the server
step. The job is small on purpose: 100 clients of the digits, logistic regression or the small MLP, 5 local steps of 8
samples, log-normal speeds, a buffer of 10 (or 50) and 50 clients at a time.

    make bench-events                                # creates .venv-appfl and .venv-flower
    python benchmarks/events.py --ways fedmos loop   # without the other simulators

Each way runs in a process of its own with one thread, all of them in turn, three times. Times are CPU seconds, so that
other load of the machine counts little: of the process, less those of a run of one server step (loading, compilation,
evaluation); of Flower, whose clients are in a worker process of Ray, those of all its processes after a warm-up.
"""

from __future__ import annotations

import argparse
import heapq
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from functools import cache
from pathlib import Path

import torch

import fedmos as fm

ROOT = Path(__file__).resolve().parents[1]
CLIENTS, STEPS, BATCH, LR, CONCURRENCY = 100, 5, 8, 0.05, 50


def federation() -> fm.FederatedData:
    return fm.datasets.load("digits").partition(fm.partition.Dirichlet(alpha=1.0), clients=CLIENTS, seed=0)


MODELS: dict[str, Callable[[], torch.nn.Module]] = {
    "logistic": lambda: fm.models.logistic(features=64),
    "mlp": lambda: fm.models.mlp(features=64),
}


@cache
def clients() -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Return the inputs and targets of every client."""
    data = federation()
    return [(data.inputs(x), y) for x, y in map(data.client, range(CLIENTS))]


@cache
def network(model: str) -> torch.nn.Module:
    return MODELS[model]()


def ours(model: str, size: int, events: int) -> None:
    fm.run(
        MODELS[model](),
        federation(),
        fm.FedAvg(lr=LR),
        fm.Uniform(m=1, weights="mean"),
        rounds=events // size,
        local_steps=STEPS,
        batch_size=BATCH,
        eval_every=events,
        engine="batched",
        system=fm.System(speed=fm.LogNormal(median=100, sigma=1)),
        buffer=fm.Buffer(size=size, concurrency=CONCURRENCY),
    )


def plain_loop(model: str, size: int, events: int) -> None:
    """FedBuff by hand: a heap of arrivals, and one client after another with torch.optim.SGD."""
    module, data = MODELS[model](), clients()
    source = torch.Generator().manual_seed(0)
    speed = torch.exp(torch.randn(CLIENTS, generator=source)).tolist()
    x = torch.nn.utils.parameters_to_vector(module.parameters()).detach()
    queue: list[tuple[float, int, int, torch.Tensor]] = []
    busy: set[int] = set()
    now, version, buffer = 0.0, 0, []

    def start() -> None:
        free = [i for i in range(CLIENTS) if i not in busy]
        i = free[int(torch.randint(len(free), (), generator=source))]
        busy.add(i)
        heapq.heappush(queue, (now + 1 / speed[i], i, version, x))

    for _ in range(CONCURRENCY):
        start()
    for _ in range(events):
        now, i, sent, y = heapq.heappop(queue)
        torch.nn.utils.vector_to_parameters(y.clone(), module.parameters())
        optimizer = torch.optim.SGD(module.parameters(), lr=LR)
        inputs, targets = data[i]
        for _ in range(STEPS):
            batch = torch.randperm(len(targets), generator=source)[:BATCH]
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(module(inputs[batch]), targets[batch]).backward()
            optimizer.step()
        delta = torch.nn.utils.parameters_to_vector(module.parameters()).detach() - y
        buffer.append((1 + version - sent) ** -0.5 * delta)
        if len(buffer) == size:
            x, version, buffer = x + sum(buffer) / size, version + 1, []
        busy.discard(i)
        start()


def job_parser(doc: str | None) -> argparse.ArgumentParser:
    out = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    out.add_argument("model", choices=list(MODELS))
    out.add_argument("--size", type=int, default=10)
    out.add_argument("--events", type=int, default=1000)
    return out


def report(name: str, rate: float) -> None:
    print(json.dumps({"name": name, "rate": rate}), flush=True)


def cpu_of(work: Callable[[], object]) -> float:
    """Return the CPU seconds of this process that `work` takes."""
    began = time.process_time()
    work()
    return time.process_time() - began


def difference(seconds: Callable[[int], float], size: int, events: int) -> float:
    """Return the CPU seconds of so many events, beyond those of a run of one server step; the best of two each."""
    seconds(size)  # warms up
    short, long = (min(seconds(number) for _ in range(2)) for number in (size, size + events))
    return long - short


OWN: dict[str, Callable[[str, int, int], None]] = {"fedmos": ours, "loop": plain_loop}
PEERS = {
    "appfl": ("appfl", "appfl_events.py", []),
    "appfl-lean": ("appfl", "appfl_events.py", ["--lean"]),
    "flower": ("flower", "flower_events.py", []),
}


def measure(way: str, model: str, size: int, given: argparse.Namespace) -> float | str:
    """Run one way in a process of its own; return its events per second, or an error message."""
    job, events = [model, "--size", str(size)], given.events
    if way in OWN:
        command = [sys.executable, __file__, "--way", way]
    else:
        peer, script, options = PEERS[way]
        python = ROOT / f".venv-{peer}" / "bin" / "python"
        if not python.exists():
            return f"no .venv-{peer}; `make bench-events` creates it"
        command, events = [str(python), str(ROOT / "benchmarks/peers" / script), *options], given.peer_events
    environment = os.environ | {"PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1"}
    command += [*job, "--events", str(events)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=900, check=False)
    lines = [line for line in done.stdout.splitlines() if line.startswith('{"name"')]
    if done.returncode != 0 or not lines:
        return f"failed: {(done.stderr.strip().splitlines() or ['no output'])[-1]}"
    rate: float = json.loads(lines[-1])["rate"]
    return rate


def compare(model: str, size: int, given: argparse.Namespace) -> None:
    """Measure all ways in turn, repeatedly, and print a row for each."""
    passes = [{way: measure(way, model, size, given) for way in given.ways} for _ in range(given.passes)]
    for way in given.ways:
        failures = [found[way] for found in passes if isinstance(found[way], str)]
        if failures:
            print(f"| {model} | {size} | {way} | {failures[0]} | |", flush=True)
            continue
        rates = [float(found[way]) for found in passes]
        ratios = [
            float(found["fedmos"]) / float(found[way]) for found in passes if isinstance(found.get("fedmos"), float)
        ]
        ours = f"{statistics.median(ratios):.1f} ({min(ratios):.1f} to {max(ratios):.1f})" if ratios else ""
        per_second = f"{statistics.median(rates):.0f} ({min(rates):.0f} to {max(rates):.0f})"
        print(f"| {model} | {size} | {way} | {per_second} | {ours} |", flush=True)


def main() -> None:
    if "--way" in sys.argv:
        parser = job_parser(__doc__)
        parser.add_argument("--way", choices=list(OWN), required=True)
        given = parser.parse_args()
        torch.set_num_threads(1)
        run = OWN[given.way]
        spent = difference(lambda n: cpu_of(lambda: run(given.model, given.size, n)), given.size, given.events)
        report(given.way, given.events / spent)
        return
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="*", choices=list(MODELS), default=list(MODELS))
    parser.add_argument("--sizes", nargs="*", type=int, default=[10, 50])
    parser.add_argument("--ways", nargs="*", choices=[*OWN, *PEERS], default=[*OWN, "appfl-lean", "flower"])
    parser.add_argument("--events", type=int, default=2000, help="of fedmos and the loop")
    parser.add_argument("--peer-events", type=int, default=200, help="of the other simulators")
    parser.add_argument("--passes", type=int, default=3)
    given = parser.parse_args()
    print("median of the passes, and range\n")
    print("| model | size | way | events a CPU second | fedmos is × faster |\n|---|---:|---|---:|---:|", flush=True)
    for model in given.models:
        for size in given.sizes:
            compare(model, size, given)


if __name__ == "__main__":
    main()
