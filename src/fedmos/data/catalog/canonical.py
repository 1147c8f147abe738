"""Conversion of samples to the layout and dtypes of the store, and their validation."""

from __future__ import annotations

import numpy as np

from ...core.losses import PADDING
from .chunks import SampleChunk
from .entries import CatalogEntry


def canonical(chunk: SampleChunk, entry: CatalogEntry) -> tuple[np.ndarray, np.ndarray]:
    """Return inputs and targets in the layout and dtypes of the store. Raises ValueError if they are invalid."""
    x, y = chunk.x, chunk.y
    y = y[:, 0] if y.ndim == 2 and y.shape[1] == 1 else y
    targets = 2 if entry.kind == "words" else 1
    if x.ndim < 2 or y.ndim != targets or len(x) != len(y):
        raise ValueError(f"inputs of shape {x.shape} do not match targets of shape {y.shape}")
    if 0 in x.shape[1:]:
        raise ValueError(f"inputs of shape {x.shape} are empty")
    if x.dtype.kind not in "uif" or y.dtype.kind not in "ui":
        raise ValueError(f"inputs are {x.dtype} and targets {y.dtype}, not numbers and whole numbers")
    return (_images(x, entry) if entry.kind == "images" else _tokens(x, entry)), _targets(y, entry)


def _images(x: np.ndarray, entry: CatalogEntry) -> np.ndarray:
    """Convert (n, height, width[, channels]) to (n, channels, height, width), uint8, or float32 for fractions."""
    if x.ndim not in (3, 4):
        raise ValueError(f"images must be (n, height, width) or (n, height, width, channels), got shape {x.shape}")
    if x.ndim == 3:
        x = x[:, None]
    elif x.shape[1:] != entry.shape and (x.shape[1] not in (1, 3) or x.shape[3] in (1, 3)):
        x = np.moveaxis(x, -1, 1)
    if x.dtype.kind == "f":
        if not np.isfinite(x).all():
            raise ValueError("images hold NaN or infinity")
        return x.astype(np.float32)
    if x.dtype != np.uint8 and len(x) and (x.min() < 0 or x.max() > 255):
        raise ValueError(f"pixels must be 0 … 255, got {x.min()} … {x.max()}")
    return x.astype(np.uint8, copy=False)


def _tokens(x: np.ndarray, entry: CatalogEntry) -> np.ndarray:
    if x.shape[1:] != entry.shape or x.dtype.kind == "f":
        raise ValueError(f"inputs must be whole numbers of shape (n, {entry.shape[0]}), got {x.dtype} of {x.shape}")
    if len(x) and (x.min() < 0 or x.max() >= entry.classes):
        raise ValueError(f"inputs must be 0 … {entry.classes - 1}, got {x.min()} … {x.max()}")
    return x.astype(np.int16 if entry.kind == "words" else np.uint8, copy=False)


def _targets(y: np.ndarray, entry: CatalogEntry) -> np.ndarray:
    """Return targets as int64; for words as int16, because they are as large as the inputs, and widened on use."""
    counted = y[y != PADDING] if entry.kind == "words" else y
    if len(counted) and (counted.min() < 0 or counted.max() >= entry.classes):
        wrong = counted.min() if counted.min() < 0 else counted.max()
        raise ValueError(f"labels must be 0 … {entry.classes - 1}, got {wrong}")
    return y.astype(np.int16 if entry.kind == "words" else np.int64)
