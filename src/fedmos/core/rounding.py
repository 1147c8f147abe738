"""Fractions of integers without floating-point surprises: 0.29 of 100 is 29, although 0.29 * 100 < 29 in floats."""

from __future__ import annotations

import math


def floor_of(share: float, n: int) -> int:
    """Return ⌊share · n⌋."""
    return math.floor(share * n + 1e-9)


def ceil_of(share: float, n: int) -> int:
    """Return ⌈share · n⌉."""
    return math.ceil(share * n - 1e-9)
