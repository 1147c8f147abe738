"""How long compilations take: estimates from the size of a program and from past compilations on this machine."""

from __future__ import annotations

import logging
import statistics
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from time import perf_counter

from ..core.notices import notify
from .plan_cache import Times, cache_path, read_compilations, write_compilation

_log = logging.getLogger("fedmos")

_START_SECONDS = 25.0
"""What the first compilation of a process takes longer: it loads the compiler and prepares its headers."""
_PROGRAM_SECONDS = 5.0
_OPERATION_SECONDS = 0.1
_OPERATIONS_PER_LAYER = 8
"""Operations of the gradient's program for one of the forward pass."""


class CompileClock:
    """Estimates, announces and records the compilations of a process.

    Args:
        path: The file with past compilations; by default the one of this machine.
        clock: Returns the time in seconds.
    """

    def __init__(self, path: Callable[[], Path] = cache_path, clock: Callable[[], float] = perf_counter) -> None:
        self._path, self._clock = path, clock
        self._started = False

    def expected(self, operations: int, device: str, key: str = "") -> float:
        """Estimate the seconds of a compilation.

        Args:
            operations: The number of operations of the program.
            device: The type of the device, whose past compilations count.
            key: The program. If this machine has compiled it before, the estimate is the time it took.
        """
        past = read_compilations(self._path())
        known = past.get(_key(device, key))
        if known is not None and bool(known["start"]) is not self._started:
            return known["seconds"]
        return _usual(operations, not self._started) * _slowness(past, device)

    def expected_of_run(self, layers: int, device: str) -> float:
        """Estimate the seconds that a run spends on compilation: a program to measure, and one of its own.

        Args:
            layers: The number of operations of the forward pass.
            device: The type of the device.
        """
        operations = _OPERATIONS_PER_LAYER * layers
        usual = _usual(operations, not self._started) + _usual(operations, False)
        return usual * _slowness(read_compilations(self._path()), device)

    @contextmanager
    def announced(self, operations: int, device: str, key: str) -> Iterator[None]:
        """Announce the compilation in the block and how long it should take, then how long it took, and record that."""
        about = self.expected(operations, device, key)
        _announce(f"Compiling the training program (about {about:.0f} s) …")
        start, began = not self._started, self._clock()
        yield
        seconds = self._clock() - began
        self._started = True
        _announce(f"Compiled in {seconds:.0f} s")
        entry = {"operations": float(operations), "start": float(start), "seconds": seconds}
        write_compilation(self._path(), _key(device, key), entry)


def _announce(text: str) -> None:
    _log.info(text)
    notify(text)


def _key(device: str, key: str) -> str:
    return f"{device} {key}"


def _usual(operations: int | float, start: bool) -> float:
    return _START_SECONDS * start + _PROGRAM_SECONDS + _OPERATION_SECONDS * operations


def _slowness(past: dict[str, Times], device: str) -> float:
    """Return how much longer than usual compilations take on this machine; 1 if nothing is known."""
    ratios = [
        times["seconds"] / _usual(times["operations"], bool(times["start"]))
        for key, times in past.items()
        if key.split(" ")[0] == device
    ]
    return statistics.median(ratios) if ratios else 1.0


CLOCK = CompileClock()
"""The clock of this process."""
