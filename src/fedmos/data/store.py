"""Allocation of sample arrays: in memory if they are small, in an unnamed memory-mapped file if they are large."""

from __future__ import annotations

import tempfile
from math import prod

import numpy as np

_IN_MEMORY = 256 * 2**20


def allocate(shape: tuple[int, ...], dtype: type = np.uint8) -> np.ndarray:
    """Return an uninitialised array. Its file, if any, has no name and is deleted with the last reference to it."""
    if prod(shape) * np.dtype(dtype).itemsize <= _IN_MEMORY:
        return np.empty(shape, dtype)
    with tempfile.TemporaryFile(prefix="fedmos-") as file:
        return np.memmap(file, dtype=dtype, mode="w+", shape=shape)
