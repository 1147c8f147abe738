"""Ctrl-C in a Python session: a message at once, then `KeyboardInterrupt`."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from types import FrameType

from .notices import show_message


@contextmanager
def handling_interrupts(handle: Callable[[int, FrameType | None], object]) -> Iterator[None]:
    """Call `handle` on Ctrl-C in the block.

    Does nothing outside the main thread, or where the application handles Ctrl-C itself.
    """
    default = signal.default_int_handler
    if threading.current_thread() is not threading.main_thread() or signal.getsignal(signal.SIGINT) is not default:
        yield
        return
    signal.signal(signal.SIGINT, handle)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, default)


def message_on_interrupt(message: str) -> AbstractContextManager[None]:
    """On Ctrl-C, show a message at once and raise KeyboardInterrupt; a second Ctrl-C shows none."""

    def handle(number: int, frame: FrameType | None) -> None:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        show_message(message)
        raise KeyboardInterrupt

    return handling_interrupts(handle)
