"""Time of evaluating many clients on their own test samples, beside one pass through the same samples.

    python benchmarks/client_evaluation.py --clients 1000 --samples 20

Prints the median time, and that of the CPU (which other processes do not change), in milliseconds, of

- one pass: loss and accuracy of one model over all test samples, as one test set;
- one model: loss and accuracy of one model for every client (`ClientEvaluator`);
- one model, client by client: the same with one call of the model per client;
- own models: a model of each client, side by side;
- own models, client by client.
"""

import argparse
import statistics
from collections.abc import Callable
from time import perf_counter, process_time

import numpy as np
import torch

import fedmos as fm
from fedmos.engine.execution_plan import ExecutionPlan
from fedmos.evaluation.client_scores import ClientEvaluator
from fedmos.evaluation.metrics import Evaluator
from fedmos.run.build import prepare_task
from fedmos.run.spec import RunSpec


def federation(clients: int, samples: int) -> fm.FederatedData:
    """Clients with a log-normal number of test samples of 28×28 pixels, and these samples as the common test set."""
    rng = np.random.default_rng(0)
    sizes = np.maximum(1, rng.lognormal(np.log(samples), 0.5, clients).astype(int))
    x = rng.random((int(sizes.sum()), 1, 28, 28), dtype=np.float32)
    y = rng.integers(0, 10, len(x))
    cuts = np.cumsum(sizes)[:-1]
    tests = list(zip(np.split(x, cuts), np.split(y, cuts), strict=True))
    return fm.FederatedData.from_arrays([(a[:1], b[:1]) for a, b in tests], test=(x, y), tests=tests)


def milliseconds(work: Callable[[], object], repeats: int) -> tuple[float, float]:
    """Return the median wall-clock time and the median CPU time of a call, after one to warm up."""
    times = []
    for _ in range(repeats + 1):
        began = perf_counter(), process_time()
        work()
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        times.append((perf_counter() - began[0], process_time() - began[1]))
    wall, cpu = (1e3 * statistics.median(v) for v in zip(*times[1:], strict=True))
    return wall, cpu


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=int, default=1000)
    parser.add_argument("--samples", type=int, default=20, help="median number of test samples per client")
    parser.add_argument("--repeats", type=int, default=5)
    given = parser.parse_args()
    data = federation(given.clients, given.samples)
    options = {"algorithm": fm.FedAvg(lr=0.1), "selection": fm.Full(), "rounds": 1, "local_steps": 1, "batch_size": 8}
    task = prepare_task(RunSpec(model=fm.models.cnn_mnist(), data=data, **options), None)
    x, every = task.model.initial(), torch.arange(given.clients)
    batched = ExecutionPlan(engine="batched", chunk=64, max_parallel_clients=64)
    whole, clients = Evaluator([task], train=False), ClientEvaluator(task, plan=batched)
    one_by_one = ClientEvaluator(task, plan=ExecutionPlan(engine="loop", chunk=1))

    def own(ids: torch.Tensor) -> torch.Tensor:
        return x.expand(len(ids), -1).contiguous()

    def client_by_client() -> None:
        for i in every.split(1):
            clients(x, i)

    measured = {
        "one pass": lambda: whole(x[None]),
        "one model": lambda: clients(x, every),
        "one model, client by client": client_by_client,
        "own models": lambda: clients(own, every),
        "own models, client by client": lambda: one_by_one(own, every),
    }
    n = int(data.tests.sizes.sum())
    print(f"{given.clients} clients, {n} test samples, {task.model.size} parameters, {task.model.device}")
    for name, work in measured.items():
        wall, cpu = milliseconds(work, given.repeats)
        print(f"{name:<30}{wall:9.1f} ms, {cpu:9.1f} ms of the CPU")


if __name__ == "__main__":
    main()
