"""Ctrl-C on the command line: a message at once that says how to continue; the second one ends at once."""

from __future__ import annotations

import os
import shlex
import signal
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from types import FrameType

from ..core.interrupts import handling_interrupts
from ..core.notices import show_message

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
    """Handles Ctrl-C during a command.

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
        show_message(f"Stopping … (Ctrl-C again ends at once).{how}")
        raise KeyboardInterrupt

    def handling(self) -> AbstractContextManager[None]:
        """Handle Ctrl-C inside the block; only the main thread can."""
        return handling_interrupts(self.handle)
