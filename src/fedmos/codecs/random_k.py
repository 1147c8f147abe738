"""Random coordinates."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from ..core.validation import boolean, check, share
from .codec import Codec, Declaration, Fields, part_of
from .field_checks import check_lengths
from .streams import words


@dataclass(frozen=True)
class RandomK(Codec):
    """Send k = ⌈fraction · D⌉ random coordinates. The key determines their indices, so only values are sent.

    The coordinates form a circle that is cut at a random place into k parts of equal length (up to one coordinate), and
    one coordinate of each part is drawn. Every coordinate is thus sent with probability k/D, at a cost of O(k).

    Sent values are scaled by D/k, and the others decoded as zero: the result is unbiased, and the mean of
    ‖decoded − v‖² is (D/k − 1) ‖v‖². With `unbiased=False` values are not scaled, and the result is a contraction in
    the mean: ‖decoded − v‖² has mean (1 − δ) ‖v‖² with δ = k/D. `ErrorFeedback` uses this form.

    If an entry of the vector is not finite, all sent values become NaN.

    Args:
        fraction: The share of coordinates that is sent; at least one is.
        unbiased: Whether to scale the values by D/k.

    Raises:
        ValueError: If `fraction` is not in (0, 1].

    Example:
        >>> codec = fm.codecs.RandomK(0.5)
        >>> codec.nbytes(1000)
        2000
        >>> decoded = codec.decode(codec.encode(torch.ones(1000), key=7), 1000, key=7)
        >>> decoded.mean(), decoded.max()
        (tensor(1.), tensor(2.))
    """

    fraction: float
    unbiased: bool = True  # a field in place of the property

    payload = "values"

    def __post_init__(self) -> None:
        check(self, fraction=share, unbiased=boolean)

    def declare(self, size: int) -> Declaration:
        return {"values": ("float", part_of(self.fraction, size))}

    def encode(self, v: Tensor, key: Tensor | int) -> Fields:
        size = v.shape[-1]
        k = part_of(self.fraction, size)
        values = v.gather(-1, self._indices(key, v.shape[:-1], size, v.device))
        if self.unbiased:
            values.mul_(size / k)
        return {"values": values.add_(0 * v.abs().amax(dim=-1, keepdim=True))}  # 0, or NaN if an entry is not finite

    def decode(self, fields: Mapping[str, Tensor], size: int, key: Tensor | int) -> Tensor:
        check_lengths(type(self).__name__, self.declare(size), fields)
        values = fields["values"]
        indices = self._indices(key, values.shape[:-1], size, values.device)
        return values.new_zeros((*values.shape[:-1], size)).scatter_(-1, indices, values)

    def _indices(self, key: Tensor | int, rows: torch.Size, size: int, device: torch.device) -> Tensor:
        """Return the k different indices of every row."""
        k = part_of(self.fraction, size)
        bounds = torch.arange(k + 1, device=device) * size // k
        random = words(key, rows, k + 1, device) & (2**63 - 1)
        within = bounds[:-1] + random[..., :k] % bounds.diff()
        return ((within + random[..., k:] % size) % size).expand(*rows, k)

    def contractive(self) -> Codec:
        return replace(self, unbiased=False)
