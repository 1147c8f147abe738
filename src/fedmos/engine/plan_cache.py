"""What this machine has measured: times of engines and of compilations.

The file is engines.json in `$FEDMOS_CACHE` (default ~/.cache/fedmos). It holds several measurements of each kind with
the time at which they were taken. New ones are merged with those of other processes; after 30 days they are dropped.
Entries that others have written or damaged, or that are of an earlier format, are ignored. A folder that cannot be
written to is not an error.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from threading import get_ident
from time import time
from typing import Any

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

_log = logging.getLogger("fedmos")

_COMPILATIONS = "compilations"
_KEPT = 200
"""The number of compilations that are kept; the oldest are dropped."""
_SAMPLES = 12
"""The number of measurements of a kind that are kept for a job; the oldest are dropped."""
_DAYS = 30
"""How long measurements are kept."""

Times = dict[str, float]
Sample = tuple[float, float]
"""The time at which a measurement was taken, in seconds since 1970, and the seconds that were measured."""

now: Callable[[], float] = time
"""Returns the time in seconds since 1970."""


@dataclass(frozen=True, kw_only=True)
class JobMeasurements:
    """What was measured of a job."""

    samples: dict[str, list[Sample]]
    """Seconds of a cohort step, oldest first: of its gradient alone ("loop", "batched", "compiled"), and of the whole
    round in runs ("run loop", "run batched", "run compiled")."""
    operations: float
    """The number of operations of the forward pass."""
    programs: Times = field(default_factory=dict)
    """The programs that a run of the job has compiled: their number of operations by their hash."""

    def best(self, kind: str) -> float | None:
        """Return the shortest time, because disturbances only make times longer; None if nothing was measured."""
        return min((seconds for _, seconds in self.samples.get(kind, ())), default=None)

    def time(self, kind: str) -> float:
        """Return the shortest time of a kind that was measured."""
        return min(seconds for _, seconds in self.samples[kind])

    def merged(self, other: JobMeasurements) -> JobMeasurements:
        """Return the measurements of both; programs are those of `other`, if it has any."""
        both = {
            kind: sorted({*self.samples.get(kind, ()), *other.samples.get(kind, ())})[-_SAMPLES:]
            for kind in {**self.samples, **other.samples}
        }
        return JobMeasurements(samples=both, operations=other.operations, programs=other.programs or self.programs)

    def since(self, when: float) -> JobMeasurements:
        """Return the measurements without the times of gradients that were taken before."""
        kept = {
            kind: [sample for sample in taken if sample[0] >= when or kind.startswith("run ")]
            for kind, taken in self.samples.items()
        }
        return replace(self, samples={kind: taken for kind, taken in kept.items() if taken})


def cache_path() -> Path:
    """Return the path of the file."""
    folder = Path(os.environ.get("FEDMOS_CACHE") or Path.home() / ".cache" / "fedmos").expanduser()
    return folder / "engines.json"


def read_measurements(path: Path) -> dict[str, JobMeasurements]:
    """Return the times of engines that are not too old, by job."""
    return _measurements(_read(path))


def write_measurement(path: Path, key: str, measured: JobMeasurements, since: float = 0.0) -> None:
    """Add measurements of a job to those that are stored.

    Args:
        path: The file.
        key: The job.
        measured: The new measurements.
        since: Stored times of gradients that were taken before are wrong, and are dropped.
    """

    def merge(jobs: dict[str, JobMeasurements], compilations: dict[str, Times]) -> None:
        jobs[key] = jobs[key].since(since).merged(measured) if key in jobs else measured

    _change(path, merge)


def read_compilations(path: Path) -> dict[str, Times]:
    """Return the past compilations by program, oldest first.

    An entry has "operations", "start" (1.0 if it was the first of its process), "cached" (1.0 if Inductor had the
    program on the disk), "kept" (1.0 if it has it there now), "seconds" and "when".
    """
    return _compilations(_read(path))


def write_compilation(path: Path, key: str, times: Times) -> None:
    """Store a compilation."""

    def add(jobs: dict[str, JobMeasurements], compilations: dict[str, Times]) -> None:
        compilations.pop(key, None)
        compilations[key] = {"cached": 0.0, "kept": 0.0, "when": now(), **times}
        for old in list(compilations)[:-_KEPT]:
            del compilations[old]

    _change(path, add)


def _measurements(table: dict[str, Any]) -> dict[str, JobMeasurements]:
    found = {key: _job(entry) for key, entry in table.items() if key != _COMPILATIONS}
    return {key: job for key, job in found.items() if job is not None}


def _job(entry: object) -> JobMeasurements | None:
    """Return the measurements in an entry of the file; None if it has none or is of another format."""
    if not isinstance(entry, dict) or not _is_number(entry.get("operations")):
        return None
    samples, programs = entry.get("samples"), entry.get("programs", {})
    if not isinstance(samples, dict) or not isinstance(programs, dict) or not all(map(_is_number, programs.values())):
        return None
    recent = {kind: _recent(taken) for kind, taken in samples.items()}
    samples = {kind: taken for kind, taken in recent.items() if taken}
    return None if not samples else JobMeasurements(samples=samples, operations=entry["operations"], programs=programs)


def _recent(taken: object) -> list[Sample]:
    """Return the valid samples that are not too old."""
    if not isinstance(taken, list):
        return []
    pairs = (v for v in taken if isinstance(v, list) and len(v) == 2 and all(map(_is_number, v)))
    return sorted((float(when), float(seconds)) for when, seconds in pairs if _is_recent(when))


def _compilations(table: dict[str, Any]) -> dict[str, Times]:
    entries = table.get(_COMPILATIONS)
    if not isinstance(entries, dict):
        return {}
    return {key: times for key, times in entries.items() if _is_compilation(times)}


def _is_compilation(times: object) -> bool:
    names = {"operations", "start", "cached", "kept", "seconds", "when"}
    if not isinstance(times, dict) or not times.keys() >= names or not all(map(_is_number, times.values())):
        return False
    return _is_recent(times["when"])


def _is_number(v: object) -> bool:
    return isinstance(v, float) and v >= 0


def _is_recent(when: float) -> bool:
    """Whether a time is in the last 30 days; one in the future, of a clock that was wrong, is not."""
    return -_DAYS < (when - now()) / 86400 < 1


def _read(path: Path) -> dict[str, Any]:
    try:
        table = json.loads(path.read_text())
    except (OSError, ValueError, RecursionError):
        return {}
    return table if isinstance(table, dict) else {}


def _change(path: Path, change: Callable[[dict[str, JobMeasurements], dict[str, Times]], None]) -> None:
    """Change what the file holds. It is read anew, so that nothing that other processes have added is lost."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with _locked(path):
            table = _read(path)
            jobs, compilations = _measurements(table), _compilations(table)
            change(jobs, compilations)
            entries = {
                key: {"operations": job.operations, "samples": job.samples, "programs": job.programs}
                for key, job in jobs.items()
            }
            _replace(path, json.dumps({**entries, _COMPILATIONS: compilations}))
    except OSError as error:
        _log.info("Cannot store measurements of engines: %s", error)


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Admit one process at a time, where the file system has locks."""
    with path.with_name(f"{path.name}.lock").open("w") as file:
        if fcntl is not None:
            with suppress(OSError):
                fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _replace(path: Path, text: str) -> None:
    """Replace the file at once, so that no reader sees a part of it."""
    scratch = path.with_name(f"{path.name}.{os.getpid()}.{get_ident()}")
    scratch.write_text(text)
    scratch.replace(path)
