"""A SuperNode with shorter pauses, that can come back at once after it was killed, and does not fall behind.

    python node.py --poll SECONDS --memory FILE ARGUMENTS OF flower-supernode...

Flower's SuperNode asks for messages every 3 s, for its app's reply every 0.5 s, and for a part of a message that has
not arrived after 1 s, 2 s and so on; none of it can be set. And a SuperNode that was killed is taken to be online for
another minute, during which its successor, which has the same key, is turned away. So this one keeps in FILE the number
that it is signed on under, and first signs that off. What `OrderedReplies` is for, it says.

Run as a file, so that a SuperNode does not hold fedmos and PyTorch in memory.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import httpx
from flwr.proto.fleet_pb2 import DeactivateNodeRequest
from flwr.supercore.inflatable.inflatable_utils import pull_objects
from flwr.supernode.cli import flower_supernode


class BriefPauses:
    """The module `time`, but that no sleep is longer than so many seconds."""

    def __init__(self, longest: float) -> None:
        self.longest = longest

    def sleep(self, seconds: float) -> None:
        time.sleep(min(seconds, self.longest))

    def __getattr__(self, name: str) -> Any:
        return getattr(time, name)


class OrderedReplies:
    """The two halves of a SuperNode's loop: pull a message, then send replies until that one's is among them.

    Flower's own sends whichever reply comes next. But a message whose run ends while it arrives is said to be ignored
    and worked on all the same; its reply, for which nobody waits, would be taken for that to the next message, and from
    then on every reply would be sent one message late, which is too late for all rounds to come.
    """

    def __init__(self, pull: Callable[..., Any], push: Callable[..., Any]) -> None:
        self._pull, self._push = pull, push
        self._pulled = ""

    def pull(self, *, receive: Callable[[], Any], **given: Any) -> Any:
        def noted() -> Any:
            received = receive()
            self._pulled = "" if received is None else received[0].metadata.message_id
            return received

        return self._pull(receive=noted, **given)

    def push(self, *, send: Callable[..., Any], **given: Any) -> None:
        answered: set[str] = set()

        def noted(message: Any, *details: Any) -> Any:
            answered.add(message.metadata.reply_to_message_id)
            return send(message, *details)

        while self._pulled not in answered:
            self._push(send=noted, **given)


def returning(sign_on: Callable[[Any, Any], Any], memory: Path) -> Callable[[Any, Any], Any]:
    """Signs on to the SuperLink, but first signs off the one before, if that was killed."""

    def sign_off_and_on(client: Any, request: Any) -> Any:
        if memory.exists():
            with suppress(httpx.HTTPStatusError):  # it was signed off in good order
                client.DeactivateNode(DeactivateNodeRequest(node_id=int(memory.read_text("ascii"))))
        response = sign_on(client, request)
        memory.write_text(str(response.node_id), "ascii")
        return response

    return sign_off_and_on


def main() -> None:
    parser = argparse.ArgumentParser(prog="fedmos deploy node", add_help=False, allow_abbrev=False)
    parser.add_argument("--poll", type=float, default=0.5)
    parser.add_argument("--memory", type=Path)
    own, flower = parser.parse_known_args()
    loop: Any = import_module("flwr.supernode.start_client_internal")
    loop.time = BriefPauses(own.poll)
    in_step = OrderedReplies(loop._pull_and_store_message, loop._push_messages)
    loop._pull_and_store_message, loop._push_messages = in_step.pull, in_step.push
    loop.pull_objects = partial(pull_objects, initial_backoff=own.poll, backoff_cap=max(own.poll, 1.0))
    if own.memory is not None:
        own.memory.parent.mkdir(parents=True, exist_ok=True)
        client: Any = import_module("flwr.supernode.fleet_http_client").FleetHttpClient
        client.ActivateNode = returning(client.ActivateNode, own.memory)
    sys.argv = ["flower-supernode", *flower]
    flower_supernode()


if __name__ == "__main__":
    main()
