"""Asynchronous rounds of a deployment: clients start and updates arrive until the buffer is full.

The order of events is that of `fedmos.engine.buffered`, with real clients in place of simulated times: if replies
arrive in the same order, the server takes the same steps. Two rules are added for clients that fail. A client whose
update is lost does not start again before the next server step, and one that is disconnected does not start. If
nobody trains or can start for these reasons alone, the round waits until one of them can be reached.
"""

from __future__ import annotations

import heapq
import math
from collections import deque
from dataclasses import dataclass, field
from time import monotonic

from ..engine.backend import PhaseInput
from ..engine.buffered import Arrivals, asynchronous, newest_version
from ..engine.cohort import SampledCohort
from ..engine.event_queue import EventQueue, Flight
from ..engine.sent_models import ModelVersion
from ..engine.state import FederatedState
from .arrival_log import StoredArrival
from .buffered_backend import BufferedFlowerBackend
from .outages import Outage
from .requests import Reply


@dataclass(kw_only=True)
class _Round:
    """The events of one round so far."""

    state: FederatedState
    sampled: SampledCohort
    arrivals: Arrivals
    given: PhaseInput
    """What clients that start in this round are sent."""
    late: set[int] = field(default_factory=set)
    """Clients that did not reply in time."""
    refused: set[int] = field(default_factory=set)
    """Clients whose reply was refused."""
    outage: Outage | None = None
    """The outage that lasts."""

    @property
    def queue(self) -> EventQueue:
        """The clients that train, and the updates in the buffer."""
        return self.arrivals.queue


