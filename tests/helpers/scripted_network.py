"""Replies of a deployment in a scripted order: each takes the time that the simulator gives it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from flwr.app import Message

from fedmos.config.schema import RunConfig
from fedmos.engine.buffered import newest_model, simulated_times
from fedmos.flower import client_app, wire
from fedmos.flower.deployment import Deployment
from fedmos.flower.server import serve
from fedmos.run.options import call_with_options
from fedmos.run.result import Result
from fedmos.run.run import Run
from fedmos.run.spec import RunSpec
from helpers.flower_network import Network

Seconds = Callable[[int, bool], float]
"""Takes a client and whether it is new; returns the seconds from its start to the arrival of its update."""


def simulated_seconds(given: dict[str, Any]) -> Seconds:
    """Return the times of a simulation with these arguments of `fm.run`."""
    state = Run(call_with_options("run", RunSpec, (), given)).state
    gradients, costs = newest_model(state).gradients, simulated_times(state).costs
    return lambda client, first: costs.seconds(client, gradients, first)


class Script:
    """Delivers updates one by one, in the order of their simulated times, also to a server that is started again."""

    def __init__(self, network: Network, seconds: Seconds) -> None:
        self._seconds, self._push, self._pull = seconds, network.push_messages, network.pull_messages
        self.now = 0.0
        self.due: dict[tuple[int, int], float] = {}
        """By client and round, when its update arrives."""
        self.asked: list[tuple[int, int]] = []
        self.delivered: list[tuple[int, int]] = []
        self.on_delivery: Callable[[int], None] = lambda count: None
        """Called before an update is delivered, with the number of those before it."""
        self._open: dict[str, tuple[int, int]] = {}
        network.push_messages, network.pull_messages = self.push, self.pull  # type: ignore[method-assign]

    def push(self, messages: Iterable[Message]) -> list[str]:
        sent = list(messages)
        numbers = self._push(sent)
        for number, message in zip(numbers, sent, strict=True):
            if message.metadata.message_type == wire.TRAIN:
                header: Any = message.content["fedmos"]
                client, t = int(header["client"]), int(header["round"])
                self._open[number] = (client, t)
                self.asked.append((client, t))
                self.due.setdefault((client, t), self.now + self._seconds(client, header["last"] < 0))
        return numbers

    def pull(self, message_ids: Iterable[str]) -> list[Message]:
        wanted = list(message_ids)
        updates = [number for number in wanted if number in self._open]
        chosen = [number for number in wanted if number not in self._open]
        if updates:
            first = min(updates, key=lambda number: (self.due[self._open[number]], self._open[number][0]))
            self.on_delivery(len(self.delivered))
            self.now = max(self.now, self.due[self._open[first]])
            self.delivered.append(self._open[first])
            chosen.append(first)
        return self._pull(chosen)


def deploy_in_order(folder: Path, settings: RunConfig, cohorts: Sequence[Sequence[int]]) -> Result:
    """Return the result of a deployment within this process in which the updates of these clients come round by round.

    All clients train at any time.
    """
    names = Deployment.of(settings).names
    network = Network(lambda: client_app(settings), folder / "state", names)
    order = [i for cohort in cohorts for i in cohort]
    starts = dict.fromkeys(range(len(names)), 0)

    def seconds(client: int, first: bool) -> float:
        """The place of the client's next update in the order."""
        places = [place for place, i in enumerate(order) if i == client] + [len(order)]
        starts[client] += 1
        return places[starts[client] - 1] - script.now

    script = Script(network, seconds)
    return serve(network, Deployment.of(settings), folder / "run")
