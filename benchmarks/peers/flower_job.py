"""A job of engines.py in Flower's simulation, FedAvg: `python benchmarks/peers/flower_job.py mnist`.

On the CPU: a worker process for every core, each with one thread. Clients keep model and data in their worker between
messages, and nothing is evaluated.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable
from typing import Any

os.environ |= {"FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1", "RAY_USAGE_STATS_ENABLED": "0"}
os.environ |= {"RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0", "CUDA_VISIBLE_DEVICES": ""}

import flwr
import shared
import torch
import torch.nn.functional as F
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation


class Checked(FedAvg):
    """FedAvg that raises an error if a client fails."""

    def aggregate_train(self, server_round: int, replies: Iterable[Message]) -> Any:
        replies = list(replies)
        failed = [reply.error.reason for reply in replies if reply.has_error()]
        if failed or len(replies) != self.min_train_nodes:
            raise RuntimeError(f"{len(replies)} replies, {len(failed)} of them failures: {failed[:1]}")
        return super().aggregate_train(server_round, replies)


def client_app(name: str) -> ClientApp:
    app = ClientApp()

    @app.train()
    def train(message: Message, context: Context) -> Message:
        torch.set_num_threads(1)
        client, net = shared.clients(name, "cpu")[int(context.node_config["partition-id"])], shared.model(name)
        net.load_state_dict(message.content["arrays"].to_torch_state_dict())
        optimizer = torch.optim.SGD(net.parameters(), lr=shared.LR)
        for x, y in client.batches:
            optimizer.zero_grad()
            F.cross_entropy(net(x), y).backward()
            optimizer.step()
        content = {
            "arrays": ArrayRecord(net.state_dict()),
            "metrics": MetricRecord({"num-examples": client.samples}),
        }
        return Message(content=RecordDict(content), reply_to=message)

    return app


def server_app(name: str, rounds: int, marks: shared.Marks) -> ServerApp:
    app, job = ServerApp(), shared.JOBS[name]

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        strategy = Checked(
            fraction_train=job.cohort / job.clients,
            fraction_evaluate=0.0,
            min_train_nodes=job.cohort,
            min_available_nodes=job.clients,
        )
        start = ArrayRecord(shared.model(name).state_dict())
        # evaluate_fn is called before the first round and after each
        strategy.start(grid, start, num_rounds=rounds, evaluate_fn=lambda t, arrays: marks.mark())

    return app


def main() -> None:
    arguments = shared.parser(__doc__)
    arguments.add_argument("--workers", type=int, default=os.cpu_count())
    given = arguments.parse_args()
    logging.getLogger("flwr").setLevel(logging.ERROR)
    marks = shared.Marks()
    run_simulation(
        server_app=server_app(given.job, given.warm + given.rounds, marks),
        client_app=client_app(given.job),
        num_supernodes=shared.JOBS[given.job].clients,
        backend_config={
            "init_args": {"num_cpus": given.workers, "log_to_driver": False, "logging_level": "error"},
            "client_resources": {"num_cpus": 1, "num_gpus": 0.0},
        },
    )
    how = f"{given.workers} workers"
    times = marks.rounds(given.rounds)
    shared.report("Flower", given.job, "cpu", times, version=flwr.__version__, how=how)


if __name__ == "__main__":
    main()
