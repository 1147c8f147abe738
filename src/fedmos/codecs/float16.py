"""Half precision."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from .codec import Codec, Declaration, Fields
from .field_checks import check_lengths


@dataclass(frozen=True)
class Float16(Codec):
    """Send every number in half precision, rounded to nearest: 2 bytes per coordinate.

    The relative error is at most 2⁻¹¹ for 6.1e-5 ≤ |v| ≤ 65504; smaller numbers have an absolute error of at most
    2⁻²⁵, and larger ones become infinite, which a run reports as a non-finite update.

    Example:
        >>> codec = fm.codecs.Float16()
        >>> codec.nbytes(1000)
        2000
        >>> codec.decode(codec.encode(torch.tensor([1.0, 0.1]), key=0), 2, key=0)
        tensor([1.0000, 0.1000])
    """

    def declare(self, size: int) -> Declaration:
        return {"values": (torch.float16, size)}

    def encode(self, v: Tensor, key: Tensor | int) -> Fields:
        return {"values": v.to(torch.float16).contiguous()}

    def decode(self, fields: Mapping[str, Tensor], size: int, key: Tensor | int) -> Tensor:
        check_lengths(type(self).__name__, self.declare(size), fields)
        return fields["values"].to(torch.float32)
