"""The monitor of a server app: takes notes of what happens, for its status file and its metrics."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from threading import Lock
from time import monotonic, time
from typing import Any

from ...core.callback import Callback
from ...core.formatting import one_line
from ...core.history import CLIENT_METRICS, METRICS, Record
from .status import ClientStatus, DeploymentStatus, Waiting

_log = logging.getLogger("fedmos")

_INTERVAL = 2.0
"""Seconds between two writes of the status while nothing happens that an operator waits for."""
_SHOWN = (*METRICS, *CLIENT_METRICS, "epsilon")


class Monitor:
    """Notes what the server does. Threads that serve metrics read it with `snapshot`.

    Args:
        names: The names of the clients, in the order of their numbers.
        run: The id of the run.
        folder: The run folder, for the status file; None for no file.
    """

    def __init__(self, names: Sequence[str] = (), run: str = "", folder: Path | None = None) -> None:
        self._status = DeploymentStatus(run, clients=[ClientStatus(name) for name in names])
        self._folder, self._lock, self._written = folder, Lock(), float("-inf")
        self._began = False

    def snapshot(self) -> DeploymentStatus:
        """Return a copy of the status."""
        with self._lock:
            return DeploymentStatus.from_json(self._status.to_json())

    def know(self, names: Sequence[str]) -> None:
        """Note the names of clients that were admitted."""
        with self._lock:
            self._status.clients += [ClientStatus(name) for name in names[len(self._status.clients) :]]

    def begin(self, rounds: int, done: int) -> None:
        """Note that the run starts."""
        with self._lock:
            self._began = True
            self._status.rounds, self._status.completed, self._status.state = rounds, done, "training"
        self._write()

    def round(self, record: Record) -> None:
        """Note the end of a round."""
        metrics = {name: getattr(record, name) for name in _SHOWN if getattr(record, name) is not None}
        facts = {"round": record.round, "seconds": record.seconds, "cohort": len(record.cohort)}
        facts |= {"late": len(record.late), "abandoned": record.abandoned}
        quarantined: Collection[int] | None = getattr(record, "quarantined", None)
        with self._lock:
            status = self._status
            status.completed, status.last = record.round, status.last | facts | metrics | (record.metrics or {})
            status.abandoned += record.abandoned
            out = {status.clients[i].name for i in quarantined or ()}
            for client in status.clients:
                client.asked = False
                client.quarantined = client.name in out
        self._write()

    def ask(self, kind: str, clients: Collection[int]) -> None:
        """Note a request to clients."""
        with self._lock:
            self._status.asking = kind
            for i in clients:
                self._client(i).asked = True
        self.tick()

    def replied(self, i: int) -> None:
        """Note an accepted reply."""
        with self._lock:
            client = self._client(i)
            client.asked, client.replies = False, client.replies + 1

    def refused(self, i: int, reason: str, text: str) -> None:
        """Note a reply that is left out.

        Args:
            i: The client.
            reason: One word; metrics are counted by it.
            text: The reason as it is logged.
        """
        with self._lock:
            client = self._client(i)
            client.asked, client.refused[reason] = False, client.refused.get(reason, 0) + 1
            client.problem = one_line(text, 200)

    def late(self, i: int, text: str) -> None:
        """Note a client that did not reply in time."""
        with self._lock:
            client = self._client(i)
            client.asked, client.late, client.problem = False, client.late + 1, one_line(text, 200)

    def sent(self, down: int, up: int) -> None:
        """Note bytes of vectors and numbers."""
        with self._lock:
            self._status.bytes_down += down
            self._status.bytes_up += up

    def nodes(self, connected: Collection[int], refusals: Mapping[int, str], refused: int) -> None:
        """Note which clients are connected, why nodes of clients are refused, and how many nodes were."""
        with self._lock:
            now, self._status.refused_nodes = time(), refused
            for i, client in enumerate(self._status.clients):
                client.connected = i in connected
                if client.connected:
                    client.last_seen = now
                if i in refusals:
                    client.problem = one_line(refusals[i], 200)
        self.tick()

    def wait(self, purpose: str, missing: Collection[int], needed: int) -> None:
        """Note that too few clients are there to go on."""
        with self._lock:
            status = self._status
            since = time() if status.waiting is None else status.waiting.since
            names = [status.clients[i].name for i in sorted(missing) if i < len(status.clients)]
            status.waiting = Waiting(purpose, needed, names, since)
            status.state = "waiting"
        self.tick()

    def go_on(self) -> None:
        """Note that an outage is over."""
        with self._lock:
            self._status.waiting = None
            self._status.state = "training" if self._began else "starting"
        self._write()

    def tick(self) -> None:
        """Write the status if it was not written lately."""
        if monotonic() - self._written >= _INTERVAL:
            self._write()

    @contextmanager
    def until_end(self) -> Iterator[None]:
        """Note how the block ends."""
        try:
            yield
        except BaseException as error:
            with self._lock:
                self._status.state = "failed" if isinstance(error, Exception) else "stopped"
                self._status.error = one_line(str(error) or type(error).__name__, 500)
            self._write()
            raise
        with self._lock:
            self._status.state, self._status.waiting = "finished", None
        self._write()

    def _client(self, i: int) -> ClientStatus:
        while len(self._status.clients) <= i:
            self._status.clients.append(ClientStatus(str(len(self._status.clients))))
        return self._status.clients[i]

    def _write(self) -> None:
        """Write the status."""
        self._written = monotonic()
        if self._folder is None:
            return
        status = self.snapshot()
        status.updated = time()
        status.write(self._folder)


class MonitorCallback(Callback):
    """Tells a monitor of the run's rounds."""

    def __init__(self, monitor: Monitor) -> None:
        self._monitor = monitor

    def on_start(self, rounds: int, done: int) -> None:
        self._monitor.begin(rounds, done)

    def on_round(self, record: Record, *args: Any, **kwargs: Any) -> None:
        self._monitor.round(record)
