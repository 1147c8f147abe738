"""The accelerator of polling: changes to Flower's internals, the only module of fedmos that modifies another package.

Flower offers no option for what these functions change. They act on the current process only, which is a SuperNode
(`fedmos deploy node`) or a SuperExec (`fedmos deploy apps`), and never on `import fedmos` or a simulation.

They are used with the versions in `KNOWN_VERSIONS` only; with another one a warning is logged. If the installed Flower
does not have a name that is replaced here, a warning is logged too. In both cases Flower's own behaviour remains, and a
deployment works as with `flower-supernode` and `flower-superexec`:

- `shorten_supernode_pauses`, `shorten_app_pauses`: every message takes seconds longer.
- `wait_for_messages`: a client app that starts before its message is stored fails, and its request is repeated.
- `order_replies`: a SuperNode that receives a message when its run ends sends every later reply one message late; and
  one whose connection is cut as the SuperLink answers a piece of a reply gives that reply up, which the SuperLink drops
  after 180 s.
- `deactivate_previous_session`: a SuperNode that was killed can reconnect only after a minute.
- `use_executor`: every message starts a Python process that imports PyTorch.

This module imports neither fedmos nor PyTorch, so that a SuperNode can load it by its path.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from threading import Lock
from typing import Any

import httpx

_log = logging.getLogger("fedmos")

KNOWN_VERSIONS = ("1.41", "1.42")
"""Versions of Flower whose internals this module and `forking_executor` are written for and tested with."""

_RETRY_PAUSE, _MAX_RETRY_PAUSE = 0.05, 1.0
"""Seconds between two requests for data that has not arrived yet: at first, and at most."""
_MAX_FAILURES = 100
"""How often a request that cannot reach the SuperLink is repeated, and refused pieces of a reply are looked up."""
_REQUESTS = ("get_run", "get_fab", "pull_object", "confirm_message_received")
"""Requests to the SuperLink with which a SuperNode receives a message, as arguments of Flower's function."""
_MESSAGE_TIMEOUT = 20.0
"""Seconds that a client app waits for its message."""

_SUPERNODE = "flwr.supernode.start_client_internal"
_CLIENT_APP = "flwr.supernode.runtime.run_clientapp"
PATCHED = {
    "supernode_time": f"{_SUPERNODE}:time",
    "supernode_pull": f"{_SUPERNODE}:pull_objects",
    "supernode_receive": f"{_SUPERNODE}:_pull_and_store_message",
    "supernode_send": f"{_SUPERNODE}:_push_messages",
    "supernode_activate": "flwr.supernode.fleet_http_client:FleetHttpClient.ActivateNode",
    "client_app_pull": f"{_CLIENT_APP}:pull_and_inflate_object_from_tree",
    "client_app_connection": f"{_CLIENT_APP}:RuntimeHttpClient",
    "server_app_pull": "flwr.superlink.grid.http_grid:pull_objects",
    "superexec_executor": "flwr.supercore.superexec.run_superexec:get_executor",
}
"""All names that this module replaces, as "module:attribute"."""


def is_known(installed: str) -> bool:
    """Whether a version of Flower is one that this module is written for."""
    return ".".join(installed.split(".")[:2]) in KNOWN_VERSIONS


def known_version() -> bool:
    """Whether the installed version of Flower is one that the accelerators are made for; logs a warning if not."""
    installed = version("flwr")
    if is_known(installed):
        return True
    _log.warning(
        "Flower %s is not one of the versions that fedmos accelerates (%s); the deployment works, more slowly, with "
        "Flower's own polling and processes",
        installed,
        ", ".join(KNOWN_VERSIONS),
    )
    return False


def shorten_supernode_pauses(poll: float) -> None:
    """Query for messages and replies every `poll` seconds.

    Flower's SuperNode queries for messages every 3 s, for its app's reply every 0.5 s, and for missing parts of a
    message after 1 s, 2 s, and so on.
    """
    _replace("supernode_time", lambda _: CappedSleep(poll))
    _replace("supernode_pull", lambda pull: partial(pull, initial_backoff=poll, backoff_cap=max(poll, 1.0)))


