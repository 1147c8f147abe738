"""Message exchange with SuperNodes over a Flower grid."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import httpx
from flwr.app import Message

from ..core.formatting import one_line
from .client_errors import MEANINGS, TRANSIENT, ClientErrorCode

_log = logging.getLogger("fedmos")

_PERMANENT_ERRORS = {1: "its app cannot be loaded", 2: "its app failed", 6: "a mod failed", 7: "its app is damaged"}
"""Flower's error codes that a retry does not resolve."""


class OutageError(RuntimeError):
    """Too few clients were reachable for longer than the operator allows. The run can be continued."""


_NOT_OF_REPLIES = (httpx.HTTPError, OutageError)
"""Errors of a grid that say nothing about the replies that were pulled."""


class ConnectedNode(Protocol):
    """What a deployment reads of a connected SuperNode."""

    node_id: int
    last_activated_at: str
    public_key: bytes


class MessageGrid(Protocol):
    """The part of a Flower grid that a deployment uses."""

    def get_nodes(self) -> Iterable[ConnectedNode]:
        """Return the connected nodes."""

    def push_messages(self, messages: Sequence[Message]) -> Iterable[str]:
        """Send messages; returns the id of each, empty for a message that was not accepted."""

    def pull_messages(self, message_ids: Sequence[str]) -> Iterable[Message]:
        """Return the replies that have arrived."""


@dataclass
class MessageChannel:
    """Pushes messages to a Flower grid and pulls the replies, one by one if a batch fails.

    Replies are pulled in batches until one of them cannot be decoded. Flower does not report which one it is, and the
    other replies of that batch are lost; the caller requests them again. From then on, replies are pulled one by one.
    """

    grid: MessageGrid
    one_by_one: bool = False
    """Set from the start for large models, of which the memory should not hold several replies."""

    def push(self, messages: Sequence[Message]) -> list[str]:
        """Send messages; returns the id of each, empty for a message that Flower did not accept.

        Flower returns no ids at all if the messages are too large for the SuperLink, and logs why.
        """
        found = [message_id or "" for message_id in self.grid.push_messages(messages)]
        return found or [""] * len(messages)

    def pull(self, message_ids: Sequence[str]) -> Iterable[tuple[str, Message | Exception]]:
        """Return the replies that have arrived, each with the id of its request.

        A reply that cannot be decoded is represented by the exception. Replies that are pulled one by one are not held
        here, so each can be processed before the next one is pulled.
        """
        if self.one_by_one:
            return self._pull_in_turn(message_ids)
        return self._pull_all(message_ids) if message_ids else []

    def _pull_all(self, message_ids: Sequence[str]) -> list[tuple[str, Message | Exception]]:
        try:
            replies = {reply.metadata.reply_to_message_id: reply for reply in self.grid.pull_messages(message_ids)}
        except _NOT_OF_REPLIES:
            raise
        except Exception as error:  # the content is under the client's control, so decoding can fail in any way
            _log.warning(
                "Cannot decode a reply; replies are pulled one by one from now on: %s", one_line(str(error), 500)
            )
            self.one_by_one = True
            return []
        expected = {message_id: reply for message_id, reply in replies.items() if message_id in message_ids}
        if len(expected) < len(replies):  # pulling one by one finds the sender of a reply with a wrong request id
            self.one_by_one = True
        return list(expected.items())

    def _pull_in_turn(self, message_ids: Sequence[str]) -> Iterator[tuple[str, Message | Exception]]:
        for message_id in message_ids:
            pulled = self._pull_one(message_id)
            while pulled:
                yield pulled.pop()  # which is not held while the next one is pulled

    def _pull_one(self, message_id: str) -> list[tuple[str, Message | Exception]]:
        try:
            replies = list(self.grid.pull_messages([message_id]))[:1]
        except _NOT_OF_REPLIES:
            raise
        except Exception as error:
            return [(message_id, error)]
        return [(message_id, _checked(reply, message_id)) for reply in replies]


def _checked(reply: Message, message_id: str) -> Message | Exception:
    if reply.metadata.reply_to_message_id == message_id:
        return reply
    return ValueError("it names another request as the one that it replies to")


def error_label(reply: Message) -> str:
    """Return one word for the error of a reply, by which metrics are counted."""
    code = reply.error.code
    return ClientErrorCode(code).name.lower() if code in MEANINGS else f"flower_{code}"


def transient_error(reply: Message) -> str:
    """Describe an error that a client reports and that can pass; empty for errors of Flower that can pass."""
    code = reply.error.code
    if code not in TRANSIENT:
        return ""
    return f"{MEANINGS[ClientErrorCode(code)]} (code {code}); the reason is in the client's own log"


def permanent_error(reply: Message) -> str | None:
    """Describe the error of a reply by its code, or return None if the request is worth a retry.

    The text of the error is under the client's control and may quote its data, so it is not used.
    """
    code = reply.error.code
    if code in _PERMANENT_ERRORS:
        why = "the reason is in the client's own log, for example that it runs another app"
        return f"{_PERMANENT_ERRORS[code]} (Flower's code {code}); {why}"
    if code in MEANINGS and code not in TRANSIENT:
        return f"{MEANINGS[ClientErrorCode(code)]} (code {code}); the reason is in the client's own log"
    return None
