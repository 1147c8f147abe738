"""Requests to clients: sent, repeated for nodes that were restarted, and collected until a deadline.

Flower's own `Grid.send_and_receive` polls every three seconds, waits for all replies or none, and fails as a whole
when it cannot decode one reply.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from time import monotonic, sleep
from typing import TypeVar

from flwr.app import Message, RecordDict

from ..core.formatting import one_line
from . import wire
from .channel import MessageChannel, error_label, permanent_error, transient_error
from .exchanges import Accepted, Delivery, MessageExchange, Refused, Replies, Retry
from .graceful_stop import GracefulStop
from .members.refusals import RefusalLog
from .monitoring.monitor import Monitor
from .node_registry import NodeRegistry

_log = logging.getLogger("fedmos")

_REFRESH_INTERVAL = 1.0
"""Seconds between two queries for the list of connected nodes."""
_ATTEMPTS = 5
"""How often a client that reports an error that can pass is asked, in eight seconds, before it counts as late."""
_POLL_BACKOFF = 1.3
"""Growth factor of the polling interval while no reply arrives."""

T = TypeVar("T")


@dataclass
class ReplyCollector:
    """Sends requests to clients, collects their replies, and counts the bytes of both."""

    channel: MessageChannel
    registry: NodeRegistry
    poll: float
    """Seconds between two queries for replies."""
    rejoin: float
    """Seconds to wait for a client whose node is disconnected."""
    _bytes_down: int = 0
    _bytes_up: int = 0
    payload: int = 0
    """Bytes of vectors and numbers in all messages."""
    overhead: int = 0
    """Bytes of everything else in all messages."""
    monitor: Monitor = field(default_factory=Monitor)
    stop: GracefulStop = field(default_factory=GracefulStop)
    refusals: RefusalLog = field(default_factory=RefusalLog)
    """The refusals of the current round."""
    _refreshed: float = float("-inf")

    def collect(
        self,
        kind: str,
        requests: Mapping[int, RecordDict],
        validate_reply: Callable[[int, RecordDict], T],
        timeout: float,
        counted: bool = True,
    ) -> Replies[T]:
        """Send each client its request, and collect the replies.

        Args:
            kind: The message type, one of the constants of `wire`.
            requests: The content of the request to each client.
            validate_reply: Takes a client and the content of its reply, and returns the decoded reply. Raises
                `wire.RefusedError` if the reply is invalid.
            timeout: Seconds to wait for replies.
            counted: Whether the bytes of requests and replies are part of the run's traffic.
        """
        exchange = MessageExchange(kind, requests, validate_reply, monotonic() + timeout, counted)
        self.monitor.ask(kind, requests)
        pause = self.poll
        while exchange.open and monotonic() < exchange.deadline:
            self.refresh_nodes()
            self.send(exchange)
            received = self._receive(exchange)
            if self.finished(exchange):
                break
            pause = self.poll if received else next_pause(pause, self.poll)
            sleep(pause)
        exchange.replies.late.update(exchange.open)
        for client in sorted(exchange.open):
            self.note_late(client, kind)
        return exchange.replies

    def note_late(self, client: int, kind: str) -> None:
        """Log and count a client that did not reply in time."""
        self.monitor.late(client, f"did not reply in time ({kind})")
        _log.warning("Client '%s' did not reply in time (%s)", self.registry.names[client], kind)

    def refresh_nodes(self) -> None:
        """Update the registry: once per interval, or at every call while nodes are being identified.

        Raises:
            StopRequested: If the process was asked to end.
        """
        self.stop.check()
        if monotonic() - self._refreshed >= _REFRESH_INTERVAL or self.registry.identifying:
            self.registry.refresh()
            self.monitor.nodes(self.registry.connected, self.registry.refusals, self.registry.refused_nodes)
            self._refreshed = monotonic()

    def take_traffic(self) -> tuple[int, int]:
        """Return the counted bytes sent and received since the last call."""
        traffic = self._bytes_down, self._bytes_up
        self._bytes_down = self._bytes_up = 0
        return traffic

    def _weigh(self, content: RecordDict, counted: bool) -> int:
        """Return the bytes of a message's vectors and numbers, if they are part of the run's traffic."""
        size = wire.payload(content)
        self.payload += size
        self.overhead += wire.overhead(content)
        return size if counted else 0

    def send(self, exchange: MessageExchange[T]) -> None:
        """Send the requests that are due: to connected clients whose current session has not received them."""
        pending = set(exchange.pending.values())
        due = [
            Delivery(client, session)
            for client in sorted(exchange.ready())
            if (session := self.registry.session(client)) is not None and Delivery(client, session) not in pending
        ]
        if not due:
            return
        ttl = max(1.0, exchange.deadline - monotonic())
        messages = [Message(exchange.requests[to.client], to.session.node, exchange.kind, ttl=ttl) for to in due]
        for message_id, delivery in zip(self.channel.push(messages), due, strict=True):
            if message_id:
                exchange.pending[message_id] = delivery
                self._bytes_down += (size := self._weigh(exchange.requests[delivery.client], exchange.counted))
                self.monitor.sent(size, 0)

    def _receive(self, exchange: MessageExchange[T]) -> int:
        """Process the replies that have arrived; returns their number."""
        received = 0
        for message_id, reply in self.channel.pull(list(exchange.pending)):
            self.process(exchange, message_id, reply)
            del reply
            received += 1
        return received

    def process(self, exchange: MessageExchange[T], message_id: str, reply: Message | Exception) -> None:
        """Note what becomes of a client whose reply to this message has arrived."""
        delivery = exchange.pending.pop(message_id)
        if delivery.client not in exchange.open:
            return
        outcome = self._classify(delivery, reply, exchange)
        exchange.record(delivery.client, outcome)
        self._note(delivery, exchange, outcome)

    def _note(self, delivery: Delivery, exchange: MessageExchange[T], outcome: Accepted[T] | Refused | Retry) -> None:
        """Log and count the outcome of a reply; a client whose errors do not pass counts as late."""
        client = delivery.client
        if isinstance(outcome, Accepted):
            self.monitor.replied(client)
        elif isinstance(outcome, Refused):
            self.monitor.refused(client, outcome.label, outcome.reason)
            self._log_refusal(delivery, exchange, outcome.reason)
        elif outcome.reason and exchange.delays[client].attempts >= _ATTEMPTS:
            exchange.give_up(client)
            self.monitor.late(client, outcome.reason)
            _log.warning(
                "Client '%s' cannot answer in round %d, after %d attempts: %s",
                self.registry.names[client],
                wire.round_of(exchange.requests[client]) + 1,
                _ATTEMPTS,
                outcome.reason,
            )

    def _classify(
        self, delivery: Delivery, reply: Message | Exception, exchange: MessageExchange[T]
    ) -> Accepted[T] | Refused | Retry:
        """Decide whether a reply is accepted, refused, or whether its request is repeated."""
        if isinstance(reply, Exception):
            return Refused(f"it cannot be decoded: {reply}", "undecodable")
        if reply.has_error():
            reason = permanent_error(reply)
            return Retry(transient_error(reply)) if reason is None else Refused(reason, error_label(reply))
        if not reply.has_content():
            return Refused("it is empty")
        self._bytes_up += (size := self._weigh(reply.content, exchange.counted))
        self.monitor.sent(0, size)
        if reply.metadata.src_node_id != delivery.session.node:
            return Refused(f"it comes from node {reply.metadata.src_node_id}", "wrong_node")
        try:
            return Accepted(exchange.validate_reply(delivery.client, reply.content))
        except wire.RefusedError as error:
            return Refused(str(error))

    def finished(self, exchange: MessageExchange[T]) -> bool:
        """Whether every open client, if any, has been away for longer than `rejoin` and has no request pending."""
        pending = {delivery.client for delivery in exchange.pending.values()}
        return all(
            client not in pending and self.registry.seconds_away(client) > self.rejoin for client in exchange.open
        )

    def _log_refusal(self, delivery: Delivery, exchange: MessageExchange[T], reason: str) -> None:
        if exchange.kind not in (wire.EVALUATE, wire.SCORES):
            self.refusals.note(delivery.client, reason)
        _log.warning(
            "Refused the reply of client '%s' (node %d) in round %d: %s",
            self.registry.names[delivery.client],
            delivery.session.node,
            wire.round_of(exchange.requests[delivery.client]) + 1,
            one_line(reason, 500),
        )


def next_pause(pause: float, poll: float) -> float:
    """Return the pause before the next query for replies, after one without any."""
    return min(_POLL_BACKOFF * pause, max(poll, _REFRESH_INTERVAL))
