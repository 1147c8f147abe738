"""The clients of an asynchronous deployment as a backend of the engine."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from pathlib import Path

import torch

from ..engine.backend import CohortUpdate, PhaseInput, StepObserver
from ..engine.cohort import Cohort
from ..run.backends import BackendSetting
from . import wire
from .arrival_log import ArrivalLog
from .backend import FlowerBackend
from .backend_checks import refuse_observer
from .open_requests import OpenRequests
from .outages import OutageWatch
from .requests import Reply, ReplyPolicy


class BufferedFlowerBackend(FlowerBackend):
    """Asks clients one by one, and sums the updates that have arrived; see `fedmos.flower.buffered_rounds`."""

    def __init__(self, given: BackendSetting, outages: OutageWatch, reply_policy: ReplyPolicy) -> None:
        super().__init__(given, outages, reply_policy)
        assert given.scratch is not None
        self.outages = outages
        self.registry = outages.collector.registry
        self.requests = OpenRequests(outages.collector, reply_policy.deadline)
        self.log = ArrivalLog(Path(given.scratch), reply_policy.run)
        self.waiting: dict[int, Reply] = {}
        """The updates that have arrived and were not used yet, by client."""

    def away(self) -> set[int]:
        """Return the clients that are disconnected for longer than the server waits for them."""
        rejoin, clients = self.outages.collector.rejoin, range(len(self.registry.names))
        return {i for i in clients if self.registry.seconds_away(i) > rejoin}

    def ask(self, client: int, t: int, given: PhaseInput) -> None:
        """Ask a client to train.

        Args:
            client: The client.
            t: The round whose model it is sent.
            given: What it is sent.
        """
        alone = Cohort.of(torch.tensor([client]), torch.ones(1, dtype=torch.float64), self._task.data)
        request = self._training_request(alone, given, wire.TRAIN, self._declaration.up("train"))
        content = self._messages.compose(request, t)[client]
        self.requests.open(client, wire.TRAIN, content, partial(self._messages.validate, request, t))

    def keep(self, training: Iterable[int], arrived: set[tuple[int, int]]) -> None:
        """Forget what the server step has used.

        Args:
            training: The clients that train.
            arrived: The clients whose updates wait in the buffer, and the rounds whose models they were sent.
        """
        waiting = {client for client, _ in arrived}
        self.log.keep(arrived)
        self.waiting = {i: reply for i, reply in self.waiting.items() if i in waiting}
        self._messages.held.keep({*training, *waiting})

    def accept(self, client: int, reply: Reply, given: PhaseInput) -> set[int]:
        """Add an update to those that wait, and drop those that are out of proportion; returns their clients."""
        self.waiting[client] = reply
        accepted = self._bound.accepted(given, {i: known.vectors for i, known in self.waiting.items()}, self.clients)
        dropped = set(self.waiting) - set(accepted)
        for i in dropped:
            del self.waiting[i]
        return dropped

    async def run_phase(self, cohort: Cohort, given: PhaseInput, observer: StepObserver | None = None) -> CohortUpdate:
        """Sum the updates of these clients, which have arrived."""
        refuse_observer(observer)
        received = {i: self.waiting[i].vectors for i in cohort.ids.tolist()}
        self._reports = {i: self.waiting[i].numbers for i in received}
        return self._summed(cohort, given, cohort, cohort, received)
