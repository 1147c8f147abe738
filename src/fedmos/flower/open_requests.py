"""Requests to single clients that are open at the same time, each with a deadline of its own."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from time import monotonic, sleep
from typing import NamedTuple

from flwr.app import Message, RecordDict

from .exchanges import MessageExchange
from .reply_collector import ReplyCollector, next_pause
from .requests import Reply

ValidateReply = Callable[[int, RecordDict], Reply]


class EndedRequest(NamedTuple):
    """A request that is not open any more."""

    client: int
    reply: Reply | None
    """None if there is no valid reply."""
    late: bool = False
    """Whether the client did not reply in time; otherwise a missing reply was refused."""


class _PulledReply(NamedTuple):
    """A reply that has arrived and was not processed."""

    client: int
    message_id: str
    content: Message | Exception


class OpenRequests:
    """Sends requests and returns the replies one by one, in the order of their arrival.

    Of two replies that arrive together, that of the client with the lower number comes first.

    Args:
        collector: The exchange of messages with clients.
        deadline: The seconds after which a client is given up.
    """

    def __init__(self, collector: ReplyCollector, deadline: float) -> None:
        self._collector, self._deadline = collector, deadline
        self._exchanges: dict[int, MessageExchange[Reply]] = {}
        self._pulled: deque[_PulledReply] = deque()

    def open(self, client: int, kind: str, content: RecordDict, validate_reply: ValidateReply) -> None:
        """Open a request to a client. It is sent as soon as its node is connected."""
        self._collector.monitor.ask(kind, [client])
        self._exchanges[client] = MessageExchange(kind, {client: content}, validate_reply, monotonic() + self._deadline)

    def close(self, client: int) -> None:
        """End the request to a client without its reply."""
        del self._exchanges[client]

    def next(self, interrupted: Callable[[], bool]) -> EndedRequest | None:
        """Wait until a request ends, and return how; None once `interrupted` returns true."""
        pause = self._collector.poll
        while True:
            ended = self._processed() or self._given_up()
            if ended is not None:
                return ended
            received = self._poll()
            if not received and interrupted():
                return None
            if not received:
                sleep(pause)
                pause = next_pause(pause, self._collector.poll)

    def _poll(self) -> bool:
        """Send what is due, and look for replies; returns whether there are any."""
        self._collector.refresh_nodes()
        for exchange in self._exchanges.values():
            self._collector.send(exchange)
        senders = {number: i for i, exchange in self._exchanges.items() for number in exchange.pending}
        pulled = list(self._collector.channel.pull(list(senders)))
        arrived = [_PulledReply(senders[number], number, reply) for number, reply in pulled]
        self._pulled.extend(sorted(arrived, key=lambda reply: reply.client))
        return bool(pulled)

    def _processed(self) -> EndedRequest | None:
        """Process replies that have arrived until one ends its request."""
        while self._pulled:
            client, message_id, reply = self._pulled.popleft()
            exchange = self._exchanges.get(client)
            if exchange is None or message_id not in exchange.pending:  # closed since
                continue
            self._collector.process(exchange, message_id, reply)
            if not exchange.open:
                self.close(client)
                return EndedRequest(client, exchange.replies.accepted.get(client), client in exchange.replies.late)
        return None

    def _given_up(self) -> EndedRequest | None:
        """End the first request whose client has missed the deadline or is disconnected."""
        for client, exchange in sorted(self._exchanges.items()):
            if monotonic() >= exchange.deadline or self._collector.finished(exchange):
                self._collector.note_late(client, exchange.kind)
                self.close(client)
                return EndedRequest(client, None, late=True)
        return None
