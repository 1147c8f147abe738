"""The adaptive client selection of FedMoS."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ..core.validation import check, count
from ..rng import draws
from .draws import Intervals
from .selector import Selector, View, equal


@dataclass(frozen=True, kw_only=True)
class ACS(Selector):
    """Adaptive client selection (FedMoS, Algorithm 2): unbiased, with less variance than MD.

    Clients, sorted by importance, fill m bins of total probability one each, client i with m p_i in all; one
    client is drawn from each bin. The weight of a client is (times drawn)/m.

    This is stratified sampling. Lay the p_i end to end on [0, 1): bin j is [j/m, (j+1)/m), and its draw
    is the client whose interval contains a uniform point of the bin. It costs one sort, then O(m log N) per round.

    Args:
        m: Number of draws per round.

    Example:
        >>> fm.ACS(m=2).bins(torch.tensor([0.5, 0.25, 0.25]))
        tensor([[1.0000, 0.0000],
                [0.0000, 0.5000],
                [0.0000, 0.5000]], dtype=torch.float64)
        >>> result = fm.run(model, data, fm.FedMoS(lr=0.1), fm.ACS(m=3), rounds=2, local_steps=2, batch_size=8)
    """

    prefetchable = True

    m: int

    def __post_init__(self) -> None:
        check(self, m=count)

    def select(self, view: View) -> tuple[Tensor, Tensor]:
        return self._draw(view, view.key), equal(self.m)

    def select_ahead(self, view: View, rounds: range) -> tuple[Tensor, Tensor]:
        ids = self._draw(view, view.keys(rounds))
        return ids, equal(self.m).expand_as(ids)

    def _draw(self, view: View, key: Tensor) -> Tensor:
        intervals = view.once("by p, sorted", lambda: Intervals(view.p, by_importance(view.p)))
        return one_per_bin(key, intervals, self.m)

    def bins(self, p: Tensor) -> Tensor:
        """Return the probabilities p_{i,j}, (N, m), of drawing client i from bin j.

        Args:
            p: Importances of the clients, with sum one.
        """
        p = torch.as_tensor(p, dtype=torch.float64)
        return bins_of(p, by_importance(p), self.m)


def by_importance(p: Tensor) -> Tensor:
    """Return the clients by descending importance, ties by number; int32 if possible, to save memory."""
    order = p.argsort(descending=True, stable=True)
    return order.to(torch.int32) if len(p) < 2**31 else order


def one_per_bin(key: Tensor, intervals: Intervals, m: int) -> Tensor:
    """Return the client at a uniform point of each of m equal bins."""
    u = (torch.arange(m) + draws(key, m)) / m
    return intervals.locate(u * intervals.total)


def bins_of(p: Tensor, order: Tensor, m: int) -> Tensor:
    """Return how much of each client's m p_i is in each bin if the clients fill the bins in `order`."""
    order = order.long()
    right = (m * p[order]).cumsum(0)
    right[-1] = m
    left = torch.cat([torch.zeros(1, dtype=torch.float64), right[:-1]])
    j = torch.arange(m, dtype=torch.float64)
    overlap = torch.minimum(right[:, None], j + 1) - torch.maximum(left[:, None], j)
    result = torch.zeros(len(p), m, dtype=torch.float64)
    result[order] = overlap.clamp(min=0)
    return result
