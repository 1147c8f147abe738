"""Tile sizes of the products in `implicit_gemm`: the fastest on an H200 for the layers of docs/performance.md."""

from __future__ import annotations

import torch
from torch import Tensor

STAGES = 3
"""Pipeline stages: number of tiles of each factor in shared memory at once, on some GPUs one fewer."""


def forward_tiles(x: Tensor, CO: int, rows: int, T: int, pad: int) -> tuple[int, int, int, int]:
    """Return the rows, taps and channels of a tile of the forward product, and its number of warps."""
    C, narrow, BO = x.shape[2], x.dtype == torch.bfloat16, _tile(CO, 16, 64)
    if C % 32 == 0:
        if pad == 0 and rows >= 4096:
            return 256, 32, BO, 8
        return 128, 64 if narrow and C % 64 == 0 else 32, BO, 4
    if C % 16 == 0:
        return 128, 32 if narrow else 16, BO, 4
    if T <= 32:
        return 128, _tile(T, 16, 32), BO, 8 if BO == 64 else 4
    if T < 128:
        return 128, 32, BO, 4
    return (64, 64, BO, 4) if pad == 0 else (128, 32, BO, 4)


def weight_tiles(x: Tensor, CO: int, rows: int, T: int, shared: int) -> tuple[int, int, int, int]:
    """Return the rows, taps and channels of a tile of the weight gradient, and the number of shares of the rows.

    `shared` is the number of bytes of shared memory per program.
    """
    M, C, narrow, BO = len(x), x.shape[2], x.dtype == torch.bfloat16, _tile(CO, 16, 64)
    if C % 16 == 0:
        BR, BT, programs = (64, 64, 528) if narrow else (32, 32, 1056)
    elif narrow or (T >= 128 and _shared_bytes(64, _tile(T, 16, 256) + BO) > shared):
        BR, BT, programs = 32, _tile(T, 16, 128), 528
    else:
        BR, BT, programs = (64, 32, 500) if T < 128 else (64, _tile(T, 16, 256), 200)
    shares = programs // (-(T // -BT) * -(CO // -BO) * M)
    return BR, BT, BO, max(1, min(-(rows // (-4 * BR)), shares))


def _shared_bytes(rows: int, columns: int) -> int:
    """Return the bytes of shared memory for tiles of float32."""
    return STAGES * 4 * rows * columns


def _tile(n: int, low: int, high: int) -> int:
    """Return the smallest power of two ≥ n, clamped to [low, high]."""
    return max(low, min(high, 1 << (n - 1).bit_length()))
