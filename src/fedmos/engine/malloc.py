"""The C library's memory: keep what was freed, for the next step takes it again."""

from __future__ import annotations

import ctypes
import sys
from functools import cache

_TRIM_THRESHOLD, _TOP_PAD, _MMAP_MAX = -1, -2, -4


@cache
def keep_memory() -> None:
    """Tell glibc's malloc neither to map large blocks anew nor to give freed ones back; elsewhere nothing happens.

    A training step frees and takes the same tensors over and over. Mapped afresh each time, their pages are zeroed by
    the kernel each time, which on small models costs more than the arithmetic.
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
