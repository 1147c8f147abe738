"""The programs of Flower, which are its public interface to processes."""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib.metadata import entry_points
from pathlib import Path


def program_path(name: str) -> str:
    """Return the path of a program of Flower, beside the current interpreter if it is there."""
    beside = Path(sys.executable).with_name(name)
    return str(beside) if beside.exists() else name


def load_program(name: str) -> Callable[[], None]:
    """Return the function that a program of Flower calls, to run it in this process."""
    (program,) = entry_points(group="console_scripts", name=name)
    loaded: Callable[[], None] = program.load()
    return loaded
