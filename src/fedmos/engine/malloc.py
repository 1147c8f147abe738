"""Settings of the C library's allocator: keep freed memory for the next training step, or return it."""

from __future__ import annotations

import ctypes
import sys
from functools import cache
from typing import Any

_TRIM_THRESHOLD, _TOP_PAD, _MMAP_THRESHOLD, _MMAP_MAX = -1, -2, -3, -4


@cache
def keep_memory() -> None:
    """Make glibc's malloc keep freed memory instead of returning it to the system; does nothing elsewhere.

    A training step allocates and frees the same tensors again and again. The system would zero their pages every time,
    which for small models costs more than the arithmetic.
    """
    _set({_MMAP_MAX: 0, _TRIM_THRESHOLD: 2**31 - 1, _TOP_PAD: 64 * 2**20})


def return_memory() -> None:
    """Make glibc's malloc return large blocks to the system as soon as they are freed; does nothing elsewhere.

    By default it keeps blocks of up to 32 MB that were freed once, for later ones of such sizes.
    """
    _set({_MMAP_MAX: 65536, _MMAP_THRESHOLD: 2**20, _TRIM_THRESHOLD: 2**20, _TOP_PAD: 2**17})
    trim_memory()


def trim_memory() -> None:
    """Return memory that is free now to the system; later blocks are kept as before. Does nothing elsewhere."""
    if (trim := _function("malloc_trim")) is not None:
        trim(0)


def _set(options: dict[int, int]) -> None:
    mallopt = _function("mallopt")
    for option, value in options.items():
        if mallopt is not None:
            mallopt(option, value)


def _function(name: str) -> Any:
    """Return a function of glibc; None where there is none."""
    if not sys.platform.startswith("linux"):
        return None
    try:
        return getattr(ctypes.CDLL(None), name)
    except (OSError, AttributeError):
        return None
