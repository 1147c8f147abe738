"""Messages to clients and back: sent, sent again to a node that was restarted, collected until a deadline.

Flower's own `send_and_receive` looks for replies every three seconds, waits for all of them or none, and fails as a
whole at a reply that it cannot put together.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from time import monotonic, sleep
from typing import TYPE_CHECKING, Generic, NamedTuple, TypeVar

import httpx
from flwr.app import Message, RecordDict
from flwr.serverapp import Grid

from ..core.formatting import one_line
from . import wire

if TYPE_CHECKING:
    from .node_registry import NodeRegistry, NodeSession

_log = logging.getLogger("fedmos")

_LOOK = 1.0
"""Seconds between looks at who is there."""
_PATIENCE = 1.3
"""By how much the pause between looks for replies grows while none comes."""
_LASTING = {1: "its app cannot be loaded", 2: "its app failed", 6: "a mod failed", 7: "its app is damaged"}
"""Flower's codes of errors that would come again; after others a request is repeated."""

T = TypeVar("T")


class Answers(NamedTuple, Generic[T]):
    """What came of a request to several clients."""

    good: dict[int, T]
    refused: set[int]
    """Whose reply cannot be used."""
    late: set[int]
    """Who did not answer in time."""


class _Sent(NamedTuple):
    client: int
    seat: NodeSession


class _Pause(NamedTuple):
    """Before a request is repeated: each is twice as long as the last."""

    seconds: float = 0.5
    until: float = 0.0

    def next(self) -> _Pause:
        return _Pause(2 * self.seconds, monotonic() + self.seconds)

    @property
    def over(self) -> bool:
        return monotonic() >= self.until


@dataclass
class ReplyCollector:
    """The server's correspondence."""

    inbox: Inbox
    roster: NodeRegistry
    poll: float
    rejoin: float
    down: int = 0
    """Bytes of vectors and numbers sent so far, where they count."""
    up: int = 0
    _looked: float = field(default=float("-inf"))

    def collect(
        self,
        kind: str,
        letters: Mapping[int, RecordDict],
        judge: Callable[[int, RecordDict], T],
        seconds: float,
        counted: bool = True,
    ) -> Answers[T]:
        """Send each client its letter, and give its reply to `judge`, which returns what it is worth or refuses it."""
        began = monotonic()
        answers: Answers[T] = Answers({}, set(), set())
        open_, sent, pauses = set(letters), dict[str, _Sent](), dict[int, _Pause]()
        pause = self.poll
        while open_ and monotonic() - began < seconds:
            self.look()
            ready = {client for client in open_ if client not in pauses or pauses[client].over}
            self._send(kind, {i: letters[i] for i in ready}, sent, began + seconds - monotonic(), counted)
            replies = self.inbox.pull(list(sent))
            for number, reply in replies:
                client, seat = sent.pop(number)
                if client not in open_:
                    continue
                verdict = self._verdict(client, seat, reply, judge, answers.good, counted)
                if verdict is None:  # to be sent again, after a while
                    pauses[client] = pauses.get(client, _Pause()).next()
                    continue
                open_.discard(client)
                if verdict:
                    answers.refused.add(client)
                    self._say_refused(client, seat, letters[client], verdict)
            waiting = {client for client, _ in sent.values()}
            if all(client not in waiting and self.roster.away(client) > self.rejoin for client in open_):
                break
            pause = self.poll if replies else min(_PATIENCE * pause, max(self.poll, _LOOK))
            if open_:
                sleep(pause)
        answers.late.update(open_)
        for client in sorted(open_):
            _log.warning("Client '%s' did not answer in time (%s)", self.roster.names[client], kind)
        return answers

    def look(self) -> None:
        """See who is there; not too often, unless newcomers are about to say who they are."""
        if monotonic() - self._looked >= _LOOK or self.roster.asking:
            self.roster.look()
            self._looked = monotonic()

    def _send(
        self,
        kind: str,
        letters: Mapping[int, RecordDict],
        sent: dict[str, _Sent],
        ttl: float,
        counted: bool,
    ) -> None:
        """To everyone who is there and has not got it since its node was started."""
        under_way = set(sent.values())
        going = [
            _Sent(client, seat)
            for client in sorted(letters)
            if (seat := self.roster.seat(client)) is not None and _Sent(client, seat) not in under_way
        ]
        if not going:
            return
        messages = [Message(letters[client], seat.node, kind, ttl=max(1.0, ttl)) for client, seat in going]
        for number, one in zip(self.inbox.grid.push_messages(messages), going, strict=True):
            if number:
                sent[number] = one
                self.down += counted * wire.payload(letters[one.client])

    def _verdict(
        self,
        client: int,
        seat: NodeSession,
        reply: Message | Exception,
        judge: Callable[[int, RecordDict], T],
        good: dict[int, T],
        counted: bool,
    ) -> str | None:
        """Empty if the reply is good, why it is refused, or None if the request is to be repeated."""
        if isinstance(reply, Exception):
            return f"it cannot be put together: {reply}"
        if reply.has_error():
            return why(reply)
        if not reply.has_content():
            return "it is empty"
        self.up += counted * wire.payload(reply.content)
        try:
            if reply.metadata.src_node_id != seat.node:
                raise wire.RefusedError(f"it comes from node {reply.metadata.src_node_id}")
            good[client] = judge(client, reply.content)
        except wire.RefusedError as error:
            return str(error)
        return ""

    def _say_refused(self, client: int, seat: NodeSession, letter: RecordDict, reason: str) -> None:
        _log.warning(
            "Refused the reply of client '%s' (node %d) in round %d: %s",
            self.roster.names[client],
            seat.node,
            wire.round_of(letter) + 1,
            one_line(reason, 500),
        )


@dataclass
class Inbox:
    """Where replies arrive.

    All that is there is taken at once, until one of the replies cannot be put together. Flower does not say whose that
    was, and those that came with it are lost and asked for again; from then on they are taken one by one.
    """

    grid: Grid
    apart: bool = False

    def pull(self, numbers: Sequence[str]) -> list[tuple[str, Message | Exception]]:
        """Replies that are there, or what was wrong with them, with the numbers of what they reply to."""
        if not numbers:
            return []
        if self.apart:
            return [found for number in numbers for found in self._pull_one(number)]
        try:
            replies = {reply.metadata.reply_to_message_id: reply for reply in self.grid.pull_messages(numbers)}
        except httpx.HTTPError:
            raise
        except Exception as error:  # what a client sent is no message, and fails in whatever way
            _log.warning("A reply cannot be put together, so they are taken one by one from now on: %s", error)
            self.apart = True
            return []
        known = {number: reply for number, reply in replies.items() if number in numbers}
        if len(known) < len(replies):  # who says to reply to something else is found out one by one
            self.apart = True
        return list(known.items())

    def _pull_one(self, number: str) -> list[tuple[str, Message | Exception]]:
        try:
            replies = list(self.grid.pull_messages([number]))[:1]
        except httpx.HTTPError:
            raise
        except Exception as error:
            return [(number, error)]
        return [(number, reply if _replies_to(reply, number) else ValueError(_STRAY)) for reply in replies]


_STRAY = "it says that it replies to something else"


def _replies_to(reply: Message, number: str) -> bool:
    return bool(reply.metadata.reply_to_message_id == number)


def why(reply: Message) -> str | None:
    """What Flower says is wrong, if that will stay so; None if it is worth another try."""
    error = reply.error
    if error.code not in _LASTING:
        return None
    return f"{_LASTING[error.code]}: {one_line(error.reason or 'no reason given', 400)}"
