"""Processes of the machine, from Linux's /proc."""

import time
from collections.abc import Callable
from pathlib import Path


def running(pid: int) -> bool:
    """Whether a process exists that has not ended."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state != "Z"


def descendants(pid: int) -> list[int]:
    """The processes that a process started, and those that they started."""
    children = [
        int(child) for file in Path(f"/proc/{pid}/task").glob("*/children") for child in file.read_text().split()
    ]
    return children + [pid for child in children for pid in descendants(child)]


def wait_until(condition: Callable[[], bool], looks: int = 6000) -> None:
    """Wait for a condition, and fail where it never comes true: after minutes, so that a busy machine does not fail."""
    for _ in range(looks):
        if condition():
            return
        time.sleep(0.05)
    raise AssertionError("what was waited for did not happen")
