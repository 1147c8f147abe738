"""The geometric median."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ..core.validation import check, count, positive
from .columns import gram
from .rule import Aggregation


@dataclass(frozen=True)
class GeometricMedian(Aggregation):
    """The weighted geometric median, argmin_z Σ_i w_i ‖z − u_i‖ (RFA, Pillutla et al., IEEE TSP 2022).

    It is computed by the smoothed Weiszfeld iteration z ← Σ_i b_i u_i / Σ_i b_i with b_i = w_i / max(ν, ‖z − u_i‖), a
    fixed number of times from the weighted mean. Iterates are combinations of the rows, so they are computed from the
    inner products of the rows, in float64. Clients of less than half of the weight cannot move the result arbitrarily
    far.

    Deviations: ν is relative, `smoothing` times the median of the distances ‖z − u_i‖, so that the result does not
    depend on the unit of the rows; the paper's ν is absolute, and its number of iterations is 3.

    Args:
        iterations: The number of iterations.
        smoothing: ν, as a share of the median distance.

    Raises:
        ValueError: If an argument is not positive.

    Example:
        >>> rows = torch.tensor([[0.0, 0.0], [1.0, 0.0], [0.0, 1.0], [1.0, 1.0], [1e6, 1e6]])
        >>> z = fm.aggregation.GeometricMedian().aggregate(rows, torch.full((5,), 0.2))
        >>> bool((z <= 1).all())
        True
    """

    iterations: int = 64
    smoothing: float = 1e-6

    def __post_init__(self) -> None:
        check(self, iterations=count.up_to(10_000), smoothing=positive.up_to(1))

    def trims(self, clients: int) -> bool:
        return clients > 2

    def aggregate(self, rows: Tensor, weights: Tensor) -> Tensor:
        products, w = gram(rows), weights.to(torch.float64)
        squares, coefficients = products.diagonal(), w / w.sum()
        for _ in range(self.iterations):
            with_z = products @ coefficients
            distances = (squares - 2 * with_z + coefficients @ with_z).clamp(min=0).sqrt()
            b = w / torch.maximum(distances, self.smoothing * distances.median() + 1e-150)
            coefficients = b / b.sum()
        return coefficients.to(rows.dtype) @ rows
