"""Ctrl-C on the command line: an answer at once that says how to continue; the second one ends at once."""

from __future__ import annotations

import os
import shlex
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

from ..core.notices import tell

_continue_with: Callable[[], str] | None = None


def continue_with(command: Callable[[], str]) -> None:
    """Set what Ctrl-C names from now on: a function that returns the command that continues the work."""
    global _continue_with
    _continue_with = command


def command_line(
    *words: str | Path, overrides: Sequence[str] = (), out: Path | None = None, on: str | None = None
) -> str:
    """Return a command as it is typed into a shell."""
    given = ["fedmos", *map(str, words)]
    for override in overrides:
        given += ["--set", override]
    if out is not None:
        given += ["--out", str(out)]
    if on is not None:
        given += ["--on", on]
    return shlex.join(given)


class CtrlC:
    """Answers Ctrl-C during a command.

    Args:
        end: Ends the process with an exit code.
    """

    def __init__(self, end: Callable[[int], object] = os._exit) -> None:
        self._end, self._pressed = end, False

    def handle(self, number: int = signal.SIGINT, frame: FrameType | None = None) -> None:
        """Say that the command stops and how to continue it, and raise KeyboardInterrupt; end at the second call."""
        if self._pressed:
            self._end(130)
        self._pressed = True
        how = "" if _continue_with is None else f" Continue with: {_continue_with()}"
        tell(f"Stopping … (Ctrl-C again ends at once).{how}")
        raise KeyboardInterrupt

    @contextmanager
    def answered(self) -> Iterator[None]:
        """Handle Ctrl-C inside the block; only the main thread can."""
        plain = signal.default_int_handler
        if threading.current_thread() is not threading.main_thread() or signal.getsignal(signal.SIGINT) is not plain:
            yield
            return
        signal.signal(signal.SIGINT, self.handle)
        try:
            yield
        finally:
            signal.signal(signal.SIGINT, plain)
