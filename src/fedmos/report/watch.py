"""Rebuild a report while its comparison runs."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ..storage.files import replace_file, storage_errors
from .checks import Target
from .page import html
from .running import METRICS_FILE, is_complete, running_study
from .study import read_study

EVERY = 3.0
"""Seconds between two reads of the folder."""


def watch(
    folder: Path,
    out: Path,
    target: Target | None = None,
    baseline: str | None = None,
    *,
    every: float = EVERY,
    sleep: Callable[[float], Any] = time.sleep,
    echo: Callable[[str], Any] = print,
) -> None:
    """Write the report whenever records change, until the comparison or the run is complete.

    Args:
        folder: The folder of a comparison or of a run.
        out: The file to write. The page reloads itself while the comparison runs.
        target: Metric and value to reach, for a run that records none.
        baseline: Label of the method that others are measured against, in the complete report.
        every: Seconds between two reads of the folder.
        sleep: Waits; replaced in tests.
        echo: Prints a line.

    Raises:
        FileNotFoundError: If the folder holds neither a comparison nor a run.
    """
    seen, written = None, False
    while not is_complete(folder):
        state = _state(folder)
        if state != seen:
            seen = state
            study = running_study(folder, every, target)
            if study is not None:
                _write(out, html(study))
            if not written and study is not None:
                written = True
                echo(f"Report: {out}, written again whenever a round ends; Ctrl-C stops.")
        sleep(every)
    _write(out, html(read_study([folder], target, baseline)))
    echo(f"Complete. Report: {out}")


def _state(folder: Path) -> list[tuple[str, int]]:
    """Return the size of every file of records."""
    return sorted((str(path), path.stat().st_size) for path in folder.rglob(METRICS_FILE))


def _write(out: Path, page: str) -> None:
    with storage_errors(f"write {out}", "use another name"):
        replace_file(out, page.encode())
