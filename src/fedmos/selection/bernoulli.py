"""Independent participation."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ..core.validation import check, share
from ..rng import choose, draws, fold
from .selector import Selector, View, equal


@dataclass(frozen=True, kw_only=True)
class Bernoulli(Selector):
    """Each client with probability `rate`, independently, drawn again while the cohort is empty (FedCM).

    The weights are 1/|S|. If a thousand draws are empty, one client is drawn uniformly; this is the distribution of the
    next non-empty draw, up to a probability of less than rate · N.

    Args:
        rate: Probability that a client takes part in a round.

    Example:
        >>> selector = fm.Bernoulli(rate=0.3)
        >>> result = fm.run(model, data, fm.FedCM(lr=0.1), selector, rounds=2, local_steps=2, batch_size=8)
    """

    prefetchable = True

    rate: float

    def __post_init__(self) -> None:
        check(self, rate=share)

    def select(self, view: View) -> tuple[Tensor, Tensor]:
        for attempt in range(1000):
            ids = (draws(fold(view.key, attempt), view.N) < self.rate).nonzero().flatten()
            if len(ids):
                return ids, equal(len(ids))
        return choose(fold(view.key, -1), view.N, 1), equal(1)


class PoissonSampling(Bernoulli):
    """As `Bernoulli`, but a cohort may be empty, and the weights are 1/(rate · N): the sampling that privacy needs."""

    prefetchable = True
    may_be_empty = True

    def select(self, view: View) -> tuple[Tensor, Tensor]:
        ids = (draws(fold(view.key, 0), view.N) < self.rate).nonzero().flatten()
        size = self.rate * (view.federation or view.N)
        return ids, torch.full((len(ids),), 1 / size, dtype=torch.float64)
