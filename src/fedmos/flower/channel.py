"""Message exchange with SuperNodes over a Flower grid."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass

import httpx
from flwr.app import Message
from flwr.serverapp import Grid

from ..core.formatting import one_line

_log = logging.getLogger("fedmos")

_PERMANENT_ERRORS = {1: "its app cannot be loaded", 2: "its app failed", 6: "a mod failed", 7: "its app is damaged"}
"""Flower's error codes that a retry does not resolve. A request is repeated after any other error."""


@dataclass
class MessageChannel:
    """Pushes messages to a Flower grid and pulls the replies, one by one if a batch fails.

    Replies are pulled in batches until one of them cannot be decoded. Flower does not report which one it is, and the
    other replies of that batch are lost; the caller requests them again. From then on, replies are pulled one by one.
    """

    grid: Grid
    one_by_one: bool = False

    def push(self, messages: Sequence[Message]) -> list[str]:
        """Send messages; returns the id of each, empty for a message that Flower did not accept."""
        return [message_id or "" for message_id in self.grid.push_messages(messages)]

    def pull(self, message_ids: Sequence[str]) -> list[tuple[str, Message | Exception]]:
        """Return the replies that have arrived, each with the id of its request.

        A reply that cannot be decoded is represented by the exception.
        """
        if not message_ids:
            return []
        if self.one_by_one:
            return [pulled for message_id in message_ids for pulled in self._pull_one(message_id)]
        try:
            replies = {reply.metadata.reply_to_message_id: reply for reply in self.grid.pull_messages(message_ids)}
        except httpx.HTTPError:
            raise
        except Exception as error:  # the content is under the client's control, so decoding can fail in any way
            _log.warning("Cannot decode a reply; replies are pulled one by one from now on: %s", error)
            self.one_by_one = True
            return []
        expected = {message_id: reply for message_id, reply in replies.items() if message_id in message_ids}
        if len(expected) < len(replies):  # pulling one by one finds the sender of a reply with a wrong request id
            self.one_by_one = True
        return list(expected.items())

    def _pull_one(self, message_id: str) -> list[tuple[str, Message | Exception]]:
        try:
            replies = list(self.grid.pull_messages([message_id]))[:1]
        except httpx.HTTPError:
            raise
        except Exception as error:
            return [(message_id, error)]
        return [(message_id, _checked(reply, message_id)) for reply in replies]


def _checked(reply: Message, message_id: str) -> Message | Exception:
    if reply.metadata.reply_to_message_id == message_id:
        return reply
    return ValueError("it names another request as the one that it replies to")


def permanent_error(reply: Message) -> str | None:
    """Describe the error of a reply, or return None if the request is worth a retry."""
    error = reply.error
    if error.code not in _PERMANENT_ERRORS:
        return None
    return f"{_PERMANENT_ERRORS[error.code]}: {one_line(error.reason or 'no reason given', 400)}"
