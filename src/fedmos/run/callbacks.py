"""Callbacks that come with the library."""

from __future__ import annotations

import multiprocessing
import sys
from time import perf_counter
from typing import TYPE_CHECKING, TextIO

from ..core.callback import Callback
from ..core.history import Record

if TYPE_CHECKING:
    from .result import Result


class Progress(Callback):
    """One line that is redrawn each round: a bar, the latest metrics, the time left."""

    WIDTH = 24

    def __init__(self, label: str, out: TextIO | None = None) -> None:
        self._label = label
        self._out = out or sys.stderr
        self._latest = ""

    @classmethod
    def wanted(cls) -> bool:
        """On a terminal, and not in one of several processes that would write over each other."""
        return sys.stderr.isatty() and multiprocessing.parent_process() is None

    def on_start(self, rounds: int, done: int) -> None:
        self._rounds, self._done, self._began = rounds, done, perf_counter()

    def on_round(self, record: Record) -> None:
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
        self._out.write("\n")


def _clock(seconds: float) -> str:
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{seconds:02}" if hours else f"{minutes}:{seconds:02}"
