"""CPU seconds of this process and of all processes that it has started, from /proc."""

from __future__ import annotations

import os
from pathlib import Path

_TICKS = os.sysconf("SC_CLK_TCK")


def tree_seconds() -> float:
    """Return user and system seconds of this process and its descendants, with those that they have waited for.

    Ray's processes live as long as the job, so that RUSAGE_CHILDREN does not contain them.
    """
    ticks, children = {}, {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            values = (folder / "stat").read_text().rpartition(")")[2].split()
        except OSError:  # the process has ended
            continue
        ticks[int(folder.name)] = sum(map(int, values[11:15]))
        children.setdefault(int(values[1]), []).append(int(folder.name))
    found, total = [os.getpid()], 0
    while found:
        pid = found.pop()
        total += ticks.get(pid, 0)
        found += children.get(pid, [])
    return total / _TICKS
