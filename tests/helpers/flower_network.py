"""A Flower grid in this process: nodes that run a client app, and whose replies a test may tamper with."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from flwr.app import Context, Error, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.proto.node_pb2 import NodeInfo
from flwr.serverapp import Grid
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects
from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents
from flwr.supercore.task_identity import TaskIdentity

TaskIdentity.task_id = TaskIdentity.run_id = TaskIdentity.node_id = 1


class Node:
    """A SuperNode; every message meets a new process, that is, a new app."""

    def __init__(self, number: int, app: Callable[[], ClientApp], config: dict[str, Any]) -> None:
        self.number, self.starts, self.online = number, 1, True
        self.key = b""
        self._app, self._config = app, config

    def answer(self, message: Message) -> Message:
        context = Context(run_id=1, node_id=self.number, node_config=self._config, state=RecordDict(), run_config={})
        try:
            return self._app()(message, context)
        except Exception as error:
            return Message(Error(code=2, reason=f"{type(error)}:<'{error}'>"), reply_to=message)


class Network(Grid):
    """Nodes by number. A reply is made when it is looked for; `tamper` sees it before the server does."""

    def __init__(self, app: Callable[[], ClientApp], state: Path, clients: Iterable[Any]) -> None:
        self.nodes = {
            100 + i: Node(100 + i, app, {"client": client, "state": str(state)}) for i, client in enumerate(clients)
        }
        self.tamper: Callable[[Message, Message], Message | Exception | None] = lambda request, reply: reply
        """Request, reply → what arrives instead: another reply, none ever, or something that cannot be put together."""
        self.sent: list[Message] = []
        self._open: dict[str, Message] = {}

    def set_run(self, run: Any) -> None: ...

    @property
    def run(self) -> Any: ...

    def create_message(self, *args: Any, **kwargs: Any) -> Message:
        raise NotImplementedError

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Iterable[Message]:
        raise NotImplementedError

    def get_node_ids(self) -> list[int]:
        return [node.node_id for node in self.get_nodes()]

    def get_nodes(self) -> list[NodeInfo]:
        there = [node for node in self.nodes.values() if node.online]
        return [
            NodeInfo(node_id=node.number, last_activated_at=str(node.starts), public_key=node.key) for node in there
        ]

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        numbers = []
        for message in messages:
            message.metadata.__dict__["_message_id"] = f"{message.object_id}-{len(self.sent):06}"
            self.sent.append(message)
            numbers.append(message.metadata.message_id)
            self._open[numbers[-1]] = message
        return numbers

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        """Like Flower's: what is there is delivered once, even if one of the replies cannot be put together."""
        replies, broken = [], []
        for number in message_ids:
            if number not in self._open:
                gone = Message(Error(code=3, reason="Message Unavailable"), reply_to=self.sent[int(number[-6:])])
                replies.append(carried(gone))
                continue
            request = self._open[number]
            node = self.nodes[request.metadata.dst_node_id]
            if not node.online:
                reply = Message(Error(code=5, reason="Node Unavailable"), reply_to=request)
            else:
                received = carried(request)
                received.metadata.__dict__["_message_id"] = number
                reply = self.tamper(request, node.answer(received))
            if reply is not None:
                del self._open[number]
                broken += [reply] if isinstance(reply, Exception) else []
                replies += [] if isinstance(reply, Exception) else [carried(reply)]
        if broken:
            raise broken[0]
        return replies


def carried(message: Message) -> Message:
    """As it arrives after Flower has taken it apart and put it together."""
    contents = {number: part.deflate() for number, part in get_all_nested_objects(message).items()}
    return inflate_object_from_contents(message.object_id, contents)