class BufferedRounds:
    """Collects the updates of server steps. Its clock is the time that the run has taken, over all starts.

    Args:
        backend: The clients.
    """

    def __init__(self, backend: BufferedFlowerBackend) -> None:
        self._backend = backend
        self._started: dict[int, float] = {}
        """When each client that trains was asked."""
        self._stored: deque[StoredArrival] | None = None
        """Updates that arrived before the server was started again; None before the first round."""
        self._offset = 0.0

    def collect(self, state: FederatedState, sampled: SampledCohort) -> Arrivals:
        """Start clients and receive updates until the buffer is full, or until no client trains or can start."""
        here = asynchronous(state)
        context, version = newest_version(state)
        given = PhaseInput("train", context, version.lr, version.x, version.msg, None, state.policy, state.reports)
        arrivals = Arrivals(queue=here.queue.copy(), now=self._continue(state, given))
        now = _Round(state=state, sampled=sampled, arrivals=arrivals, given=given)
        while True:
            self._start_clients(now, version)
            if not now.queue.flights:
                if self._wait_for_clients(now):
                    continue
                break
            self._receive(now)
            if len(now.queue.arrived) == here.buffer.size:
                arrivals.taken, arrivals.versions = now.queue.take_arrived(), dict(now.queue.versions)
                break
        arrivals.now = max(arrivals.now, self._now())
        now.queue.forget_versions()
        return arrivals

    def close(self) -> None:
        """Delete what is stored for a run that continues, after its last round."""
        self._backend.log.keep(())

    def _now(self) -> float:
        return self._offset + monotonic()

    def _continue(self, state: FederatedState, given: PhaseInput) -> float:
        """Forget the updates that the last server step has used; returns the time.

        In the first round after a start, ask all clients again that trained when the checkpoint was written.
        """
        queue, backend = asynchronous(state).queue, self._backend
        if self._stored is not None:
            arrived = {(flight.client, flight.round) for flight in queue.arrived}
            backend.keep((flight.client for flight in queue.flights), arrived)
            return self._now()
        self._stored = deque(backend.log.load())
        before = state.history[-1].clock or 0.0 if len(state.history) else 0.0
        self._offset = max([before, *(arrival.end for arrival in self._stored)]) - monotonic()
        for flight in (*queue.flights, *queue.arrived):
            version = queue.versions[flight.round]
            self._ask(flight.client, flight.round, given._replace(lr=version.lr, x=version.x, msg=version.msg))
        self._restore_buffer(queue)
        return before

    def _restore_buffer(self, queue: EventQueue) -> None:
        """Read the updates that were in the buffer when the checkpoint was written; others are asked for again."""
        assert self._stored is not None
        stored = {(arrival.client, arrival.round): arrival for arrival in self._stored}
        for flight in list(queue.arrived):
            found = stored.get((flight.client, flight.round))
            if found is None:
                queue.arrived.remove(flight)
                heapq.heappush(queue.flights, flight._replace(end=math.inf))
            else:
                self._stored.remove(found)
                self._backend.waiting[flight.client] = found.reply
                self._backend.requests.close(flight.client)

    def _ask(self, client: int, t: int, given: PhaseInput) -> None:
        self._started[client] = self._now()
        self._backend.ask(client, t, given)

    def _start_clients(self, now: _Round, version: ModelVersion) -> None:
        """Start clients until as many train as the buffer allows, or no other can start."""
        queue, here, t = now.queue, asynchronous(now.state), now.state.t
        now.arrivals.short = False
        while len(queue.flights) < here.buffer.concurrency:
            drawn = self._draw(now, now.sampled, now.late | now.refused | self._backend.away())
            if drawn is None:
                now.arrivals.short = True
                return
            client, weight = drawn
            queue.versions.setdefault(t, version)
            queue.start(Flight(math.inf, client, t, weight, 0.0, 0, False))
            self._ask(client, t, now.given)

    def _draw(self, now: _Round, sampled: SampledCohort, failed: set[int]) -> tuple[int, float] | None:
        """Draw the client that starts next, with its weight, among those that are free and have not failed."""
        queue, here = now.queue, asynchronous(now.state)
        free = here.sampler.free(now.state.t, [*queue.busy, *failed])
        return here.sampler.draw_one(now.state.t, queue.starts, free, sampled)

    def _wait_for_clients(self, now: _Round) -> bool:
        """Wait in an outage until a client can start; returns False if none could even if all were connected.

        Raises:
            OutageError: If the outage takes too long.
        """
        missing = (now.late | self._backend.away()) - now.refused - set(now.queue.busy)
        if not missing or self._draw(now, now.state.sampler.empty(), set(now.refused)) is None:
            return False
        now.outage = now.outage or self._backend.outages.begin(f"Round {now.state.t + 1}")
        now.outage.wait(missing, 1)
        now.late.clear()
        return True

    def _receive(self, now: _Round) -> None:
        """Wait until a client is done or given up; returns earlier if a client can start that could not before."""
        if (stored := self._next_stored(now.queue)) is not None:
            self._backend.requests.close(stored.client)
            self._arrive(now, stored.client, stored.reply, (stored.end, stored.seconds), stored=True)
            return
        unable = self._backend.away() if now.arrivals.short else set()
        ended = self._backend.requests.next(lambda: bool(unable - self._backend.away()))
        if ended is None:
            return
        if ended.reply is not None:
            end = self._now()
            self._arrive(now, ended.client, ended.reply, (end, end - self._started[ended.client]))
            return
        now.queue.remove(ended.client)
        now.arrivals.lost.append(ended.client)
        if not ended.late:
            now.refused.add(ended.client)
        elif ended.client not in self._backend.away():  # others start when they are back
            now.late.add(ended.client)

    def _next_stored(self, queue: EventQueue) -> StoredArrival | None:
        """Return the next update that arrived before the server was started again, if its client still trains."""
        training = {(flight.client, flight.round) for flight in queue.flights}
        while self._stored:
            arrival = self._stored.popleft()
            if (arrival.client, arrival.round) in training:
                return arrival
        return None

    def _arrive(self, now: _Round, client: int, reply: Reply, times: tuple[float, float], stored: bool = False) -> None:
        """Put an update into the buffer, unless it is out of proportion to the others."""
        end, seconds = times
        flight = now.queue.remove(client)
        now.queue.arrived.append(flight._replace(end=end, seconds=seconds))
        now.arrivals.now = end
        if now.outage is not None:
            now.outage.end()
            now.outage = None
        for i in sorted(self._backend.accept(client, reply, now.given)):
            now.queue.arrived = [one for one in now.queue.arrived if one.client != i]
            now.arrivals.lost.append(i)
            now.refused.add(i)
        if client in self._backend.waiting and not stored:
            self._backend.log.add(client, flight.round, end, seconds, reply)
