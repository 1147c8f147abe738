"""Exchanges: requests to clients, the nodes that they were sent to, and what has become of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from time import monotonic
from typing import Generic, NamedTuple, TypeVar

from flwr.app import RecordDict

from .node_registry import NodeSession

T = TypeVar("T")


class Replies(NamedTuple, Generic[T]):
    """Result of a request to several clients."""

    accepted: dict[int, T]
    refused: set[int]
    """Clients whose reply is invalid."""
    late: set[int]
    """Clients that did not reply before the deadline."""


class Delivery(NamedTuple):
    """The recipient of a request."""

    client: int
    session: NodeSession


class Accepted(NamedTuple, Generic[T]):
    value: T


class Refused(NamedTuple):
    reason: str
    label: str = "invalid"
    """The reason in one word, for metrics."""


class Retry(NamedTuple):
    """The request failed for a reason that can pass; repeat it."""

    reason: str = ""
    """What the client reports; empty if it reports nothing."""


class RetryDelay(NamedTuple):
    """Pause before a request is repeated; doubles with every retry."""

    seconds: float = 0.5
    until: float = 0.0
    attempts: int = 0

    def next(self) -> RetryDelay:
        return RetryDelay(2 * self.seconds, monotonic() + self.seconds, self.attempts + 1)

    @property
    def elapsed(self) -> bool:
        return monotonic() >= self.until


@dataclass
class MessageExchange(Generic[T]):
    """A request to some clients, until each has answered or is given up."""

    kind: str
    requests: Mapping[int, RecordDict]
    """The content of the request to each client."""
    validate_reply: Callable[[int, RecordDict], T]
    """Returns the decoded reply of a client; raises `wire.RefusedError` if it is invalid."""
    deadline: float
    """When clients are given up, on the monotonic clock."""
    counted: bool = True
    """Whether the bytes are part of the run's traffic."""
    open: set[int] = field(init=False)
    """Clients without an accepted or refused reply."""
    pending: dict[str, Delivery] = field(default_factory=dict)
    """Requests without a reply, by message id."""
    delays: dict[int, RetryDelay] = field(default_factory=dict)
    replies: Replies[T] = field(default_factory=lambda: Replies({}, set(), set()))

    def __post_init__(self) -> None:
        self.open = set(self.requests)

    def ready(self) -> set[int]:
        """Open clients that are not waiting for a retry."""
        return {client for client in self.open if client not in self.delays or self.delays[client].elapsed}

    def give_up(self, client: int) -> None:
        """Count a client as late before the deadline."""
        self.open.discard(client)
        self.replies.late.add(client)

    def record(self, client: int, outcome: Accepted[T] | Refused | Retry) -> None:
        if isinstance(outcome, Retry):
            self.delays[client] = self.delays.get(client, RetryDelay()).next()
            return
        self.open.discard(client)
        if isinstance(outcome, Refused):
            self.replies.refused.add(client)
        else:
            self.replies.accepted[client] = outcome.value
