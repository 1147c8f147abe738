"""Shares of whole numbers as people write them: 0.29 of 100 is 29, though 0.29 * 100 is a little less in floats."""

from __future__ import annotations

import math


def floor_of(share: float, n: int) -> int:
    return math.floor(share * n + 1e-9)


def ceil_of(share: float, n: int) -> int:
    return math.ceil(share * n - 1e-9)
