"""SIGTERM and SIGINT at a server app: the run stops where nothing is lost, and its folder is closed in order.

Requests that wait for replies are dropped with their round. A round whose replies have arrived is finished and
committed first. The same run continues with the next round.
"""

from __future__ import annotations

import logging
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

_log = logging.getLogger("fedmos")

_SIGNALS = (signal.SIGTERM, signal.SIGINT)


class StopRequested(BaseException):
    """The process was asked to end. Not an `Exception`: no handler of errors may take it for one."""


class GracefulStop:
    """Defers signals that end the process until `check` is called; a second signal ends it at once."""

    def __init__(self) -> None:
        self._received: tuple[int, FrameType | None] | None = None
        self._before: dict[int, Any] = {}

    def check(self) -> None:
        """Stop here if a signal has arrived.

        Raises:
            StopRequested: If one has.
        """
        if self._received is not None:
            raise StopRequested(f"stopped by {signal.Signals(self._received[0]).name}")

    @contextmanager
    def deferred(self) -> Iterator[None]:
        """Defer signals inside the block, where the process can. If they stop it, they have their effect afterwards."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        self._before = {number: signal.signal(number, self._receive) for number in _SIGNALS}
        stopped = None
        try:
            yield
        except StopRequested as error:
            stopped = error
        finally:
            for number, handler in self._before.items():
                signal.signal(number, handler)
        if stopped is not None:
            assert self._received is not None
            self._deliver(*self._received)
            raise stopped

    def _receive(self, number: int, frame: FrameType | None) -> None:
        if self._received is not None:
            self._deliver(number, frame)
            return
        self._received = (number, frame)
        _log.warning(
            "%s: the run stops before its next request; a second one ends the server app at once",
            signal.Signals(number).name,
        )

    def _deliver(self, number: int, frame: FrameType | None) -> None:
        """Do what the signal does without this class."""
        handler = self._before[number]
        if callable(handler):
            handler(number, frame)
        elif handler == signal.SIG_DFL:
            signal.signal(number, signal.SIG_DFL)
            signal.raise_signal(number)
