"""Vectors in blocks of equal length."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import pad


def in_blocks(v: Tensor, block: int) -> Tensor:
    """View vectors (…, D) as blocks (…, B, block), the last of them padded with zeros."""
    missing = -v.shape[-1] % block
    blocks: Tensor = (pad(v, (0, missing)) if missing else v).unflatten(-1, (-1, block))
    return blocks


def in_float32(numbers: Tensor) -> Tensor:
    """Round float64 numbers ≥ 0 up to float32, so that a bound remains one. Others are returned as they are."""
    if numbers.dtype == torch.float32:
        return numbers
    near = numbers.to(torch.float32)
    return torch.where(near < numbers, torch.nextafter(near, torch.full_like(near, torch.inf)), near)


def tree_sum(v: Tensor) -> Tensor:
    """Sum over the last axis by adding halves, (…, n) → (…, 1).

    The order of additions depends on n only: the result has the same bits on every device and for every number of rows.
    """
    while (n := v.shape[-1]) > 1:
        half = (n + 1) // 2
        rest = v[..., half:]
        v = v[..., :half] + (pad(rest, (0, 1)) if n % 2 else rest)
    return v
