"""Secure aggregation: the server learns the sums of uploads only."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from ..core.rounding import ceil_of
from ..core.validation import LARGE, Rule, check, count, positive
from .ring import MAX_BITS, Quantizer
from .rule import Aggregation

VECTOR_BOUND = 16.0
"""The largest absolute value of an entry of a vector of the model's size, where none is given."""
NUMBER_BITS = 48
"""The bits of all other uploads, which are few numbers."""
NUMBER_BOUND = 2.0**20
"""Their largest absolute value, where none is given."""


@dataclass(frozen=True)
class Secure(Aggregation):
    """The weighted sums of uploads, of which the server sees nothing else.

    A client multiplies its upload by its weight and rounds it to integers modulo 2^bits. In a deployment it adds masks
    that cancel in the sum over the cohort (Bonawitz et al., CCS 2017). A simulation adds the same integers without
    masks, so it returns the same bits; see docs/secure.md.

    Sums are exact: they depend neither on the order of clients nor on the engine. They cannot overflow, since the unit
    of the integers follows from `bound` and the weights of the cohort. Values above `bound` are clamped and counted in
    `record.saturated`.

    Args:
        bits: The bits of each number of a vector of the model's size, from 8 to 48. Other uploads, such as single
            numbers, have 48.
        bound: The largest absolute value of an entry of an upload; or one for each of some uploads, by name. By default
            16 for vectors of the model's size and 2^20 for other uploads; with `privacy`, the clipping bound.
        threshold: The share of a cohort without which a round is abandoned, above one half. In a deployment, so many
            clients must collude with the server to reveal the upload of another.

    Raises:
        ValueError: If an argument is out of range.

    Example:
        >>> secure = fm.aggregation.Secure(bits=24, bound=1.0)
        >>> result = fm.run(
        ...     model, data, fm.FedAvg(lr=0.1), fm.Uniform(m=3), rounds=2, local_steps=2, aggregation=secure
        ... )
        >>> result.history[-1].saturated
        0
    """

    bits: int = 32
    bound: float | Mapping[str, float] | None = None
    threshold: float = 2 / 3

    scale_free = False

    def __post_init__(self) -> None:
        check(
            self,
            bits=Rule(f"a whole number from 8 to {MAX_BITS}", lambda v: count.test(v) and 8 <= v <= MAX_BITS),
            bound=Rule("a number > 0, numbers > 0 by upload, or None", _is_bound),
            threshold=Rule("in (0.5, 1]", lambda v: positive.test(v) and 0.5 < v <= 1),
        )

    @property
    def min_clients(self) -> int:
        return 2  # the sum of one client is its upload

    def trims(self, clients: int) -> bool:
        return False

    def needed(self, clients: int) -> int:
        """Return the number of clients of a cohort without which its round is abandoned."""
        return max(self.min_clients, ceil_of(self.threshold, clients))

    def bound_of(self, upload: str, *, vector: bool) -> float:
        """Return the largest absolute value of an upload, which is a vector of the model's size or not."""
        default = VECTOR_BOUND if vector else NUMBER_BOUND
        if isinstance(self.bound, Mapping):
            return float(self.bound.get(upload, default))
        return default if self.bound is None or not vector else float(self.bound)

    def aggregate(self, rows: Tensor, weights: Tensor) -> Tensor:
        factors = weights.to(torch.float64)
        total = math.fsum(factors.abs().tolist())
        bound = self.bound_of("delta", vector=True)
        quantizer = Quantizer.of(self.bits, bound=bound, total=total, clients=len(rows))
        return quantizer.decode(quantizer.encode(rows, factors).sum(0)).to(rows)


def _is_bound(v: object) -> bool:
    numbers = positive.up_to(LARGE)
    if isinstance(v, Mapping):
        return len(v) > 0 and all(isinstance(name, str) and numbers.test(one) for name, one in v.items())
    return v is None or numbers.test(v)
