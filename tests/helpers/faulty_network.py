"""A network between a client and its server that delays, and that cuts connections: a TCP proxy on loopback."""

from __future__ import annotations

import socket
import struct
from contextlib import suppress
from dataclasses import dataclass, field
from enum import Enum
from threading import Lock, Thread
from time import sleep

_AT_ONCE = 2**12
_UPLOAD = 2**13
"""Bytes to the server without an answer from which on they are taken for a piece of an upload."""


class Cut(Enum):
    """What happens to a connection that uploads."""

    RESET = "reset in the middle of the upload"
    CLOSED = "closed in the middle of the upload, without TLS's goodbye"
    UNANSWERED = "reset when the server answers the upload"
    HANDSHAKE = "closed in the middle of the TLS handshake"


@dataclass
class _Link:
    """A connection of a client, and the one to the server that belongs to it."""

    client: socket.socket
    server: socket.socket
    unanswered: int = 0
    """Bytes to the server since its last answer."""

    def cut(self, reset: bool) -> None:
        for end in (self.client, self.server):
            with suppress(OSError):
                if reset:
                    end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                # The other thread may be reading, which would keep the connection open.
                end.shutdown(socket.SHUT_RD if reset else socket.SHUT_RDWR)
            end.close()


@dataclass
class FaultyNetwork:
    """Forwards connections to a server, with a delay in each direction, and cuts some of them.

    As a context manager, ends all connections on exit.
    """

    target: str
    delay: float = 0.0
    """Seconds by which each piece of data is late."""
    cuts: list[Cut] = field(default_factory=list)
    """What happens to the next uploads, one after another; a handshake counts too where it is next."""
    pieces: int = 0
    """How many pieces of uploads were sent, whole or in part."""

    def __post_init__(self) -> None:
        self.done: list[Cut] = []
        """The cuts that were made."""
        self._lock = Lock()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self._links: list[_Link] = []
        Thread(target=self._accept, daemon=True).start()

    def __enter__(self) -> FaultyNetwork:
        return self

    def __exit__(self, *error: object) -> None:
        self._listener.close()
        self.cut_all()

    def cut_all(self) -> None:
        """Cut all connections."""
        with self._lock:
            links, self._links = self._links, []
        for link in links:
            link.cut(reset=True)

    def _accept(self) -> None:
        host, port = self.target.split(":")
        with suppress(OSError):  # the listener was closed
            while True:
                client, _ = self._listener.accept()
                try:
                    link = _Link(client, socket.create_connection((host, int(port))))
                except OSError:
                    client.close()
                    continue
                with self._lock:
                    self._links.append(link)
                Thread(target=self._forward_up, args=(link,), daemon=True).start()
                Thread(target=self._forward_down, args=(link,), daemon=True).start()

    def _forward_up(self, link: _Link) -> None:
        with suppress(OSError):
            while data := link.client.recv(_AT_ONCE):
                sleep(self.delay)
                self.pieces += link.unanswered <= _UPLOAD < link.unanswered + len(data)
                link.unanswered += len(data)
                if link.unanswered > _UPLOAD and self._takes(Cut.RESET):
                    return link.cut(reset=True)
                if link.unanswered > _UPLOAD and self._takes(Cut.CLOSED):
                    return link.cut(reset=False)
                link.server.sendall(data)
        link.cut(reset=False)

    def _forward_down(self, link: _Link) -> None:
        first = True
        with suppress(OSError):
            while data := link.server.recv(_AT_ONCE):
                sleep(self.delay)
                if first and self._takes(Cut.HANDSHAKE):
                    return link.cut(reset=False)
                if link.unanswered > _UPLOAD and self._takes(Cut.UNANSWERED):
                    return link.cut(reset=True)
                link.unanswered, first = 0, False
                link.client.sendall(data)
        link.cut(reset=False)

    def _takes(self, cut: Cut) -> bool:
        """Whether this cut is the next one; it is noted as made."""
        with self._lock:
            if self.cuts[:1] != [cut]:
                return False
            self.done.append(self.cuts.pop(0))
            return True
