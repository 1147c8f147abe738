"""Which node is which client. Nodes are asked; clients keep the numbers that the configuration gives them."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field
from time import monotonic
from typing import NamedTuple

from flwr.app import Message, RecordDict

from ..core.formatting import format_value, one_line
from . import wire
from .reply_collector import Inbox, why

_log = logging.getLogger("fedmos")

_MOST_SAMPLES = 2**40
_PATIENCE = 60.0
"""Seconds after which a node is asked again who it is."""


class NodeSession(NamedTuple):
    """A node since its last start."""

    node: int
    since: str


@dataclass
class NodeRegistry:
    """Clients and their nodes, as of the last look."""

    inbox: Inbox
    names: Sequence[str]
    run: str
    agreement: str
    samples: dict[int, int] = field(default_factory=dict)
    """n_i of the clients of whom it is known."""

    def __post_init__(self) -> None:
        self._asked: dict[str, NodeSession] = {}
        self._told: dict[NodeSession, int | None] = {}
        """Who each node says it is; None if it cannot be used."""
        self._seats: dict[int, NodeSession] = {}
        self._seen = dict.fromkeys(range(len(self.names)), monotonic())
        """When each client was last there, or else when the roster was begun."""
        self._warned: set[tuple[NodeSession, int]] = set()

    def seat(self, client: int) -> NodeSession | None:
        """Where a client is to be found; None while it is not there."""
        return self._seats.get(client)

    @property
    def asking(self) -> bool:
        """Whether somebody was asked who it is, and has not answered."""
        return bool(self._asked)

    @property
    def present(self) -> set[int]:
        return set(self._seats)

    def away(self, client: int) -> float:
        """For how many seconds a client has not been there."""
        return 0.0 if client in self._seats else monotonic() - self._seen[client]

    def look(self) -> None:
        """See who is there, and ask newcomers who they are."""
        online = {NodeSession(node.node_id, node.last_activated_at) for node in self.inbox.grid.get_nodes()}
        self._told = {seat: client for seat, client in self._told.items() if seat in online}
        self._asked = {number: seat for number, seat in self._asked.items() if seat in online}
        new = sorted(online - set(self._told) - set(self._asked.values()))
        if new:
            header = {"run": self.run, "round": -1, "client": -1}
            letters = [Message(wire.compose(header), seat.node, wire.HELLO, ttl=_PATIENCE) for seat in new]
            numbers = self.inbox.grid.push_messages(letters)
            self._asked |= {number: seat for number, seat in zip(numbers, new, strict=True) if number}
        for number, reply in self.inbox.pull(list(self._asked)):
            seat = self._asked.pop(number)
            if isinstance(reply, Message):
                self._hear(seat, reply)
            else:
                self._refuse(seat, f"its answer cannot be put together: {reply}")
        self._seats = self._seated()
        self._seen |= dict.fromkeys(self._seats, monotonic())

    def _hear(self, seat: NodeSession, reply: Message) -> None:
        if reply.has_error():
            if (lasting := why(reply)) is not None:
                self._refuse(seat, lasting)
            return  # else it will be asked again
        try:
            if not reply.has_content():
                raise wire.RefusedError("its answer is empty")
            self._told[seat] = self._client(reply.content)
        except wire.RefusedError as error:
            self._refuse(seat, str(error))

    def _client(self, content: RecordDict) -> int:
        """Who a node says it is."""
        said = wire.header_up(wire.HELLO, content)
        wire.check_equal(said, run=self.run, round=-1)
        if said["name"] not in self.names:
            raise wire.RefusedError(f"there is no client {format_value(said['name'])}")
        client = list(self.names).index(said["name"])
        wire.check_equal(said, client=client)
        if said["agreement"] != self.agreement:
            raise wire.RefusedError("its configuration, its model or its fedmos is another")
        if not 1 <= said["samples"] <= _MOST_SAMPLES:
            raise wire.RefusedError(f"it cannot have {said['samples']} samples")
        wire.check_equal(said, samples=self.samples.setdefault(client, said["samples"]))
        return client

    def _refuse(self, seat: NodeSession, reason: str) -> None:
        self._told[seat] = None
        _log.warning("Refused node %d: %s", seat.node, one_line(reason, 500))

    def _seated(self) -> dict[int, NodeSession]:
        """The node of each client: of several that claim to be one, who came first, for as long as it stays."""
        claims: dict[int, list[NodeSession]] = {}
        for seat, client in self._told.items():
            if client is not None:
                claims.setdefault(client, []).append(seat)
        seats = {}
        for client, claiming in claims.items():
            # The same node, started again, is listed once: its earlier start is no longer online.
            seats[client] = self._seats[client] if self._seats.get(client) in claiming else claiming[0]
            for other in claiming:
                if other != seats[client] and (other, client) not in self._warned:
                    self._warned.add((other, client))
                    first, name = seats[client].node, self.names[client]
                    _log.warning("Node %d says it is client '%s', which node %d is already", other.node, name, first)
        return seats
