"""The encoding and split of LEAF's Shakespeare: 80 symbols, and a split of each role's samples in time."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from .entries import SYMBOLS

WINDOW = 80
_UNKNOWN = len(SYMBOLS) - 1
_TYPOGRAPHY = str.maketrans("‘’“”–—", "''\"\"--")

_CODE = np.full(256, _UNKNOWN, np.uint8)
_CODE[[ord(symbol) for symbol in SYMBOLS]] = np.arange(len(SYMBOLS), dtype=np.uint8)


def codes(text: str) -> np.ndarray:
    """Return the number of each character, uint8.

    LEAF looks characters up with `find`, which returns −1 for unknown ones: the last symbol. This function does the
    same, except that it first replaces typographic quotes and dashes with plain ones.
    """
    raw = text.translate(_TYPOGRAPHY).encode("utf-32-le", "surrogatepass")
    return _CODE[np.minimum(np.frombuffer(raw, np.uint32), 255)]


def encode(texts: Sequence[str], length: int) -> np.ndarray:
    """Encode texts of equal length as rows of numbers, (n, length)."""
    if any(len(text) != length for text in texts):
        wrong = next(text for text in texts if len(text) != length)
        raise ValueError(f"every text must be {length} characters long, got {len(wrong)}: {wrong[:40]!r}")
    return codes("".join(texts)).reshape(len(texts), length)


def in_time(samples: int) -> tuple[int, int]:
    """Return the number of a role's training samples, in order, and the position of the first test sample.

    As in LEAF's `split_data.py`: four fifths are for training; the samples that overlap with them are dropped.
    """
    train = max(1, int(0.8 * samples))
    return train, train + WINDOW - 1
