"""FedMoS's adaptive client selection."""

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

    Clients, sorted by importance, fill m bins of total probability one, client i with m p_i in all; one
    client is drawn from each bin. Weight: (times drawn)/m.

    This is stratified sampling. Lay the p_i end to end on [0, 1): bin j is [j/m, (j+1)/m), and its draw
    is the client whose interval holds a point uniform there. One sort, then O(m log N) a round.
    """

    prefetchable = True

    m: int

    def __post_init__(self) -> None:
        check(self, m=count)

    def select(self, view: View) -> tuple[Tensor, Tensor]:
        return self._drawn(view, view.key), equal(self.m)

    def select_ahead(self, view: View, rounds: range) -> tuple[Tensor, Tensor]:
        ids = self._drawn(view, view.keys(rounds))
        return ids, equal(self.m).expand_as(ids)

    def _drawn(self, view: View, key: Tensor) -> Tensor:
        intervals = view.once("by p, sorted", lambda: Intervals(view.p, by_importance(view.p)))
        return one_per_bin(key, intervals, self.m)

    def bins(self, p: Tensor) -> Tensor:
        """The probabilities p_{i,j}, (N, m), of drawing client i from bin j."""
        p = torch.as_tensor(p, dtype=torch.float64)
        return bins_of(p, by_importance(p), self.m)


def by_importance(p: Tensor) -> Tensor:
    """Clients by descending importance, equals by number; as small integers, for there may be very many."""
    order = p.argsort(descending=True, stable=True)
    return order.to(torch.int32) if len(p) < 2**31 else order


def one_per_bin(key: Tensor, intervals: Intervals, m: int) -> Tensor:
    """The client at a uniform point of each of m equal bins."""
    u = (torch.arange(m) + draws(key, m)) / m
    return intervals.locate(u * intervals.total)


def bins_of(p: Tensor, order: Tensor, m: int) -> Tensor:
    """How much of each client's m p_i lies in each bin, when laid end to end in that order."""
    order = order.long()
    right = (m * p[order]).cumsum(0)
    right[-1] = m
    left = torch.cat([torch.zeros(1, dtype=torch.float64), right[:-1]])
    j = torch.arange(m, dtype=torch.float64)
    overlap = torch.minimum(right[:, None], j + 1) - torch.maximum(left[:, None], j)
    result = torch.zeros(len(p), m, dtype=torch.float64)
    result[order] = overlap.clamp(min=0)
    return result
