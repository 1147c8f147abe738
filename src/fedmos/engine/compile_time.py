"""How long compilations take: estimates from the size of a program and from past compilations on this machine."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from getpass import getuser
from pathlib import Path
from tempfile import gettempdir
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
_SIMILAR = 3.0
"""The ratio of the numbers of operations up to which a program tells how long another one takes."""
_CACHED_SHARE = 0.3
"""The share of its time that a compilation takes if the compiler has the program on the disk, until it is measured."""


@dataclass
class Compilation:
    """A compilation in progress."""

    cached: bool = False
    """Whether the compiler had the program on the disk."""
    kept: bool = False
    """Whether the compiler has it there now."""


class CompileClock:
    """Estimates, announces and records the compilations of a process.

    Args:
        path: The file with past compilations; by default the one of this machine.
        clock: Returns the time in seconds.
    """

    def __init__(self, path: Callable[[], Path] = cache_path, clock: Callable[[], float] = perf_counter) -> None:
        self._path, self._clock = path, clock
        self._started = False

    def expected(self, operations: float, device: str, key: str = "") -> float:
        """Estimate the seconds of a compilation.

        Args:
            operations: The number of operations of the program.
            device: The type of the device, whose past compilations count.
            key: The program. If this machine has compiled it before, the estimate is the time it took: with the
                compiler's cache on the disk, if that was measured and the cache is still there.
        """
        return self._expected(read_compilations(self._path()), operations, device, key, not self._started)

    def expected_of_job(self, programs: Mapping[str, float], device: str) -> float:
        """Estimate the seconds of the compilations of a job whose programs are known.

        Args:
            programs: The number of operations of each program, by its key.
            device: The type of the device.
        """
        past = read_compilations(self._path())
        return sum(
            self._expected(past, operations, device, key, start=number == 0 and not self._started)
            for number, (key, operations) in enumerate(programs.items())
        )

    def expected_of_run(self, layers: float, device: str, programs: int = 2) -> float:
        """Estimate the seconds that a run spends on compilation.

        Args:
            layers: The number of operations of the forward pass.
            device: The type of the device.
            programs: The number of programs; by default one to measure, and one of the run's own.
        """
        operations, past = _OPERATIONS_PER_LAYER * layers, read_compilations(self._path())
        usual = _usual(operations, not self._started) + (programs - 1) * _usual(operations, False)
        return usual * _slowness(past, device, operations)

    @contextmanager
    def announced(self, operations: int, device: str, key: str, spent: float = 0.0) -> Iterator[Compilation]:
        """Announce the compilation in the block and how long it should take, then how long it took, and record that.

        Args:
            operations: The number of operations of the program.
            device: The type of the device.
            key: The program.
            spent: The seconds that its preparation has taken.
        """
        about = self.expected(operations, device, key)
        _announce(f"Compiling the training program (about {about:.0f} s) …")
        start, began = not self._started, self._clock()
        compilation = Compilation()
        yield compilation
        seconds = self._clock() - began + spent
        self._started = True
        _announce(f"Compiled in {seconds:.0f} s")
        entry = {"operations": float(operations), "start": float(start), "seconds": seconds}
        cached, kept = compilation.cached, compilation.kept
        entry |= {"cached": float(cached), "kept": float(kept)}
        write_compilation(self._path(), _key(device, key, cached), entry)

    def _expected(self, past: dict[str, Times], operations: float, device: str, key: str, start: bool) -> float:
        slowness = _slowness(past, device, operations)
        estimate, on_disk = _usual(operations, start) * slowness, cache_on_disk().exists()
        cached, compiled = past.get(_key(device, key, cached=True)), past.get(_key(device, key))
        if cached is not None and on_disk:
            known, share = cached, _CACHED_SHARE
        elif compiled is not None:
            known, share = compiled, 1.0
        else:
            return estimate
        seconds = known["seconds"]
        if bool(known["start"]) and not start:
            seconds = min(seconds, share * estimate)
        elif start and not known["start"]:
            seconds += share * _START_SECONDS * slowness
        return seconds * (_CACHED_SHARE if known is compiled and known["kept"] and on_disk else 1.0)


def cache_on_disk() -> Path:
    """Return the folder in which Inductor keeps compiled programs, without loading it."""
    given = os.environ.get("TORCHINDUCTOR_CACHE_DIR")
    if given:
        return Path(given)
    try:
        name = getuser()
    except (KeyError, ModuleNotFoundError, OSError):
        name = f"uid_{os.getuid()}"
    return Path(gettempdir()) / f"torchinductor_{name}"


def _announce(text: str) -> None:
    _log.info(text)
    notify(text)


def _key(device: str, key: str, cached: bool = False) -> str:
    return f"{device} {key}" + (" cached" if cached else "")


def _usual(operations: float, start: bool) -> float:
    return _START_SECONDS * start + _PROGRAM_SECONDS + _OPERATION_SECONDS * operations


def _slowness(past: dict[str, Times], device: str, operations: float) -> float:
    """Return how much longer than usual the compilation of a program of this size takes on this machine.

    Programs of similar size tell: the slower half of them. Others can only raise the estimate, because small programs
    compile faster than their number of operations says. Programs that were on the disk tell nothing.
    """
    compiled = [times for key, times in past.items() if key.split(" ")[0] == device and not times["cached"]]
    similar = [v for v in compiled if 1 / _SIMILAR <= v["operations"] / max(operations, 1.0) <= _SIMILAR]
    ratios = sorted(v["seconds"] / _usual(v["operations"], bool(v["start"])) for v in similar or compiled)
    if not ratios:
        return 1.0
    typical = ratios[(3 * len(ratios)) // 4]
    return typical if similar else max(1.0, typical)


CLOCK = CompileClock()
"""The clock of this process."""
