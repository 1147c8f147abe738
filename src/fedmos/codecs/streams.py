"""Random numbers of codecs, from the key that both sides know."""

from __future__ import annotations

from numbers import Integral

import torch
from torch import Tensor

from .. import rng
from ..core.formatting import format_value


def column(key: Tensor | int, rows: torch.Size, device: torch.device) -> Tensor:
    """Return a key in the form that broadcasts against vectors (*rows, D).

    Args:
        key: An int, or an int64 tensor of shape (), (1,), (M,) or (M, 1).
        rows: The shape of the vectors without their last axis: () or (M,).
        device: The device of the vectors.

    Returns:
        (1,) for one vector; (M, 1), or (1, 1) for one key of all rows, for a cohort.

    Raises:
        ValueError: If there is neither one key nor a key per row.
    """
    if isinstance(key, Integral):
        return torch.full((1,) * (len(rows) + 1), rng.signed(int(key)), device=device)
    count = rows.numel()
    if not isinstance(key, Tensor) or key.dtype != torch.int64 or key.numel() not in (1, count):
        keys = "one key" if count == 1 else f"one key or {count}"
        raise ValueError(f"Codec: 'key' must be an int, or an int64 tensor of {keys}, got {_form(key)}")
    key = key.to(device)
    return key.reshape(-1, 1) if len(rows) else key.reshape(1)


def words(key: Tensor | int, rows: torch.Size, count: int, device: torch.device) -> Tensor:
    """Return `count` random int64 numbers per key, (count,), (M, count) or, for one key of all rows, (1, count)."""
    return rng.words(column(key, rows, device)[..., 0], count)


def uniform(key: Tensor | int, v: Tensor) -> Tensor:
    """Return numbers in [0, 1), one for each entry of v, in the dtype of v.

    They are multiples of 2⁻²⁴ in float32 and of 2⁻⁵³ in float64.

    Args:
        key: The key that a codec is given.
        v: Vectors (D,) or (M, D).

    Returns:
        Independent numbers of the shape of v, the same on every device; the same in every row if there is one key.

    Example:
        >>> fm.codecs.uniform(7, torch.zeros(3, 100)).shape
        torch.Size([3, 100])
    """
    numbers = rng.uniform(words(key, v.shape[:-1], v.shape[-1], v.device))
    if v.dtype == torch.float32:  # truncated: rounding could give 1
        numbers = (numbers * 2.0**24).floor() * 2.0**-24
    return numbers.to(v.dtype).expand(v.shape)


def _form(key: object) -> str:
    return f"{key.dtype} of shape {tuple(key.shape)}" if isinstance(key, Tensor) else format_value(key)
