"""The largest coordinates."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from ..core.validation import check, share
from .codec import Codec, Declaration, Fields, part_of
from .field_checks import check_lengths, require_all
from .packing import pack_indices, packed_length, unpack_indices


@dataclass(frozen=True)
class TopK(Codec):
    """Send the k = ⌈fraction · D⌉ coordinates of largest |v| and their indices; the others are decoded as zero.

    Of equal coordinates, those of smaller index are sent, on every device. NaN counts as larger than all numbers. This
    is biased, and a contraction: ‖decoded − v‖² ≤ (1 − δ) ‖v‖² with δ = k/D ≥ fraction. Use it in `ErrorFeedback`.

    Indices increase, and are packed at ⌈log₂ D⌉ bits each, at least one. The bytes are 4k for the values and
    ⌈k ⌈log₂ D⌉ / 8⌉ for the indices.

    Args:
        fraction: The share of coordinates that is sent; at least one is.

    Raises:
        ValueError: If `fraction` is not in (0, 1].

    Example:
        >>> codec = fm.codecs.TopK(0.01)
        >>> codec.nbytes(1000)  # 10 values, and 10 indices of 10 bits
        53
        >>> pair = fm.codecs.TopK(0.5)
        >>> pair.decode(pair.encode(torch.tensor([1.0, -3.0]), key=0), 2, key=0)
        tensor([ 0., -3.])
    """

    fraction: float

    payload = "values"

    def __post_init__(self) -> None:
        check(self, fraction=share)

    def declare(self, size: int) -> Declaration:
        k = part_of(self.fraction, size)
        return {"values": ("float", k), "indices": (torch.uint8, packed_length(k, index_width(size)))}

    def encode(self, v: Tensor, key: Tensor | int) -> Fields:
        size = v.shape[-1]
        indices = largest(v, part_of(self.fraction, size))
        return {"values": v.gather(-1, indices), "indices": pack_indices(indices, index_width(size))}

    def decode(self, fields: Mapping[str, Tensor], size: int, key: Tensor | int) -> Tensor:
        check_lengths(type(self).__name__, self.declare(size), fields)
        values = fields["values"]
        indices = unpack_indices(fields["indices"], index_width(size), values.shape[-1])
        return values.new_zeros((*values.shape[:-1], size)).scatter_(-1, indices, values)

    def check(self, fields: Mapping[str, Tensor], size: int, *, finite: bool = True) -> None:
        super().check(fields, size, finite=finite)
        indices = unpack_indices(fields["indices"], index_width(size), part_of(self.fraction, size))
        owner = type(self).__name__
        require_all(owner, "indices", indices, indices < size, f"< {size}")
        require_all(owner, "indices", indices[..., 1:], indices.diff(dim=-1) > 0, "increasing")


def index_width(size: int) -> int:
    """Return the bits of an index below `size`, at least 1."""
    return max(1, (size - 1).bit_length())


def largest(v: Tensor, k: int) -> Tensor:
    """Return the indices of the k entries of largest |v| of every row, in increasing order."""
    if v.dtype == torch.float64:
        order = v.abs().argsort(dim=-1, descending=True, stable=True)
        return order[..., :k].sort(dim=-1).values
    # The bits of |v| are ordered as |v|. Below them, indices in reverse order make all numbers different.
    place = torch.arange(2**31 - 1, 2**31 - 1 - v.shape[-1], -1, device=v.device)
    ranks = v.abs().to(torch.float32).view(torch.int32).to(torch.int64).bitwise_left_shift_(31).bitwise_or_(place)
    return (2**31 - 1 - (ranks.topk(k, dim=-1, sorted=False).values & (2**31 - 1))).sort(dim=-1).values
