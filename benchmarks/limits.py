"""Seconds of operations that should never keep a user waiting, beside their limits: `make bench-limits`.

Partitions that cannot be made, or barely, must be made or refused within a second of CPU time; a report of twenty runs
of 5,000 rounds is written and, where there is Chromium, drawn within three. Fails where a limit is exceeded. The tests
bound the same operations by counts of calls, bytes and points instead, which do not depend on the machine.
"""

from __future__ import annotations

import contextlib
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from fedmos.data.partition import ByClass
from fedmos.report import page
from helpers import browser
from helpers.partitions import EXTREME, VALUES, labels
from helpers.studies import large_study


def cpu_seconds(function: Callable[[], object]) -> float:
    """CPU seconds of a call, the better of two."""
    times = []
    for _ in range(2):
        began = time.process_time()
        with contextlib.suppress(ValueError):  # a refusal counts as an answer
            function()
        times.append(time.process_time() - began)
    return min(times)


def measurements() -> Iterator[tuple[str, float, float]]:
    """(operation, seconds, limit)."""
    y = labels([600] * 10)
    for scheme, clients in EXTREME:
        yield f"{scheme}, {clients} clients", cpu_seconds(lambda s=scheme, n=clients: s.split(y, n, 0)), 1
    crowd = labels([20_001] * 6, VALUES)
    for scheme in (ByClass(classes=2, size=(2, 7)), ByClass(classes=3, size=5, share="even")):
        yield f"{scheme}, 20001 clients", cpu_seconds(lambda s=scheme: s.split(crowd, 20_001, 5)), 6
    study = large_study()
    yield "report of 20 runs of 5,000 rounds, written", cpu_seconds(lambda: page.html(study)), 3
    if browser.CHROMIUM is not None:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "large.html"
            path.write_text(page.html(study), "utf-8")
            yield "the same, drawn by Chromium", min(browser.seconds_to_draw(path) for _ in range(2)), 3


def main() -> None:
    exceeded = 0
    for name, seconds, limit in measurements():
        exceeded += seconds >= limit
        print(f"{seconds:7.3f} s of {limit} s  {name}", flush=True)
    sys.exit(f"{exceeded} exceed their limit" if exceeded else 0)


if __name__ == "__main__":
    main()
