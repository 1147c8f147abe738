"""Independent participation."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from ..core.validation import check, share
from ..rng import choose, draws, fold
from .selector import Selector, View, equal


@dataclass(frozen=True, kw_only=True)
class Bernoulli(Selector):
    """Each client on its own with probability `rate`, drawn again if nobody comes (FedCM); weights 1/|S|.

    Where `rate` is so small that nobody comes in a thousand draws, it is one client, all equally likely: what the next
    draw with anybody in it would be, but for a chance of less than rate · N.
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
