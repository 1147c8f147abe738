"""Messages to the user of a run: what takes long, and what Ctrl-C has done."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

_display: ContextVar[Callable[[str], None] | None] = ContextVar("display", default=None)


@contextmanager
def display_messages(display: Callable[[str], None] | None) -> Iterator[None]:
    """Pass messages to `display` inside the block; None keeps the display that there is."""
    if display is None:
        yield
        return
    token = _display.set(display)
    try:
        yield
    finally:
        _display.reset(token)


def notify(text: str) -> None:
    """Show a message if a display of progress is on."""
    if (display := _display.get()) is not None:
        display(text)


def show_message(text: str) -> None:
    """Show a message: on the display of progress if one is on, else on the standard error."""
    if (display := _display.get()) is not None:
        display(text)
    else:
        print(text, file=sys.stderr, flush=True)
