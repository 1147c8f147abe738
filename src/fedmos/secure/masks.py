"""Vectors of integers modulo 2^bits as bytes, and masks of them from seeds by AES-256 in counter mode."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from numpy.typing import NDArray

Integers = NDArray[np.int64]
"""Integers that count modulo 2^bits."""

_ENTRIES = 2**20
"""Entries of a mask that are made at once."""


class RingVector(NamedTuple):
    """A vector of a message: the number of its entries, and their bits."""

    size: int
    bits: int

    @property
    def width(self) -> int:
        """Bytes of one entry."""
        return -(self.bits // -8)

    @property
    def nbytes(self) -> int:
        return self.size * self.width


Layout = Mapping[str, RingVector]
"""The vectors of an upload, in the order in which masks are drawn."""


def zeros(layout: Layout) -> dict[str, Integers]:
    """Return sums of nothing."""
    return {name: np.zeros(vector.size, dtype=np.int64) for name, vector in layout.items()}


def add_mask(sums: Mapping[str, Integers], layout: Layout, seed: bytes, sign: int) -> None:
    """Add the mask of a seed to vectors in place, or with sign −1, subtract it. A seed serves one upload only."""
    # The key is used once, so the counter starts at zero.
    stream = Cipher(algorithms.AES256(seed), modes.CTR(bytes(16))).encryptor()
    for name, vector in layout.items():
        for start in range(0, vector.size, _ENTRIES):
            part = sums[name][start : start + _ENTRIES]
            drawn = _integers(stream.update(bytes(len(part) * vector.width)), vector.width)
            part += sign * drawn


def to_bytes(values: Integers, vector: RingVector) -> bytes:
    """Return the integers modulo 2^bits, each in ⌈bits/8⌉ bytes, little-endian."""
    reduced = (values & ((1 << vector.bits) - 1)).astype("<i8", copy=False)
    return np.ascontiguousarray(reduced.view(np.uint8).reshape(-1, 8)[:, : vector.width]).tobytes()


def add_bytes(sums: Mapping[str, Integers], layout: Layout, vectors: Mapping[str, bytes]) -> None:
    """Add the integers of a message to sums in place.

    Raises:
        ValueError: If a vector has another length.
    """
    for name, vector in layout.items():
        if len(vectors[name]) != vector.nbytes:
            raise ValueError(f"'{name}' must have {vector.nbytes} bytes, got {len(vectors[name])}")
        np.add(sums[name], _integers(vectors[name], vector.width), out=sums[name])


def ring_vector(shape: tuple[int, ...], bits: int) -> RingVector:
    """Return the vector for a tensor of this shape."""
    return RingVector(math.prod(shape), bits)


def _integers(data: bytes, width: int) -> Integers:
    """Return the non-negative integers of so many bytes each. Bits above those of the ring have no effect on sums."""
    if width in (1, 2, 4):
        return np.frombuffer(data, dtype=f"<u{width}").astype(np.int64)
    wide = np.zeros((len(data) // width, 8), dtype=np.uint8)
    wide[:, :width] = np.frombuffer(data, dtype=np.uint8).reshape(-1, width)
    return wide.view("<i8").reshape(-1)
