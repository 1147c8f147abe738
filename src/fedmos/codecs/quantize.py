"""Integers of a few bits, with one scale per block."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from ..core.validation import boolean, check, count
from .blocks import in_blocks, in_float32
from .codec import Codec, Declaration, Fields
from .field_checks import check_lengths, require_all
from .packing import pack, packed_length, unpack
from .sign import Sign
from .streams import words


@dataclass(frozen=True)
class Quantize(Codec):
    """Send every coordinate as an integer of `bits` bits, with a float32 scale per block (QSGD, Alistarh et al. 2017).

    The scale s of a block is its largest |v|. Of the n + 1 = 2^bits equidistant levels from −s to s, at a distance of
    Δ = 2 s / n, a coordinate takes one of the two next to it, at random such that its mean is the coordinate. The
    decoded vector is unbiased, with a variance of at most Δ²/4 per coordinate. The random numbers have 16 bits, so that
    a mean is exact to 2⁻¹⁵ Δ.

    With `stochastic=False` a coordinate takes the nearest of 2^bits − 1 levels, of which one is zero. The result is
    biased, and a contraction: ‖decoded − v‖² ≤ (1 − δ) ‖v‖² with δ = 1 / (1 + (block − 1) / (2^bits − 2)²).
    `ErrorFeedback` uses this form, and `Sign` for one bit.

    The bytes are ⌈D·bits/8⌉ for the integers and 4 for each of the ⌈D/block⌉ scales.

    Args:
        bits: The bits of a coordinate, 1 to 8.
        block: The number of coordinates that share a scale.
        stochastic: Whether to round at random instead of to the nearest level.

    Raises:
        ValueError: If a value is out of range, or `stochastic` is false for one bit.

    Example:
        >>> codec = fm.codecs.Quantize(4)
        >>> codec.nbytes(1000)  # 500 bytes, and 4 scales
        516
        >>> v = torch.linspace(-1, 1, 1000)
        >>> decoded = codec.decode(codec.encode(v, key=0), 1000, key=0)
        >>> bool((decoded - v).abs().max() < 2 / 15)
        True
    """

    bits: int
    block: int = 256
    stochastic: bool = True

    def __post_init__(self) -> None:
        check(self, bits=count.up_to(8), block=count, stochastic=boolean)
        if self.bits == 1 and not self.stochastic:
            raise ValueError(
                "Cannot use Quantize with bits=1 and stochastic=False because two levels have none near zero; "
                f"use Sign(block={self.block})"
            )

    @property
    def unbiased(self) -> bool:
        return self.stochastic

    @property
    def _intervals(self) -> int:
        """The number n of intervals between the levels; even without `stochastic`, so that zero is a level."""
        return (1 << self.bits) - (1 if self.stochastic else 2)

    def _block(self, size: int) -> int:
        return min(self.block, size)

    def declare(self, size: int) -> Declaration:
        return {
            "codes": (torch.uint8, packed_length(size, self.bits)),
            "scales": (torch.float32, -(-size // self._block(size))),
        }

    def encode(self, v: Tensor, key: Tensor | int) -> Fields:
        size, n = v.shape[-1], self._intervals
        blocks = in_blocks(v, self._block(size))
        scales = in_float32(blocks.abs().amax(dim=-1))
        level = blocks / (scales + (scales == 0)).unsqueeze(-1)  # from −1 to 1; zeros where all are
        # Levels start at 0. Truncation rounds down, so half a level, or a random part of one, is added.
        level = level.mul_(n / 2).add_(n / 2 + 0.5).flatten(-2)
        if self.stochastic:
            level.add_(self._noise(key, level), alpha=2.0**-16)
        codes = level.to(torch.uint8)[..., :size]  # 0 … n: the sum is exact where it is largest, and < n + 1
        return {"codes": pack(codes, self.bits), "scales": scales}

    @staticmethod
    def _noise(key: Tensor | int, v: Tensor) -> Tensor:
        """Return int16 random numbers for all coordinates, four of each 64-bit number."""
        size = v.shape[-1]
        return words(key, v.shape[:-1], -(-size // 4), v.device).view(torch.int16)[..., :size]

    def decode(self, fields: Mapping[str, Tensor], size: int, key: Tensor | int) -> Tensor:
        check_lengths(type(self).__name__, self.declare(size), fields)
        n, block = self._intervals, self._block(size)
        level = unpack(fields["codes"], self.bits, size).to(torch.float32).sub_(n / 2)
        step = fields["scales"] * (2 / n)
        blocks = in_blocks(level, block)
        return (blocks * step.unsqueeze(-1)).flatten(-2)[..., :size]

    def check(self, fields: Mapping[str, Tensor], size: int, *, finite: bool = True) -> None:
        super().check(fields, size, finite=finite)
        scales, owner = fields["scales"], type(self).__name__
        require_all(owner, "scales", scales, ~(scales < 0), "≥ 0")
        codes = unpack(fields["codes"], self.bits, size)
        require_all(owner, "codes", codes, codes <= self._intervals, f"≤ {self._intervals}")

    def contractive(self) -> Codec:
        return Sign(self.block) if self.bits == 1 else replace(self, stochastic=False)
