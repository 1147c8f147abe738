"""Randomised Hadamard rotation."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from ..core.validation import Rule, check
from .codec import Codec, Declaration, Fields
from .packing import unpack
from .streams import words

_PART = 32768
"""Numbers that are transformed together on a CPU, such that they fit into its cache."""
_power_of_two = Rule("a power of two", lambda v: type(v) is int and v >= 2 and v & (v - 1) == 0, 2**30)


@dataclass(frozen=True)
class Rotate(Codec):
    """Rotate the vector at random before the next codec: random signs, then a Walsh-Hadamard transform per block.

    A rotation spreads large coordinates over their block, which makes `Quantize` more precise (Suresh et al. 2017). It
    is orthogonal, and the decoder inverts it: by itself it changes nothing but the last bits, and saves nothing.

    There is no padding, and the size stays D. If the block, a power of two, does not divide D, the last `block`
    coordinates are rotated once more, together with those that remain. A vector shorter than the block is rotated in
    blocks of the largest power of two ≤ D.

    Args:
        block: The number of coordinates that are rotated together.

    Raises:
        ValueError: If `block` is not a power of two.

    Example:
        >>> codec = fm.codecs.Chain([fm.codecs.Rotate(), fm.codecs.Quantize(4)])
        >>> v = torch.zeros(4096)
        >>> v[7] = 64.0
        >>> fm.codecs.Rotate().encode(v, key=0)["values"].abs().max()
        tensor(1.)
        >>> codec.nbytes(4096) == fm.codecs.Quantize(4).nbytes(4096)
        True
    """

    block: int = 4096

    payload = "values"

    def __post_init__(self) -> None:
        check(self, block=_power_of_two)

    @property
    def unbiased(self) -> bool:
        return True

    def declare(self, size: int) -> Declaration:
        return {"values": ("float", size)}

    def encode(self, v: Tensor, key: Tensor | int) -> Fields:
        block, main = self._parts(v.shape[-1])
        signs = _signs(key, v, main + block)
        turned = _transform(v[..., :main] * signs[..., :main], block)
        if main < v.shape[-1]:
            turned = torch.cat([turned, v[..., main:]], dim=-1)
            turned[..., -block:] = _transform(turned[..., -block:] * signs[..., main:], block)
        return {"values": turned}

    def decode(self, fields: Mapping[str, Tensor], size: int, key: Tensor | int) -> Tensor:
        block, main = self._parts(size)
        turned = fields["values"]
        signs = _signs(key, turned, main + block)
        if main < size:
            last = _transform(turned[..., -block:], block, inverse=True) * signs[..., main:]
            turned = torch.cat([turned[..., :-block], last], dim=-1)
        v = _transform(turned[..., :main], block, inverse=True).mul_(signs[..., :main])
        return v if main == size else torch.cat([v, turned[..., main:]], dim=-1)

    def _parts(self, size: int) -> tuple[int, int]:
        """Return the length of a block, and the number of coordinates in whole blocks."""
        block = min(self.block, 1 << (size.bit_length() - 1))
        return block, size // block * block


def _signs(key: Tensor | int, v: Tensor, count: int) -> Tensor:
    """Return `count` random signs per row, in the dtype of v."""
    bits = words(key, v.shape[:-1], -(-count // 64), v.device).view(torch.uint8)
    return unpack(bits, 1, 8 * bits.shape[-1])[..., :count].to(v.dtype).mul_(-2).add_(1)


def _transform(v: Tensor, block: int, inverse: bool = False) -> Tensor:
    """Return the orthogonal Walsh-Hadamard transform of every block of (…, n), with permuted coefficients.

    A block is a matrix, whose columns are transformed, and then those of its transpose. The transpose is not undone:
    the inverse takes the steps with a matrix of the other shape.
    """
    levels = block.bit_length() - 1
    rows, columns = 1 << (levels // 2), 1 << (levels - levels // 2)
    if inverse:
        rows, columns = columns, rows
    turned = torch.empty(v.shape, dtype=v.dtype, device=v.device)
    # Parts are independent of each other: their size changes the speed, and not the result.
    height = max(1, _PART // block) if v.device.type == "cpu" else max(1, v.numel() // block)
    for part, out in zip(v.reshape(-1, block).split(height), turned.view(-1, block).split(height), strict=True):
        once = _columns(part.reshape(-1, rows, columns))
        torch.mul(_columns(once.mT.contiguous()), 1 / math.sqrt(block), out=out.view(-1, columns, rows))
    return turned


def _columns(x: Tensor) -> Tensor:
    """Return the Walsh-Hadamard transform of every column of (n, rows, columns), without its factor."""
    n, rows, columns = x.shape
    half, buffers = 1, (torch.empty_like(x), torch.empty_like(x))
    while half < rows:
        into, other = buffers
        pairs, out = (v.view(n, rows // (2 * half), 2, half * columns) for v in (x, into))
        torch.add(pairs[:, :, 0], pairs[:, :, 1], out=out[:, :, 0])
        torch.sub(pairs[:, :, 0], pairs[:, :, 1], out=out[:, :, 1])
        x, buffers, half = into, (other, into), 2 * half
    return x
