"""One bit per coordinate."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from ..core.validation import check, count, none
from .blocks import in_blocks, in_float32, tree_sum
from .codec import Codec, Declaration, Fields
from .field_checks import check_lengths, require_all
from .packing import pack, packed_length, unpack


@dataclass(frozen=True)
class Sign(Codec):
    """Send the sign of every coordinate, and the mean of |v| per block (EF-SignSGD, Karimireddy et al. 2019).

    A coordinate is decoded as ± mean |v|, and zero as + mean |v|. This is biased, and a contraction:
    ‖decoded − v‖² = (1 − δ) ‖v‖² with δ = ‖v‖₁² / (D ‖v‖²) ≥ 1/D, where D is the number of coordinates of a block. Use
    it in `ErrorFeedback`.

    The bytes are ⌈D/8⌉ for the signs and 4 for each scale.

    Args:
        block: The number of coordinates that share a scale; None for all.

    Raises:
        ValueError: If `block` is not ≥ 1.

    Example:
        >>> codec = fm.codecs.Sign()
        >>> codec.nbytes(1000)
        129
        >>> codec.decode(codec.encode(torch.tensor([1.0, -3.0]), key=0), 2, key=0)
        tensor([ 2., -2.])
    """

    block: int | None = None

    def __post_init__(self) -> None:
        check(self, block=count | none)

    def _block(self, size: int) -> int:
        return size if self.block is None else min(self.block, size)

    def declare(self, size: int) -> Declaration:
        blocks = -(-size // self._block(size))
        return {"signs": (torch.uint8, packed_length(size, 1)), "scales": (torch.float32, blocks)}

    def encode(self, v: Tensor, key: Tensor | int) -> Fields:
        size = v.shape[-1]
        block = self._block(size)
        blocks = in_blocks(v.abs(), block)
        scales = tree_sum(blocks)[..., 0] / block
        rest = size % block
        if rest:  # the last block has fewer coordinates
            scales[..., -1] *= block / rest
        return {"signs": pack((v < 0).to(torch.uint8), 1), "scales": in_float32(scales)}

    def decode(self, fields: Mapping[str, Tensor], size: int, key: Tensor | int) -> Tensor:
        check_lengths(type(self).__name__, self.declare(size), fields)
        factor = 1 - 2 * unpack(fields["signs"], 1, size).to(torch.float32)
        blocks = in_blocks(factor, self._block(size))
        return (blocks * fields["scales"].unsqueeze(-1)).flatten(-2)[..., :size]

    def check(self, fields: Mapping[str, Tensor], size: int, *, finite: bool = True) -> None:
        super().check(fields, size, finite=finite)
        require_all(type(self).__name__, "scales", fields["scales"], ~(fields["scales"] < 0), "≥ 0")
