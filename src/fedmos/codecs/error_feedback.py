"""Error feedback: what a codec drops is sent later."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from ..core.formatting import format_value
from .chain import as_codec, is_codec
from .codec import Codec, Declaration, Fields
from .own import adopted, counted_bytes


@dataclass(frozen=True)
class ErrorFeedback(Codec):
    """Add to every vector what was lost of the earlier ones (Seide et al. 2014, Karimireddy et al. 2019).

    The sender keeps a residual e, which starts at zero: it encodes v + e, and then e ← v + e − decoded. What has been
    decoded by any round and the residual together are all that was given: Σ decoded + e = Σ v.

    The codec must be a contraction: `Quantize` rounds to nearest here (one bit: `Sign`), and `RandomK` does not scale.

    A run stores the residuals. `encode` and `decode` by themselves are those of the codec, without a residual.

    Args:
        codec: A codec, or a list.

    Raises:
        ValueError: If `codec` is no codec, or has error feedback already.

    Example:
        >>> codec = fm.codecs.ErrorFeedback(fm.codecs.TopK(0.5))
        >>> v, residual = torch.tensor([1.0, 3.0]), torch.zeros(2)
        >>> fields, decoded, residual = codec.apply(v, residual, key=0)
        >>> decoded, residual
        (tensor([0., 3.]), tensor([1., 0.]))
        >>> fields, decoded, residual = codec.apply(torch.tensor([1.0, 1.0]), residual, key=1)
        >>> decoded, residual
        (tensor([2., 0.]), tensor([0., 1.]))
    """

    codec: Codec | Sequence[Codec]

    feedback = True

    def __post_init__(self) -> None:
        if not is_codec(self.codec):
            raise ValueError(
                f"ErrorFeedback: 'codec' must be a codec or a list of codecs, got {format_value(self.codec)}"
            )
        if isinstance(as_codec(self.codec), ErrorFeedback):
            raise ValueError(
                "Cannot use ErrorFeedback in ErrorFeedback because one residual is enough; use one of them"
            )
        one = self.codec
        own = tuple(adopted(v, Codec) for v in one) if isinstance(one, Sequence) else adopted(one, Codec)
        object.__setattr__(self, "codec", own)

    @cached_property
    def used(self) -> Codec:
        """The codec in its contractive form."""
        return as_codec(self.codec).contractive()

    def apply(self, v: Tensor, residual: Tensor, key: Tensor | int) -> tuple[Fields, Tensor, Tensor]:
        """Encode vectors with what was lost before.

        Args:
            v: A vector (D,), or one per row, (M, D).
            residual: The residuals, of the shape and dtype of v.
            key: The random stream of every row.

        Returns:
            The fields, the vectors that they are decoded to, and the new residuals, both in the dtype of v.
        """
        wanted = v + residual
        fields = self.used.encode(wanted, key)
        decoded = self.used.decode(fields, v.shape[-1], key).to(v.dtype)
        return fields, decoded, wanted - decoded

    def declare(self, size: int) -> Declaration:
        return self.used.declare(size)

    def nbytes(self, size: int, dtype: torch.dtype = torch.float32) -> int:
        return counted_bytes(self.used, size, dtype)

    def encode(self, v: Tensor, key: Tensor | int) -> Fields:
        return self.used.encode(v, key)

    def decode(self, fields: Mapping[str, Tensor], size: int, key: Tensor | int) -> Tensor:
        return self.used.decode(fields, size, key)

    def check(self, fields: Mapping[str, Tensor], size: int, *, finite: bool = True) -> None:
        self.used.check(fields, size, finite=finite)
