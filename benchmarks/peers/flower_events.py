"""The job of events.py in Flower's simulation: a server that answers each reply with a message to another client.

    .venv-flower/bin/python benchmarks/peers/flower_events.py logistic --size 10 --events 300

Flower has no asynchronous strategy and no simulated clock: the ServerApp here keeps 50 messages under way with
`push_messages` and `pull_messages`, and steps when `--size` replies have arrived. One worker with one thread; the CPU
seconds are those of all processes of the simulation, after a warm-up of 100 messages.
"""

from __future__ import annotations

import logging
import os
import random
import sys
import time
from pathlib import Path

os.environ |= {"FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1", "RAY_USAGE_STATS_ENABLED": "0"}
os.environ |= {"RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0", "CUDA_VISIBLE_DEVICES": ""}
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import events
import flwr
import torch
from cpu_time import tree_seconds
from flwr.app import ArrayRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.simulation import run_simulation
from torch import Tensor, nn

PAUSE = 0.01
"""Seconds between two questions for replies."""


def client_app(name: str) -> ClientApp:
    app = ClientApp()

    @app.train()
    def train(message: Message, context: Context) -> Message:
        torch.set_num_threads(1)
        net = events.network(name)
        net.load_state_dict(message.content["arrays"].to_torch_state_dict())
        inputs, targets = events.clients()[int(context.node_config["partition-id"])]
        optimizer = torch.optim.SGD(net.parameters(), lr=events.LR)
        for _ in range(events.STEPS):
            batch = torch.randperm(len(targets))[: events.BATCH]
            optimizer.zero_grad()
            nn.functional.cross_entropy(net(inputs[batch]), targets[batch]).backward()
            optimizer.step()
        return Message(content=RecordDict({"arrays": ArrayRecord(net.state_dict())}), reply_to=message)

    return app


class Buffered:
    """The server: x, and the updates that wait, each against the model that its client was sent."""

    def __init__(self, name: str, size: int) -> None:
        self.x = {key: v.detach().clone() for key, v in events.network(name).state_dict().items()}
        self.version, self.size, self.waiting = 0, size, 0
        self.sum = {key: torch.zeros_like(v) for key, v in self.x.items()}
        self.sent: dict[int, tuple[int, dict[str, Tensor]]] = {}

    def message(self, node: int) -> Message:
        self.sent[node] = self.version, self.x
        return Message(content=RecordDict({"arrays": ArrayRecord(self.x)}), message_type="train", dst_node_id=node)

    def take(self, reply: Message) -> int:
        """Add a client's update; returns the client."""
        if reply.has_error():
            raise RuntimeError(reply.error.reason)
        node = reply.metadata.src_node_id
        version, before = self.sent.pop(node)
        factor = (1 + self.version - version) ** -0.5 / self.size
        for key, v in reply.content["arrays"].to_torch_state_dict().items():
            self.sum[key] += factor * (v - before[key])
        self.waiting += 1
        if self.waiting == self.size:
            self.x = {key: v + self.sum[key] for key, v in self.x.items()}
            self.sum = {key: torch.zeros_like(v) for key, v in self.x.items()}
            self.version, self.waiting = self.version + 1, 0
        return node


def server_app(name: str, size: int, number: int, found: list[float]) -> ServerApp:
    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        while len(nodes := list(grid.get_node_ids())) < events.CLIENTS:
            time.sleep(0.1)
        source, server, done, began, own = random.Random(0), Buffered(name, size), 0, 0.0, 0.0
        started = source.sample(nodes, events.CONCURRENCY)
        idle = set(nodes) - set(started)
        waiting = set(grid.push_messages([server.message(node) for node in started]))
        warm = 2 * events.CONCURRENCY
        while done < warm + number:
            replies = list(grid.pull_messages(list(waiting)))
            for reply in replies:
                waiting.discard(reply.metadata.reply_to_message_id)
                idle.add(server.take(reply))
                done += 1
                if done == warm:
                    began, own = tree_seconds(), time.process_time()
            starts = source.sample(sorted(idle), min(len(idle), events.CONCURRENCY - len(waiting)))
            idle -= set(starts)
            waiting |= set(grid.push_messages([server.message(node) for node in starts])) if starts else set()
            if not replies:
                time.sleep(PAUSE)
        spent = tree_seconds() - began
        if spent <= time.process_time() - own:
            raise RuntimeError("the seconds of Ray's processes are missing")
        found.append((done - warm) / spent)

    return app


def main() -> None:
    given = events.job_parser(__doc__).parse_args()
    torch.set_num_threads(1)
    logging.getLogger("flwr").setLevel(logging.ERROR)
    found: list[float] = []
    run_simulation(
        server_app=server_app(given.model, given.size, given.events, found),
        client_app=client_app(given.model),
        num_supernodes=events.CLIENTS,
        backend_config={
            "init_args": {"num_cpus": 1, "log_to_driver": False, "logging_level": "error", "include_dashboard": False},
            "client_resources": {"num_cpus": 1, "num_gpus": 0.0},
        },
    )
    events.report("Flower " + flwr.__version__, found[0])


if __name__ == "__main__":
    main()
