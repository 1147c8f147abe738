"""Encoded vectors as bytes: the fields that a codec declares, one after another, little-endian."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from .codec import Codec, Fields


def to_bytes(codec: Codec, fields: Mapping[str, Tensor], size: int) -> Tensor:
    """Return the fields of vectors of `size` numbers as uint8, (nbytes,) or (M, nbytes)."""
    return torch.cat([fields[name].contiguous().view(torch.uint8) for name in codec.declare(size)], dim=-1)


def from_bytes(codec: Codec, data: Tensor, size: int, dtype: torch.dtype) -> Fields:
    """Return the fields of which `to_bytes` made the bytes.

    Args:
        codec: The codec.
        data: uint8, (nbytes,) or (M, nbytes).
        size: The number of entries of a vector.
        dtype: The dtype of the vector.
    """
    declared = {
        name: (dtype if isinstance(kind, str) else kind, length) for name, (kind, length) in codec.declare(size).items()
    }
    parts = data.split([length * kind.itemsize for kind, length in declared.values()], dim=-1)
    return {name: part.clone().view(kind) for (name, (kind, _)), part in zip(declared.items(), parts, strict=True)}
