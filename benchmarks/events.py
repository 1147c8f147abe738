"""Events per second of an asynchronous run, beside a plain loop over clients.

An event is the arrival of a client's update: the selection of a client, its local training, and its share of the server
step. The job is small on purpose: 100 clients of the digits, logistic regression or the small MLP, 5 local steps of 8
samples, log-normal speeds, a buffer of 10 (or 50) and 50 clients at a time.

    python benchmarks/events.py

Times are CPU seconds of one thread, the best of three, less those of a run of one server step (loading, compilation,
evaluation).
"""

from __future__ import annotations

import argparse
import heapq
import sys
import time
from collections.abc import Callable

import torch

import fedmos as fm

CLIENTS, STEPS, BATCH, LR, CONCURRENCY = 100, 5, 8, 0.05, 50


def federation() -> fm.FederatedData:
    return fm.datasets.load("digits").partition(fm.partition.Dirichlet(alpha=1.0), clients=CLIENTS, seed=0)


MODELS: dict[str, Callable[[], torch.nn.Module]] = {
    "logistic": lambda: fm.models.logistic(features=64),
    "mlp": lambda: fm.models.mlp(features=64),
}


def ours(model: str, size: int, events: int, engine: str) -> None:
    fm.run(
        MODELS[model](),
        federation(),
        fm.FedAvg(lr=LR),
        fm.Uniform(m=1, weights="mean"),
        rounds=events // size,
        local_steps=STEPS,
        batch_size=BATCH,
        eval_every=events,
        engine=engine,
        system=fm.System(speed=fm.LogNormal(median=100, sigma=1)),
        buffer=fm.Buffer(size=size, concurrency=CONCURRENCY),
    )


def plain_loop(model: str, size: int, events: int, engine: str) -> None:
    """FedBuff by hand: a heap of arrivals, and one client after another with torch.optim.SGD."""
    data, module = federation(), MODELS[model]()
    clients = [(x.float() / 16, y) for x, y in map(data.client, range(CLIENTS))]
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
        inputs, targets = clients[i]
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


def events_per_second(run: Callable[[str, int, int, str], None], *job: object, events: int) -> float:
    """Events divided by the CPU seconds that they take beyond those of a run of one server step."""
    model, size, engine = job

    def seconds(number: int) -> float:
        began = time.process_time()
        run(model, size, number, engine)
        return time.process_time() - began

    seconds(size)  # warms up
    short, long = (min(seconds(number) for _ in range(3)) for number in (size, size + events))
    return events / (long - short)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--events", type=int, default=1000)
    given = parser.parse_args()
    torch.set_num_threads(1)
    sys.stdout.reconfigure(line_buffering=True)
    for model in MODELS:
        for size in (10, 50):
            rates = {
                "fedmos": events_per_second(ours, model, size, "batched", events=given.events),
                "plain loop": events_per_second(plain_loop, model, size, "", events=given.events),
            }
            print(f"{model}, size {size}: " + ", ".join(f"{name} {rate:.0f}/s" for name, rate in rates.items()))


if __name__ == "__main__":
    main()
