"""Callbacks of the library."""

from __future__ import annotations

import multiprocessing
import sys
from collections.abc import Callable
from time import perf_counter
from typing import TYPE_CHECKING, Any, TextIO

from ..core.callback import Callback
from ..core.history import Record

if TYPE_CHECKING:
    from .result import Result


class Progress(Callback):
    """A progress bar with the latest metrics and the remaining time, redrawn in each round."""

    WIDTH = 24

    def __init__(self, label: str, out: TextIO | None = None) -> None:
        self._label = label
        self._out = out or sys.stderr
        self._latest = ""

    @classmethod
    def is_enabled(cls) -> bool:
        """Whether the process has a terminal and is not one of several processes that share it."""
        return sys.stderr.isatty() and multiprocessing.parent_process() is None

    def on_start(self, rounds: int, done: int) -> None:
        """Start the timer."""
        self._rounds, self._done, self._began = rounds, done, perf_counter()

    def on_round(self, record: Record) -> None:
        """Redraw the line."""
        if record.train_loss is not None:
            accuracy = "" if record.accuracy is None else f"  accuracy {record.accuracy:.3f}"
            self._latest = f"  loss {record.train_loss:.4f}{accuracy}"
        filled = self.WIDTH * record.round // self._rounds
        bar = "█" * filled + "░" * (self.WIDTH - filled)
        each = (perf_counter() - self._began) / (record.round - self._done)
        left = _clock(each * (self._rounds - record.round))
        line = f"{self._label} {bar} {record.round}/{self._rounds}{self._latest}  {left} left"
        self._out.write(f"\r{line}\x1b[K")
        self._out.flush()

    def on_end(self, result: Result) -> None:
        """End the line."""
        self._out.write("\n")


class FunctionCallback(Callback):
    """A callback that calls a plain function of a round's record."""

    def __init__(self, function: Callable[[Record], Any]) -> None:
        self._function = function

    def on_round(self, record: Record) -> None:
        self._function(record)


def _clock(seconds: float) -> str:
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{seconds:02}" if hours else f"{minutes}:{seconds:02}"
