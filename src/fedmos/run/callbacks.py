"""Callbacks of the library."""

from __future__ import annotations

import logging
import multiprocessing
import os
import shutil
import sys
import unicodedata
from collections.abc import Callable
from time import perf_counter
from typing import TYPE_CHECKING, TextIO

from ..core.callback import Callback
from ..core.history import Record

if TYPE_CHECKING:
    from .result import Result

_log = logging.getLogger("fedmos")


class Progress(Callback):
    """One line that is redrawn in place: a bar, the latest metrics, the time left. It fits the terminal's width.

    Args:
        label: Names the run.
        out: The stream (default: the standard error).
        clock: Returns the time in seconds.
        width: Returns the number of columns of the terminal, which may change (default: that of the terminal).
    """

    BAR = 24
    PAUSE = 0.1
    """Least seconds between two drawings."""

    def __init__(
        self,
        label: str,
        out: TextIO | None = None,
        clock: Callable[[], float] = perf_counter,
        width: Callable[[], int] | None = None,
    ) -> None:
        self._label, self._clock = label, clock
        self._out = out or sys.stderr
        self._width = width or (lambda: _columns(self._out))
        self._latest, self._open = "", False
        self._rounds = self._done = self._round = 0
        self._began, self._drawn = clock(), -float("inf")

    @classmethod
    def is_enabled(cls) -> bool:
        """Whether the process has a terminal and is not one of several processes that share it."""
        return sys.stderr.isatty() and multiprocessing.parent_process() is None

    def say(self, text: str) -> None:
        """Print a message on a line of its own, above the bar."""
        self._out.write(f"\r\x1b[K{text}\n" if self._open else f"{text}\n")
        self._out.flush()
        self._open = False

    def on_start(self, rounds: int, done: int) -> None:
        self._rounds, self._done, self._round, self._began = rounds, done, done, self._clock()
        self._draw()

    def on_round(self, record: Record) -> None:
        self._round = record.round
        self._latest = _metrics(record) or self._latest
        now = self._clock()
        if now - self._drawn >= self.PAUSE or record.round >= self._rounds:
            self._draw()

    def on_end(self, result: Result | None) -> None:
        if self._round != self._done:
            self._draw()
        if self._open:
            self._out.write("\n")
            self._out.flush()
        self._open = False

    def _draw(self) -> None:
        self._drawn = self._clock()
        self._out.write(f"\r{self._line(max(self._width() - 1, 1))}\x1b[K")  # a full line would wrap
        self._out.flush()
        self._open = True

    def _line(self, width: int) -> str:
        """Return the longest of a few forms of the line that fits; the last one is cut."""
        rounds, left = f"{self._round}/{self._rounds}", self._left()
        essential = f"{self._label} {rounds}"
        free = width - _cells(f"{essential} {self._latest}{left}")
        if free >= 8:
            filled = min(self.BAR, free) * self._round // max(self._rounds, 1)
            bar = "█" * filled + "░" * (min(self.BAR, free) - filled)
            return f"{self._label} {bar} {rounds}{self._latest}{left}"
        for rest in (f"{self._latest}{left}", left, ""):
            if _cells(essential + rest) <= width:
                return essential + rest
        return _cut(f"{rounds} {self._label}", width)

    def _left(self) -> str:
        played = self._round - self._done
        if played == 0:
            return ""
        return f"  {_clock((self._clock() - self._began) / played * (self._rounds - self._round))} left"


class PlainProgress(Callback):
    """A line every few seconds, for a pipe or a log.

    Args:
        label: Names the run.
        write: Prints or logs a line.
        clock: Returns the time in seconds.
    """

    PAUSE = 5.0
    """Least seconds between two lines."""

    def __init__(self, label: str, write: Callable[[str], None], clock: Callable[[], float] = perf_counter) -> None:
        self._label, self._write, self._clock = label, write, clock
        self._rounds = 0
        self._last = clock()

    def say(self, text: str) -> None:
        """Print a message."""
        self._write(text)

    def on_start(self, rounds: int, done: int) -> None:
        self._rounds, self._last = rounds, self._clock()

    def on_round(self, record: Record) -> None:
        now = self._clock()
        if now - self._last >= self.PAUSE:
            self._last = now
            self._write(f"{self._label}: round {record.round} of {self._rounds}{_metrics(record)}")


def progress_display(wanted: bool | None, label: str) -> Progress | PlainProgress | None:
    """Return the display of a run's progress.

    Args:
        wanted: The option `progress`: None for a bar on a terminal and lines in a log that shows messages of level
            INFO; True for a bar or lines in any case; False for none.
        label: Names the run.
    """
    if wanted is False:
        return None
    if Progress.is_enabled():
        return Progress(label)
    if wanted and multiprocessing.parent_process() is None:
        return PlainProgress(label, lambda line: print(line, file=sys.stderr, flush=True))
    return PlainProgress(label, _log.info) if wanted is None and _log.isEnabledFor(logging.INFO) else None


def _metrics(record: Record) -> str:
    if record.train_loss is None:
        return ""
    accuracy = "" if record.accuracy is None else f"  accuracy {record.accuracy:.3f}"
    clients = [record.client_accuracy if record.personal_accuracy is None else record.personal_accuracy]
    accuracy += "".join(f"  clients {v:.3f}" for v in clients if v is not None)
    epsilon = "" if record.epsilon is None else f"  ε {record.epsilon:.3g}"
    return f"  loss {record.train_loss:.4f}{accuracy}{epsilon}"


def _columns(out: TextIO) -> int:
    """Return the width of the terminal that `out` is, or else of the process's terminal."""
    try:
        return os.get_terminal_size(out.fileno()).columns or shutil.get_terminal_size().columns
    except (OSError, ValueError):
        return shutil.get_terminal_size().columns


def _cells(text: str) -> int:
    """Return the number of columns that a text takes; East Asian characters take two, combining ones none."""
    wide = sum(unicodedata.east_asian_width(c) in "WF" for c in text)
    return len(text) + wide - sum(unicodedata.combining(c) > 0 for c in text)


def _cut(text: str, width: int) -> str:
    while _cells(text) > width:
        text = text[:-1]
    return text


def _clock(seconds: float) -> str:
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{seconds:02}" if hours else f"{minutes}:{seconds:02}"
