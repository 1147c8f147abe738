"""What this machine has measured: times of engines and of compilations.

The file is engines.json in `$FEDMOS_CACHE` (default ~/.cache/fedmos). Entries that others have written or damaged are
ignored. A folder that cannot be written to is not an error.
"""

from __future__ import annotations

import json
import logging
import os
from pathlib import Path
from typing import Any

_log = logging.getLogger("fedmos")

_COMPILATIONS = "compilations"
_KEPT = 200
"""The number of compilations that are kept; the oldest are dropped."""

Times = dict[str, float]


def cache_path() -> Path:
    """Return the path of the file."""
    folder = Path(os.environ.get("FEDMOS_CACHE") or Path.home() / ".cache" / "fedmos")
    return folder / "engines.json"


def read_measurements(path: Path) -> dict[str, Times]:
    """Return the times of engines, by job."""
    return {key: times for key, times in _read(path).items() if _has(times, "loop", "batched", "operations")}


def write_measurement(path: Path, key: str, times: Times) -> None:
    """Store the times of engines for a job."""
    _write(path, read_measurements(path) | {key: times, _COMPILATIONS: read_compilations(path)})


def read_compilations(path: Path) -> dict[str, Times]:
    """Return the past compilations by program, oldest first: "operations", "start" (1.0 or 0.0) and "seconds"."""
    table = _read(path).get(_COMPILATIONS)
    if not isinstance(table, dict):
        return {}
    return {key: times for key, times in table.items() if _has(times, "operations", "start", "seconds")}


def write_compilation(path: Path, key: str, times: Times) -> None:
    """Store a compilation."""
    others = [item for item in read_compilations(path).items() if item[0] != key]
    _write(path, read_measurements(path) | {_COMPILATIONS: dict([*others[1 - _KEPT :], (key, times)])})


def _has(times: object, *names: str) -> bool:
    """Whether this is an entry with these names, whose values are all times or counts."""
    if not isinstance(times, dict) or not times.keys() >= set(names):
        return False
    return all(isinstance(v, float) and v >= 0 for v in times.values())


def _read(path: Path) -> dict[str, Any]:
    try:
        table = json.loads(path.read_text())
    except (OSError, ValueError):
        return {}
    return table if isinstance(table, dict) else {}


def _write(path: Path, table: dict[str, Any]) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        scratch = path.with_name(f"{path.name}.{os.getpid()}")
        scratch.write_text(json.dumps(table))
        scratch.replace(path)
    except OSError as error:
        _log.info("Cannot store measurements of engines: %s", error)
