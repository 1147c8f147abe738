"""Settings of the C library's allocator: keep freed memory for the next training step."""

from __future__ import annotations

import ctypes
import sys
from functools import cache

_TRIM_THRESHOLD, _TOP_PAD, _MMAP_MAX = -1, -2, -4


@cache
def keep_memory() -> None:
    """Make glibc's malloc keep freed memory instead of returning it to the system; does nothing elsewhere.

    A training step allocates and frees the same tensors again and again. The system would zero their pages every time,
    which for small models costs more than the arithmetic.
    """
    if not sys.platform.startswith("linux"):
        return
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return
    mallopt(_MMAP_MAX, 0)
    mallopt(_TRIM_THRESHOLD, 2**31 - 1)
    mallopt(_TOP_PAD, 64 * 2**20)
