"""FedMoS's adaptive client selection."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ..rng import draws
from ..validate import check, count
from .md import interval_edges
from .selector import Selector, View


@dataclass(frozen=True, kw_only=True)
class ACS(Selector):
    """Adaptive client selection (FedMoS, Algorithm 2): unbiased, with less variance than MD.

    Clients, sorted by importance, fill m bins of total probability one, client i with m p_i in all; one
    client is drawn from each bin. Weight: (times drawn)/m.

    This is stratified sampling. Lay the m p_i end to end on [0, m): bin j is [j, j+1), and its draw is
    the client whose interval holds a point uniform there. One sort, then O(m log N) a round.
    """

    m: int

    def __post_init__(self) -> None:
        check(self, m=count)

    def select(self, view: View) -> tuple[Tensor, Tensor]:
        order, edges = view.once("ACS", lambda: self._layout(view.p))
        u = torch.arange(self.m) + draws(view.key, self.m)
        ids = order[torch.searchsorted(edges, u, right=True)]
        return ids, torch.full((self.m,), 1 / self.m, dtype=torch.float64)

    def bins(self, p: Tensor) -> Tensor:
        """The probabilities p_{i,j}, (N, m), of drawing client i from bin j."""
        p = torch.as_tensor(p, dtype=torch.float64)
        order, _ = self._layout(p)
        right = (self.m * p[order]).cumsum(0)
        right[-1] = self.m
        left = torch.cat([torch.zeros(1, dtype=torch.float64), right[:-1]])
        j = torch.arange(self.m, dtype=torch.float64)
        overlap = torch.minimum(right[:, None], j + 1) - torch.maximum(left[:, None], j)
        result = torch.zeros(len(p), self.m, dtype=torch.float64)
        result[order] = overlap.clamp(min=0)
        return result

    def _layout(self, p: Tensor) -> tuple[Tensor, Tensor]:
        order = p.argsort(descending=True, stable=True)
        return order, interval_edges(self.m * p[order])
