"""Krum and Multi-Krum."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ..core.validation import check, count, whole_number
from .columns import gram
from .mean import weighted_mean
from .rule import Aggregation


@dataclass(frozen=True)
class Krum(Aggregation):
    """Krum and Multi-Krum (Blanchard et al., NeurIPS 2017): the rows that are closest to their neighbours.

    The score of a row is the sum of the squared distances to its S − faulty − 2 nearest others. The result is the
    weighted mean of the `keep` rows of the smallest score. Of equal scores, that of the client with the smaller number
    counts. A round needs S ≥ 2 · faulty + 3 clients.

    Args:
        faulty: The number of hostile clients in a round that the rule tolerates.
        keep: The number of rows that are averaged: 1 for Krum, more for Multi-Krum.

    Raises:
        ValueError: If `faulty` is negative or `keep` is not positive.

    Example:
        >>> rows = torch.tensor([[1.0], [1.1], [1.2], [0.8], [50.0]])
        >>> fm.aggregation.Krum(faulty=1).aggregate(rows, torch.full((5,), 0.2))
        tensor([1.1000])
    """

    faulty: int
    keep: int = 1

    def __post_init__(self) -> None:
        check(self, faulty=whole_number, keep=count)

    @property
    def min_clients(self) -> int:
        return max(2 * self.faulty + 3, self.keep + self.faulty)

    def aggregate(self, rows: Tensor, weights: Tensor) -> Tensor:
        S = len(rows)
        if self.min_clients > S:
            raise ValueError(f"{self} needs at least {self.min_clients} clients in a round, got {S}")
        products = gram(rows)
        squares = products.diagonal()
        distances = (squares[:, None] + squares - 2 * products).nan_to_num(nan=torch.inf)
        distances = distances.clamp(min=0).fill_diagonal_(torch.inf)
        scores = distances.sort(dim=1).values[:, : S - self.faulty - 2].sum(1)
        kept = scores.argsort(stable=True)[: self.keep]
        return rows[kept[0]] if self.keep == 1 else weighted_mean(rows[kept], weights[kept])
