"""Requests to clients: sent, repeated for nodes that were restarted, and collected until a deadline.

Flower's own `Grid.send_and_receive` polls every three seconds, waits for all replies or none, and fails as a whole
when it cannot decode one reply.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from time import monotonic, sleep
from typing import Generic, NamedTuple, TypeVar

from flwr.app import Message, RecordDict

from ..core.formatting import one_line
from . import wire
from .channel import MessageChannel, permanent_error
from .node_registry import NodeRegistry, NodeSession

_log = logging.getLogger("fedmos")

_REFRESH_INTERVAL = 1.0
"""Seconds between two queries for the list of connected nodes."""
_POLL_BACKOFF = 1.3
"""Growth factor of the polling interval while no reply arrives."""

T = TypeVar("T")


class Replies(NamedTuple, Generic[T]):
    """Result of a request to several clients."""

    accepted: dict[int, T]
    refused: set[int]
    """Clients whose reply is invalid."""
    late: set[int]
    """Clients that did not reply before the deadline."""


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
        exchange = _Exchange(kind, requests, validate_reply, monotonic() + timeout, counted)
        pause = self.poll
        while exchange.open and monotonic() < exchange.deadline:
            self.refresh_nodes()
            self._send(exchange)
            received = self._receive(exchange)
            if self._finished(exchange):
                break
            pause = self.poll if received else min(_POLL_BACKOFF * pause, max(self.poll, _REFRESH_INTERVAL))
            sleep(pause)
        exchange.replies.late.update(exchange.open)
        for client in sorted(exchange.open):
            _log.warning("Client '%s' did not reply in time (%s)", self.registry.names[client], kind)
        return exchange.replies

    def refresh_nodes(self) -> None:
        """Update the registry: once per interval, or at every call while nodes are being identified."""
        if monotonic() - self._refreshed >= _REFRESH_INTERVAL or self.registry.identifying:
            self.registry.refresh()
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

    def _send(self, exchange: _Exchange[T]) -> None:
        """Send the requests that are due: to connected clients whose current session has not received them."""
        pending = set(exchange.pending.values())
        due = [
            _Delivery(client, session)
            for client in sorted(exchange.ready())
            if (session := self.registry.session(client)) is not None and _Delivery(client, session) not in pending
        ]
        if not due:
            return
        ttl = max(1.0, exchange.deadline - monotonic())
        messages = [Message(exchange.requests[to.client], to.session.node, exchange.kind, ttl=ttl) for to in due]
        for message_id, delivery in zip(self.channel.push(messages), due, strict=True):
            if message_id:
                exchange.pending[message_id] = delivery
                self._bytes_down += self._weigh(exchange.requests[delivery.client], exchange.counted)

    def _receive(self, exchange: _Exchange[T]) -> int:
        """Process the replies that have arrived; returns their number."""
        pulled = self.channel.pull(list(exchange.pending))
        for message_id, reply in pulled:
            delivery = exchange.pending.pop(message_id)
            if delivery.client in exchange.open:
                outcome = self._classify(delivery, reply, exchange)
                exchange.record(delivery.client, outcome)
                if isinstance(outcome, _Refused):
                    self._log_refusal(delivery, exchange, outcome.reason)
        return len(pulled)

    def _classify(
        self, delivery: _Delivery, reply: Message | Exception, exchange: _Exchange[T]
    ) -> _Accepted[T] | _Refused | _Retry:
        """Decide whether a reply is accepted, refused, or whether its request is repeated."""
        if isinstance(reply, Exception):
            return _Refused(f"it cannot be decoded: {reply}")
        if reply.has_error():
            reason = permanent_error(reply)
            return _Retry() if reason is None else _Refused(reason)
        if not reply.has_content():
            return _Refused("it is empty")
        self._bytes_up += self._weigh(reply.content, exchange.counted)
        if reply.metadata.src_node_id != delivery.session.node:
            return _Refused(f"it comes from node {reply.metadata.src_node_id}")
        try:
            return _Accepted(exchange.validate_reply(delivery.client, reply.content))
        except wire.RefusedError as error:
            return _Refused(str(error))

    def _finished(self, exchange: _Exchange[T]) -> bool:
        """Whether every open client, if any, has been away for longer than `rejoin` and has no request pending."""
        pending = {delivery.client for delivery in exchange.pending.values()}
        return all(
            client not in pending and self.registry.seconds_away(client) > self.rejoin for client in exchange.open
        )

    def _log_refusal(self, delivery: _Delivery, exchange: _Exchange[T], reason: str) -> None:
        _log.warning(
            "Refused the reply of client '%s' (node %d) in round %d: %s",
            self.registry.names[delivery.client],
            delivery.session.node,
            wire.round_of(exchange.requests[delivery.client]) + 1,
            one_line(reason, 500),
        )


class _Delivery(NamedTuple):
    """The recipient of a request."""

    client: int
    session: NodeSession


class _Accepted(NamedTuple, Generic[T]):
    value: T


class _Refused(NamedTuple):
    reason: str


class _Retry(NamedTuple):
    """The request failed for a reason that can pass; repeat it."""


class _RetryDelay(NamedTuple):
    """Pause before a request is repeated; doubles with every retry."""

    seconds: float = 0.5
    until: float = 0.0

    def next(self) -> _RetryDelay:
        return _RetryDelay(2 * self.seconds, monotonic() + self.seconds)

    @property
    def elapsed(self) -> bool:
        return monotonic() >= self.until


@dataclass
class _Exchange(Generic[T]):
    """State of one call of `ReplyCollector.collect`."""

    kind: str
    requests: Mapping[int, RecordDict]
    validate_reply: Callable[[int, RecordDict], T]
    deadline: float
    counted: bool
    open: set[int] = field(init=False)
    """Clients without an accepted or refused reply."""
    pending: dict[str, _Delivery] = field(default_factory=dict)
    """Requests without a reply, by message id."""
    delays: dict[int, _RetryDelay] = field(default_factory=dict)
    replies: Replies[T] = field(default_factory=lambda: Replies({}, set(), set()))

    def __post_init__(self) -> None:
        self.open = set(self.requests)

    def ready(self) -> set[int]:
        """Open clients that are not waiting for a retry."""
        return {client for client in self.open if client not in self.delays or self.delays[client].elapsed}

    def record(self, client: int, outcome: _Accepted[T] | _Refused | _Retry) -> None:
        if isinstance(outcome, _Retry):
            self.delays[client] = self.delays.get(client, _RetryDelay()).next()
            return
        self.open.discard(client)
        if isinstance(outcome, _Refused):
            self.replies.refused.add(client)
        else:
            self.replies.accepted[client] = outcome.value
