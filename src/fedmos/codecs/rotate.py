"""Randomised Hadamard rotation."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor

from ..core.validation import Rule, check
from .codec import Codec, Declaration, Fields
from .field_checks import check_lengths
from .streams import words

_CACHED, _MOST = 1 << 15, 1 << 24
"""Numbers that are transformed together: on a CPU, what fits into its cache; on a GPU, to limit memory."""
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
        size = v.shape[-1]
        block, main = self._parts(size)
        factors = _factors(key, v, main + block, block)
        turned = v.detach().clone(memory_format=torch.contiguous_format)
        _transform_(turned[..., :main], factors[..., :main], block)
        if main < size:
            _transform_(turned[..., -block:], factors[..., main:], block)
        return {"values": turned}

    def decode(self, fields: Mapping[str, Tensor], size: int, key: Tensor | int) -> Tensor:
        check_lengths(type(self).__name__, self.declare(size), fields)
        block, main = self._parts(size)
        v = fields["values"].detach().clone(memory_format=torch.contiguous_format)
        factors = _factors(key, v, main + block, block)
        if main < size:
            _transform_(v[..., -block:], factors[..., main:], block, inverse=True)
        _transform_(v[..., :main], factors[..., :main], block, inverse=True)
        return v

    def _parts(self, size: int) -> tuple[int, int]:
        """Return the length of a block, and the number of coordinates in whole blocks."""
        block = min(self.block, 1 << (size.bit_length() - 1))
        return block, size // block * block


def _factors(key: Tensor | int, v: Tensor, count: int, block: int) -> Tensor:
    """Return `count` random signs per row times the factor of the orthogonal transform, in the dtype of v."""
    bits = words(key, v.shape[:-1], -(-count // 64), v.device).view(torch.uint8)
    bits = (bits.unsqueeze(-1) >> torch.arange(8, dtype=torch.uint8, device=v.device)).bitwise_and_(1).flatten(-2)
    size = 1 / math.sqrt(block)
    factors: Tensor = torch.rsub(bits[..., :count].to(v.dtype), size, alpha=2 * size)
    return factors.expand(*v.shape[:-1], count)


def _transform_(v: Tensor, factors: Tensor, block: int, inverse: bool = False) -> None:
    """Apply factors and the Walsh-Hadamard transform to every block of (…, n), in place; or the inverse.

    A block is a matrix, whose columns are transformed, and then those of its transpose. The transpose is not undone,
    which permutes the coefficients: the inverse takes the same steps with a matrix of the other shape.
    """
    levels = block.bit_length() - 1
    rows, columns = 1 << (levels // 2), 1 << (levels - levels // 2)
    if inverse:
        rows, columns = columns, rows
    on_gpu = v.device.type == "cuda"
    blocks, factors = (x.reshape(-1, x.shape[-1]).unflatten(-1, (-1, block)) for x in (v, factors))
    # Parts are independent of each other: their size changes the speed, and not the result.
    most = max(1, (_MOST if on_gpu else _CACHED) // block)
    wide = min(most, blocks.shape[1])
    high = min(most // wide, blocks.shape[0])
    transform = (Products if on_gpu else Butterflies)(high * wide, rows, columns, v)
    for rows_of, factors_of in zip(blocks.split(high), factors.split(high), strict=True):
        for part, factor in zip(rows_of.split(wide, 1), factors_of.split(wide, 1), strict=True):
            transform.apply_(part, factor, inverse)


class Products:
    """The transform by products with Hadamard matrices in float64: few kernels. Used on a GPU.

    The sums are those of float64 numbers: rounded to float32, they do not depend on the order of additions, apart from
    rare ties.
    """

    def __init__(self, n: int, rows: int, columns: int, like: Tensor) -> None:
        self._rows, self._columns = hadamard(rows, like.device), hadamard(columns, like.device)

    def apply_(self, part: Tensor, factor: Tensor, inverse: bool) -> None:
        """Transform blocks (rows of vectors, blocks, block) in place, with `factor` before or, inverse, after it."""
        x = (part if inverse else part * factor).to(torch.float64)
        x = x.unflatten(-1, (len(self._rows), len(self._columns))) @ self._columns
        x = (x.mT.contiguous() @ self._rows).flatten(-2)
        part.copy_(x.mul_(factor) if inverse else x)


@cache
def hadamard(n: int, device: torch.device) -> Tensor:
    """Return the Hadamard matrix of size n, a power of two, in float64."""
    h = torch.ones(1, 1, dtype=torch.float64)
    while len(h) < n:
        h = torch.cat([torch.cat([h, h], 1), torch.cat([h, -h], 1)])
    return h.to(device)


class Butterflies:
    """The transform by sums and differences, in an order that depends on the size of a block only. Used on a CPU."""

    def __init__(self, n: int, rows: int, columns: int, like: Tensor) -> None:
        self._first, self._second = _Columns(n, rows, columns, like), _Columns(n, columns, rows, like)

    def apply_(self, part: Tensor, factor: Tensor, inverse: bool) -> None:
        """Transform blocks (rows of vectors, blocks, block) in place, with `factor` before or, inverse, after it."""
        start, end = _shaped(self._first.input, part), _shaped(self._second.output, part)
        if inverse:
            start.copy_(part)
        else:
            torch.mul(part, factor, out=start)
        self._second.input.copy_(self._first.run().mT)
        self._second.run()
        if inverse:
            torch.mul(end, factor, out=part)
        else:
            part.copy_(end)


def _shaped(memory: Tensor, part: Tensor) -> Tensor:
    """View the first numbers of the memory in the shape of `part`."""
    return memory.view(-1)[: part.numel()].view(part.shape)


class _Columns:
    """The Walsh-Hadamard transform of every column of (n, rows, columns), without its factor, in memory of its own."""

    def __init__(self, n: int, rows: int, columns: int, like: Tensor) -> None:
        self.input = x = like.new_zeros(n, rows, columns)
        other, half = torch.zeros_like(x), 1
        self._steps = []
        while half < rows:
            pairs, out = (v.view(n, rows // (2 * half), 2, half * columns) for v in (x, other))
            self._steps.append((pairs[:, :, 0], pairs[:, :, 1], out[:, :, 0], out[:, :, 1]))
            x, other, half = other, x, 2 * half
        self.output = x

    def run(self) -> Tensor:
        """Transform the input and return the output; the input is overwritten."""
        for a, b, total, difference in self._steps:
            torch.add(a, b, out=total)
            torch.sub(a, b, out=difference)
        return self.output
