"""Room for samples: memory while they are few, an unnamed memory-mapped file when they are many."""

from __future__ import annotations

import tempfile
from math import prod

import numpy as np

_IN_MEMORY = 256 * 2**20


def allocate(shape: tuple[int, ...], dtype: type = np.uint8) -> np.ndarray:
    """An array to be filled. A file behind it has no name, so it is gone when the last user of the array is."""
    if prod(shape) * np.dtype(dtype).itemsize <= _IN_MEMORY:
        return np.empty(shape, dtype)
    with tempfile.TemporaryFile(prefix="fedmos-") as file:
        return np.memmap(file, dtype=dtype, mode="w+", shape=shape)
