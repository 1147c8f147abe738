"""Weighted means: of the rows as they are, and of rows of bounded norm."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ..core.validation import LARGE, check, positive
from .rule import Aggregation


def weighted_mean(rows: Tensor, weights: Tensor) -> Tensor:
    """Return Σ weights · rows / Σ weights."""
    return weights @ rows / weights.sum()


@dataclass(frozen=True)
class Mean(Aggregation):
    """The weighted mean, as without the option `aggregation` but computed from rows: a baseline without protection.

    Example:
        >>> fm.aggregation.Mean().aggregate(torch.tensor([[0.0], [4.0]]), torch.tensor([0.75, 0.25]))
        tensor([1.])
    """

    def trims(self, clients: int) -> bool:
        return False

    def aggregate(self, rows: Tensor, weights: Tensor) -> Tensor:
        return weighted_mean(rows, weights)


@dataclass(frozen=True)
class ClippedMean(Aggregation):
    """The weighted mean of rows whose norm is at most `bound`: u_i · min(1, bound / ‖u_i‖).

    One client of weight w moves the result by at most 2 w · bound. The bound is in units of `delta`, so an algorithm
    that uploads anything else is refused. Where the algorithm divides uploads by the number of local steps K_i, the
    norm is that of δ_i · K / K_i, with the mean K of the cohort.

    Args:
        bound: The largest norm.

    Raises:
        ValueError: If `bound` is not positive.

    Example:
        >>> rows, weights = torch.tensor([[3.0, 4.0], [0.3, 0.4]]), torch.tensor([0.5, 0.5])
        >>> fm.aggregation.ClippedMean(bound=1.0).aggregate(rows, weights)
        tensor([0.4500, 0.6000])
    """

    bound: float

    scale_free = False

    def __post_init__(self) -> None:
        check(self, bound=positive.up_to(LARGE))

    def aggregate(self, rows: Tensor, weights: Tensor) -> Tensor:
        norms = torch.linalg.vector_norm(rows, dim=1)
        clipped: Tensor = (weights * (self.bound / norms).clamp(max=1)) @ rows / weights.sum()
        return clipped
