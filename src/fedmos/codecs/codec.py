"""The contract of a codec."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from ..core.equality import EqualByFields
from ..core.validation import count, require
from .field_checks import check_fields
from .own import derived_declaration

Fields = dict[str, Tensor]
"""What is sent of a vector: tensors by name, (n,) for one vector and (M, n) for the vectors of a cohort."""
Declaration = dict[str, tuple[torch.dtype | Literal["float"], int]]
"""The dtype and the number of entries of every field; `"float"` is the dtype of the vector."""

_size = count.up_to(math.inf)


@dataclass(frozen=True)
class Codec(EqualByFields):
    """Base class of codecs: what is sent in place of a vector.

    Subclass it as a frozen dataclass and define `encode`, `decode` and `declare`. The same body serves one vector (D,)
    and the vectors of a cohort (M, D), whose rows must be encoded as each of them alone. Without `declare`, the fields
    are those of a vector that is encoded once. An object of another class that has `encode`, `decode` and
    `nbytes(size)` is taken for a codec, too.

    `key` is a stream of `fedmos.rng`, known to both sides: an int, or an int64 tensor with one key for all rows or one
    per row. Runs pass one key, (), with a vector and one per row, (M,), with a cohort, as `c.key` of an algorithm.
    `fm.codecs.uniform` draws from every form of key. A codec has no other randomness, and no state.

    A codec must not hide a NaN or an infinity of the vector: the decoded vector has one too.

    Example:
        >>> from dataclasses import dataclass
        >>> @dataclass(frozen=True)
        ... class BFloat16(fm.codecs.Codec):
        ...     def declare(self, size):
        ...         return {"values": (torch.bfloat16, size)}
        ...     def encode(self, v, key):
        ...         return {"values": v.to(torch.bfloat16)}
        ...     def decode(self, fields, size, key):
        ...         return fields["values"].float()
        >>> BFloat16().nbytes(1000)
        2000
        >>> fm.check(BFloat16())
        []
    """

    payload: ClassVar[str | None] = None
    """The field of dtype `"float"` that the next codec of a chain encodes; None if nothing is left to encode."""

    feedback: ClassVar[bool] = False
    """Whether the sender keeps a residual: true of `ErrorFeedback` only."""

    def declare(self, size: int) -> Declaration:
        """Return the fields of a vector of `size` numbers: {name: (dtype, number of entries)}.

        A dtype `"float"` stands for the dtype of the vector. Names consist of letters, digits and underscores. By
        default, they are what `encode` returns of a vector.
        """
        return derived_declaration(self, size)

    def encode(self, v: Tensor, key: Tensor | int) -> Fields:
        """Encode vectors.

        Args:
            v: A vector (D,), or one per row, (M, D).
            key: The random stream of every row.

        Returns:
            The declared fields, (n,) or (M, n).
        """
        raise TypeError(f"{type(self).__name__} must define encode")

    def decode(self, fields: Mapping[str, Tensor], size: int, key: Tensor | int) -> Tensor:
        """Decode vectors.

        Args:
            fields: What `encode` returned.
            size: The number D of entries of a vector.
            key: The random stream that `encode` was given.

        Returns:
            The vectors, (D,) or (M, D), in float32; in float64 where the fields hold numbers in float64.
        """
        raise TypeError(f"{type(self).__name__} must define decode")

    def nbytes(self, size: int, dtype: torch.dtype = torch.float32) -> int:
        """Return the number of bytes that are sent of one vector of `size` numbers of type `dtype`.

        A user's codec may take the size alone.

        Raises:
            ValueError: If `size` is no integer ≥ 1; a vector has at least one number.
        """
        require(type(self).__name__, "size", size, _size)
        return sum(length * _dtype(kind, dtype).itemsize for kind, length in self.declare(size).values())

    def check(self, fields: Mapping[str, Tensor], size: int, *, finite: bool = True) -> None:
        """Check fields that come from elsewhere, before they are decoded.

        Args:
            fields: The fields of a vector, or of the vectors of a cohort.
            size: The number of entries of a vector.
            finite: Whether to refuse numbers that are not finite.

        Raises:
            ValueError: If a field is missing or unknown, has another dtype or shape than declared, or holds a value
                that no encoder returns.
        """
        check_fields(type(self).__name__, self.declare(size), fields, finite)

    @property
    def unbiased(self) -> bool:
        """Whether the mean of the decoded vector over keys is the vector."""
        return False

    def contractive(self) -> Codec:
        """Return the codec that `ErrorFeedback` uses: ‖decoded − v‖² ≤ (1 − δ) ‖v‖² with δ > 0. Default: itself."""
        return self


def _dtype(kind: torch.dtype | str, of_vector: torch.dtype) -> torch.dtype:
    return kind if isinstance(kind, torch.dtype) else of_vector


def part_of(fraction: float, size: int) -> int:
    """Return the least number of entries that is at least `fraction` of `size`, and at least 1."""
    kept = math.ceil(fraction * size)
    # 0.01 · 700 is 7.000000000000001 in floating point: one entry fewer if that is still the fraction.
    return max(1, kept - 1 if (kept - 1) / size >= fraction else kept)
