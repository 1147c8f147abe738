"""Dropout masks on a GPU, as one Triton kernel: the hash of `rng.at_least` without tensors of 64-bit numbers."""

from __future__ import annotations

# mypy: ignore-errors
# Triton has no types, and its kernels are not quite Python.
import math

import torch
import triton
import triton.language as tl
from torch import Tensor

_BLOCK = 1024


@triton.jit
def _at_least(keys, out, count, bound, BLOCK: tl.constexpr):
    """out[row, j] = whether number j of the stream of the row, in units of 2⁻⁵³, is at least `bound`."""
    row = tl.program_id(0).to(tl.int64)
    j = tl.program_id(1).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    z = tl.load(keys + row).to(tl.uint64, bitcast=True) + 0x9E3779B97F4A7C15 * (j + 1).to(tl.uint64)
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9
    z = (z ^ (z >> 27)) * 0x94D049BB133111EB
    z = z ^ (z >> 31)
    tl.store(out + row * count + j, (z >> 11).to(tl.int64) >= bound, mask=j < count)


def at_least(key: Tensor, count: int, p: float) -> Tensor:
    """Return `rng.at_least(key, count, p)`, bit for bit."""
    kept = torch.empty((*key.shape, count), dtype=torch.bool, device=key.device)
    if kept.numel():
        grid = (key.numel(), triton.cdiv(count, _BLOCK))
        _at_least[grid](key.contiguous(), kept, count, math.ceil(p * 2.0**53), BLOCK=_BLOCK)
    return kept
