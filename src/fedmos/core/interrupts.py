"""Ctrl-C in a Python session: an answer at once, then `KeyboardInterrupt`."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from .notices import tell


@contextmanager
def interrupt_answered(answer: str) -> Iterator[None]:
    """On Ctrl-C, show `answer` at once and raise KeyboardInterrupt; a second Ctrl-C is not answered.

    Does nothing outside the main thread, or where the application handles Ctrl-C itself.
    """
    plain = signal.default_int_handler
    if threading.current_thread() is not threading.main_thread() or signal.getsignal(signal.SIGINT) is not plain:
        yield
        return

    def handle(number: int, frame: FrameType | None) -> None:
        signal.signal(signal.SIGINT, plain)
        tell(answer)
        raise KeyboardInterrupt

    signal.signal(signal.SIGINT, handle)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, plain)
