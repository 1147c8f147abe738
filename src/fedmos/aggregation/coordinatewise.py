"""Rules that treat every coordinate alone."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ..core.rounding import floor_of
from ..core.validation import Rule, check, non_negative
from .columns import by_columns
from .rule import Aggregation

_TOLERANCE = 1e-6
"""Sums of weights that differ by less than this are equal: weights have the precision of the run."""


@dataclass(frozen=True)
class Median(Aggregation):
    """The weighted median of every coordinate (Yin et al., ICML 2018): half of the weight is on either side of it.

    Between two values with exactly half of the weight on either side, it is their midpoint, as in NumPy. Clients of
    less than half of the weight cannot move a coordinate out of the range of the other clients' values.

    Example:
        >>> rows = torch.tensor([[1.0, 5.0], [2.0, 6.0], [1000.0, -1000.0]])
        >>> fm.aggregation.Median().aggregate(rows, torch.full((3,), 1 / 3))
        tensor([2., 5.])
    """

    def trims(self, clients: int) -> bool:
        return clients > 2

    def aggregate(self, rows: Tensor, weights: Tensor) -> Tensor:
        share = weights.to(torch.float64) / weights.sum(dtype=torch.float64)

        def median(part: Tensor) -> Tensor:
            values, order = part.sort(dim=0)
            up_to = share[order].cumsum(0)
            low = (up_to < 0.5 - _TOLERANCE).sum(0, keepdim=True)
            high = (up_to < 0.5 + _TOLERANCE).sum(0, keepdim=True).clamp(max=len(part) - 1)
            return (values.gather(0, low) / 2 + values.gather(0, high) / 2)[0]

        return by_columns(rows, median)


@dataclass(frozen=True)
class TrimmedMean(Aggregation):
    """The weighted mean of every coordinate without its k = ⌊fraction · S⌋ smallest and k largest values.

    After Yin et al. (ICML 2018). Clients are removed by number, whatever their weights; the others keep theirs. Up to k
    clients cannot move a coordinate out of the range of the other clients' values.

    Args:
        fraction: The share of the S clients that is removed on either side, below one half. With fewer than 1 /
            `fraction` clients, none is.

    Raises:
        ValueError: If `fraction` is not in [0, 0.5).

    Example:
        >>> rows = torch.tensor([[1.0], [2.0], [3.0], [4.0], [1000.0]])
        >>> fm.aggregation.TrimmedMean(0.2).aggregate(rows, torch.ones(5))
        tensor([3.])
    """

    fraction: float

    def __post_init__(self) -> None:
        check(self, fraction=Rule("in [0, 0.5)", lambda v: non_negative.test(v) and v < 0.5))

    def trims(self, clients: int) -> bool:
        return self.trimmed(clients) > 0

    def trimmed(self, clients: int) -> int:
        """Return the number of clients that are removed on either side."""
        return floor_of(self.fraction, clients)

    def aggregate(self, rows: Tensor, weights: Tensor) -> Tensor:
        S, k = len(rows), self.trimmed(len(rows))
        # Equal values are in the order of their weights, so that the result does not depend on the order of clients.
        by_weight = weights.argsort(stable=True)
        weights = weights[by_weight]

        def trimmed_mean(part: Tensor) -> Tensor:
            values, order = part[by_weight].sort(dim=0, stable=True)
            values, w = values[k : S - k], weights[order[k : S - k]]
            total = w.sum(0)
            return torch.where(total > 0, (w * values).sum(0) / total, values.mean(0))

        return by_columns(rows, trimmed_mean)
