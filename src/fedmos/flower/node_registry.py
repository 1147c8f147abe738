"""Mapping from clients to the SuperNodes that serve them.

The registry requests the client's name from every new node. Clients keep the numbers that the configuration gives them.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from time import monotonic
from typing import NamedTuple

from flwr.app import Message, RecordDict

from ..core.formatting import format_value, one_line
from . import wire
from .channel import MessageChannel, permanent_error
from .input_columns import InputColumns
from .node_identities import NodeIdentities
from .sample_counts import SampleCounts

_log = logging.getLogger("fedmos")

_HELLO_TIMEOUT = 60.0
"""Seconds after which an unanswered identification request is repeated."""
_REFUSED_INTERVAL = 60.0
"""Seconds after which a refused node is asked again: its app or its data may have been corrected without a restart."""


class NodeSession(NamedTuple):
    """A SuperNode since its last start."""

    node: int
    since: str


@dataclass
class NodeRegistry:
    """The connected SuperNodes and their clients, as of the last `refresh`."""

    channel: MessageChannel
    names: Sequence[str]
    """Names of all clients, in the order of their numbers."""
    run: str
    compatibility_hash: str
    """Hash of the configuration, model and fedmos version that every client must share with the server."""
    samples: dict[int, int] = field(default_factory=dict)
    """Number of samples of each client, as far as known."""
    identities: NodeIdentities = field(default_factory=NodeIdentities)
    """The keys of the clients."""
    counts: SampleCounts = field(default_factory=SampleCounts)
    """Which numbers of samples are accepted."""
    columns: InputColumns = field(default_factory=InputColumns)
    """Which columns of clients' tables are accepted."""
    refused_nodes: int = 0
    """How many nodes were refused."""
    retired: frozenset[int] = frozenset()
    """The clients that the operator has removed."""

    def __post_init__(self) -> None:
        self._pending: dict[str, NodeSession] = {}
        """Identification requests without a reply, by message id."""
        self._public_keys: dict[int, bytes] = {}
        """The public key of each connected node, which the SuperLink has verified."""
        self._identified: dict[NodeSession, int] = {}
        """The client that each accepted node reports."""
        self._refused_at: dict[NodeSession, tuple[float, str]] = {}
        """When and why each refused node was refused."""
        self._sessions: dict[int, NodeSession] = {}
        self._last_seen = dict.fromkeys(range(len(self.names)), monotonic())
        """When each client was last connected; initially, when the registry was created."""
        self._refusals: dict[int, str] = {}
        """Why the node of a client was refused, until one is accepted."""
        self._duplicates: set[tuple[NodeSession, int]] = set()
        """Nodes that claim another node's client, and have been logged."""

    def session(self, client: int) -> NodeSession | None:
        """Return the node session of a client; None while the client is not connected."""
        return self._sessions.get(client)

    def describe(self, client: int) -> str:
        """Name a client and its node for the log."""
        session = self.session(client)
        return f"client '{self.names[client]}'" + ("" if session is None else f" (node {session.node})")

    @property
    def identifying(self) -> bool:
        """Whether identification requests are pending."""
        return bool(self._pending)

    @property
    def refusals(self) -> Mapping[int, str]:
        """Why the node of a client was refused, until one is accepted."""
        return self._refusals

    @property
    def connected(self) -> set[int]:
        """The clients that are connected."""
        return set(self._sessions)

    def seconds_away(self, client: int) -> float:
        """Seconds since a client was last connected; 0 while it is."""
        return 0.0 if client in self._sessions else monotonic() - self._last_seen[client]

    def expect(self, clients: Iterable[int]) -> None:
        """Count the time for which clients are away from now on."""
        self._last_seen |= dict.fromkeys(clients, monotonic())

    def refusal(self, client: int) -> str | None:
        """Return why the node of a client was refused; None if none was since one was accepted."""
        return self._refusals.get(client)

    def absence(self, client: int) -> str:
        """Name a client for the log, and say why it is away, as far as known."""
        name = self.names[client]
        if client in self._sessions:
            return f"{name} (connected, but it does not reply)"
        if client in self._refusals:
            return f"{name} (refused: {self._refusals[client]})"
        if any(self.identities.owner(key) == name for key in self._public_keys.values()):
            return f"{name} (its node is connected, but its app has not answered)"
        return name

    def refresh(self) -> None:
        """Query the grid for connected nodes, identify new ones, and assign nodes to clients."""
        nodes = list(self.channel.grid.get_nodes())
        online = {NodeSession(node.node_id, node.last_activated_at) for node in nodes}
        self._public_keys = {node.node_id: node.public_key for node in nodes}
        self._identified = {session: client for session, client in self._identified.items() if session in online}
        self._pending = {message_id: session for message_id, session in self._pending.items() if session in online}
        self._duplicates = {(session, client) for session, client in self._duplicates if session in online}
        self._refused_at = {session: known for session, known in self._refused_at.items() if session in online}
        waiting = {at for at, (since, _) in self._refused_at.items() if monotonic() - since < _REFUSED_INTERVAL}
        self._request_identities(sorted(online - set(self._identified) - waiting - set(self._pending.values())))
        for message_id, reply in self.channel.pull(list(self._pending)):
            self._process_reply(self._pending.pop(message_id), reply)
        self._sessions = self._assign_sessions()
        self._last_seen |= dict.fromkeys(self._sessions, monotonic())

    def _request_identities(self, sessions: Sequence[NodeSession]) -> None:
        if not sessions:
            return
        header = {"run": self.run, "round": -1, "client": -1}
        messages = [Message(wire.compose(header), session.node, wire.HELLO, ttl=_HELLO_TIMEOUT) for session in sessions]
        message_ids = self.channel.push(messages)
        self._pending |= {
            message_id: session for message_id, session in zip(message_ids, sessions, strict=True) if message_id
        }

    def _process_reply(self, session: NodeSession, reply: Message | Exception) -> None:
        """Note the client that a node reports, or refuse the node. A node with a transient error is queried again."""
        if isinstance(reply, Exception):
            self._refuse(session, f"its reply cannot be decoded: {reply}")
        elif reply.has_error():
            if (reason := permanent_error(reply)) is not None:
                self._refuse(session, reason)
                self._refusals |= dict.fromkeys(self._bound(session), reason)
        elif not reply.has_content():
            self._refuse(session, "its reply is empty")
        else:
            try:
                self._identified[session] = client = self._identify(session, reply.content)
                self._refused_at.pop(session, None)
                self._refusals.pop(client, None)
            except wire.RefusedError as error:
                self._refuse(session, str(error))
                self._refusals |= dict.fromkeys(self._claimed(reply.content), one_line(str(error), 200))

    def _identify(self, session: NodeSession, content: RecordDict) -> int:
        """Validate the reply to an identification request; returns the client's number."""
        header = wire.header_up(wire.HELLO, content)
        wire.check_equal(header, run=self.run, round=-1)
        if header["name"] not in self.names:
            raise wire.RefusedError(f"there is no client {format_value(header['name'])}")
        client = list(self.names).index(header["name"])
        if client in self.retired:
            raise wire.RefusedError(f"client '{header['name']}' is retired")
        wire.check_equal(header, client=client)
        key = self._public_keys.get(session.node, b"")
        self.identities.check(header["name"], key)
        if header[wire.COMPATIBILITY_HASH] != self.compatibility_hash:
            raise wire.RefusedError("its configuration, model or fedmos version differs from the server's")
        self.counts.check(header["name"], header["samples"], self.samples.get(client))
        self.columns.check(header["name"], header[wire.INPUTS_HASH])
        self.identities.bind(header["name"], key)
        self.samples[client] = header["samples"]
        return client

    def _claimed(self, content: RecordDict) -> list[int]:
        """Return the client that a refused node claims to be, in a list; an empty one if there is no such client."""
        try:
            name = wire.header_up(wire.HELLO, content)["name"]
        except wire.RefusedError:
            return []
        return [i for i, known in enumerate(self.names) if known == name]

    def _bound(self, session: NodeSession) -> list[int]:
        """Return the client to whose name a node's key is bound, in a list; an empty one if there is none."""
        name = self.identities.owner(self._public_keys.get(session.node, b""))
        return [i for i, known in enumerate(self.names) if known == name]

    def _refuse(self, session: NodeSession, reason: str) -> None:
        """Refuse a node for now. A refusal that is repeated for the same reason is neither counted nor logged again."""
        _, before = self._refused_at.get(session, (0.0, None))
        self._refused_at[session] = monotonic(), reason
        if reason != before:
            self.refused_nodes += 1
            _log.warning("Refused node %d: %s", session.node, one_line(reason, 500))

    def _assign_sessions(self) -> dict[int, NodeSession]:
        """Return the node of each client. If several nodes claim a client, the first keeps it while it is connected."""
        claims: dict[int, list[NodeSession]] = {}
        for session, client in self._identified.items():
            claims.setdefault(client, []).append(session)
        assigned = {}
        for client, claiming in claims.items():
            # A restarted node is listed once: its previous session is no longer online.
            current = self._sessions.get(client)
            assigned[client] = current if current is not None and current in claiming else claiming[0]
            for other in claiming:
                if other != assigned[client]:
                    self._log_duplicate(other, client, assigned[client])
        return assigned

    def _log_duplicate(self, session: NodeSession, client: int, first: NodeSession) -> None:
        if (session, client) not in self._duplicates:
            self._duplicates.add((session, client))
            _log.warning(
                "Node %d claims to be client '%s', which node %d already serves",
                session.node,
                self.names[client],
                first.node,
            )
