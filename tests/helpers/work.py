"""Bounds on the work of a function, in operations that do not depend on the machine or on its load."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any, TypeVar

T = TypeVar("T")


def counting_calls(function: Callable[[], T], most: int) -> T:
    """Call `function`, and end it with an AssertionError once it has made more than `most` calls.

    Calls of Python functions and of functions written in C count, at any depth, in this thread. A loop in Python is
    bounded in this way, even an endless one; the size of an array that one call computes is not.
    """
    calls = 0

    def count(frame: FrameType, event: str, argument: Any) -> None:
        nonlocal calls
        if event in ("call", "c_call"):
            calls += 1
            if calls > most:
                raise AssertionError(f"more than {most:,} calls")

    before = sys.getprofile()
    sys.setprofile(count)
    try:
        return function()
    finally:
        sys.setprofile(before)