def order_replies() -> None:
    """Make a SuperNode wait for the reply to the message that it received last, and resume interrupted replies.

    See `OrderedReplies` and `ResumedUpload`.
    """
    if _exists("supernode_receive") and _exists("supernode_send"):
        ordered = OrderedReplies(_lookup("supernode_receive"), _lookup("supernode_send"))
        _replace("supernode_receive", lambda _: ordered.receive)
        _replace("supernode_send", lambda _: ordered.send)


def deactivate_previous_session(file: Path) -> None:
    """Let a SuperNode reconnect at once after it was killed.

    The SuperLink takes a killed SuperNode to be connected for another minute, and refuses a new one with the same key.
    This SuperNode stores its node id in `file`, and deactivates the stored node before it connects.
    """

    from flwr.proto.fleet_pb2 import DeactivateNodeRequest

    def patched(activate: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
        def deactivate_and_activate(client: Any, request: Any) -> Any:
            if file.exists():
                with suppress(httpx.HTTPStatusError):  # the previous SuperNode was shut down in order
                    client.DeactivateNode(DeactivateNodeRequest(node_id=int(file.read_text("ascii"))))
            response = activate(client, request)
            file.write_text(str(response.node_id), "ascii")
            return response

        return deactivate_and_activate

    file.parent.mkdir(parents=True, exist_ok=True)
    _replace("supernode_activate", patched)


def shorten_app_pauses() -> None:
    """Query often for missing parts of a message, in client and server apps. Flower waits 1 s, 2 s, and so on."""
    options: dict[str, Any] = {"initial_backoff": _RETRY_PAUSE, "backoff_cap": _MAX_RETRY_PAUSE}
    for name in ("client_app_pull", "server_app_pull"):
        _replace(name, lambda pull: partial(pull, **options))


def wait_for_messages() -> None:
    """Let a client app wait for its message. A SuperNode can start the app's task before the message is stored."""

    def patched(connection: type[Any]) -> type[Any]:
        def pull_messages(client: Any, request: Any) -> Any:
            deadline = time.monotonic() + _MESSAGE_TIMEOUT
            while not (response := connection.PullMessages(client, request)).messages_list:
                if time.monotonic() >= deadline:
                    break
                time.sleep(_RETRY_PAUSE)
            return response

        return type("WaitingRuntimeClient", (connection,), {"PullMessages": pull_messages})

    _replace("client_app_connection", patched)


def use_executor(make_executor: Callable[[], Any]) -> None:
    """Make a SuperExec run tasks with our executor. Flower's SuperExec offers a choice of its own executors only."""

    def get_executor(*args: object, **options: object) -> Any:
        return make_executor()

    _replace("superexec_executor", lambda _: get_executor)


class CappedSleep:
    """The module `time`, with a `sleep` of at most `longest` seconds."""

    def __init__(self, longest: float) -> None:
        self.longest = longest

    def sleep(self, seconds: float) -> None:
        time.sleep(min(seconds, self.longest))

    def __getattr__(self, name: str) -> Any:
        return getattr(time, name)


class OrderedReplies:
    """The two steps of a SuperNode's loop: receive a message, then send replies up to the one to that message.

    Flower's own loop sends the next available reply, whichever it is. If a run ends while a message of it is being
    received, Flower discards the message but its app processes it all the same. The unexpected reply is then sent in
    place of the reply to the next message, and every later reply is one message late, after its round has ended.

    Requests are `persistent`, and uploads are resumed.
    """

    def __init__(self, receive: Callable[..., Any], send: Callable[..., Any]) -> None:
        self._receive, self._send = receive, send
        self._message_id = ""

    def receive(self, *, receive: Callable[[], Any], **options: Any) -> Any:
        def receive_and_note() -> Any:
            received = persistent(receive)()
            self._message_id = "" if received is None else received[0].metadata.message_id
            return received

        requests = {name: persistent(options[name]) for name in _REQUESTS if name in options}
        return self._receive(receive=receive_and_note, **options | requests)

    def send(self, *, send: Callable[..., Any], push_object: Callable[..., Any], **options: Any) -> None:
        replied: set[str] = set()
        upload = ResumedUpload(persistent(send), persistent(push_object))

        def send_and_note(message: Any, *details: Any) -> Any:
            replied.add(message.metadata.reply_to_message_id)
            return upload.begin(message, *details)

        while self._message_id not in replied:
            self._send(send=send_and_note, push_object=upload.push, **options)


def persistent(request: Callable[..., Any]) -> Callable[..., Any]:
    """Repeat a request if the connection is cut in the TLS handshake, too; Flower repeats it in all other cases."""

    def repeated(*given: Any) -> Any:
        for _ in range(_MAX_FAILURES):
            try:
                return request(*given)
            except httpx.TransportError as error:
                _log.warning("The connection to the server was cut: %s", error)
                time.sleep(_MAX_RETRY_PAUSE)
        return request(*given)

    return repeated


class ResumedUpload:
    """The upload of a reply in pieces, which goes on if the SuperLink refuses a piece that it has stored already.

    Flower repeats the push of a piece if the connection is cut. If only the SuperLink's answer was lost, it refuses the
    repetition, and Flower's own SuperNode gives the whole reply up.

    Args:
        send: Announces a reply; returns the ids of the pieces that the SuperLink lacks, and the id of a session.
        push: Uploads a piece, given the run, the session, its id and its content.
    """

    def __init__(self, send: Callable[..., Any], push: Callable[..., Any]) -> None:
        self._send, self._push, self._lock = send, push, Lock()

    def begin(self, message: Any, *details: Any) -> Any:
        """Announce a reply."""
        self._announce, self._refused = partial(self._send, message, *details), 0
        missing, self._session = self._announce()
        return missing, self._session

    def push(self, run: int, session: str, piece: str, content: bytes) -> None:
        """Upload a piece, if the SuperLink lacks it; several threads do so at the same time."""
        while True:
            session = self._session
            try:
                self._push(run, session, piece, content)
                return
            except httpx.HTTPError:
                raise
            except Exception as error:  # Flower names the one for a refused piece in a private module only
                if not self._lacks(piece, session, error):
                    return

    def _lacks(self, piece: str, session: str, error: Exception) -> bool:
        """Whether the SuperLink lacks a piece that it has refused in a session; raises the error if that is too often.

        The session stays as it is once the server app has begun to receive the reply: nothing can be announced then.
        """
        with self._lock:
            if self._session != session:
                return True  # refused because of another thread's new session
            self._refused += 1
            if self._refused > _MAX_FAILURES:
                raise error
            missing, new = self._announce()
            if missing:
                self._session = new
            return piece in missing


def _replace(name: str, make: Callable[[Any], Any]) -> None:
    """Replace the original by `make(original)`, if Flower has it."""
    if _exists(name):
        owner, attribute = _owner(name)
        setattr(owner, attribute, make(getattr(owner, attribute)))


def _exists(name: str) -> bool:
    try:
        _lookup(name)
    except (ImportError, AttributeError):
        _log.warning("This version of Flower has no %s; its own behaviour remains", PATCHED[name])
        return False
    return True


def _lookup(name: str) -> Any:
    owner, attribute = _owner(name)
    return getattr(owner, attribute)


def _owner(name: str) -> tuple[Any, str]:
    """Return the module or class that holds a name, and the attribute."""
    module, _, path = PATCHED[name].partition(":")
    owner: Any = import_module(module)
    *parents, attribute = path.split(".")
    for parent in parents:
        owner = getattr(owner, parent)
    return owner, attribute
