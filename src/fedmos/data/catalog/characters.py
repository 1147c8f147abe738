"""Shakespeare in LEAF's terms: 80 symbols, and a split of every role's samples in time."""

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
    """Every character's number, uint8.

    LEAF looks characters up with `find`, which gives −1 for those it does not know: the last symbol. So do we; only
    typographic quotes and dashes become plain ones first.
    """
    raw = text.translate(_TYPOGRAPHY).encode("utf-32-le", "surrogatepass")
    return _CODE[np.minimum(np.frombuffer(raw, np.uint32), 255)]


def encode(texts: Sequence[str], length: int) -> np.ndarray:
    """Texts of equal length as rows of numbers, (n, length)."""
    if any(len(text) != length for text in texts):
        wrong = next(text for text in texts if len(text) != length)
        raise ValueError(f"every text must be {length} characters long, got {len(wrong)}: {wrong[:40]!r}")
    return codes("".join(texts)).reshape(len(texts), length)


def in_time(samples: int) -> tuple[int, int]:
    """How many of a role's samples, in order, are for training, and where those for testing begin.

    As in LEAF's `split_data.py`: four fifths for training, then as many are dropped as would share text with them.
    """
    train = max(1, int(0.8 * samples))
    return train, train + WINDOW - 1
