"""Multinomial selection."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from ..core.validation import check, count
from ..rng import draws
from .draws import Intervals
from .selector import Selector, View, equal


@dataclass(frozen=True, kw_only=True)
class MD(Selector):
    """m independent draws with replacement, client i with probability p_i; weight (times drawn)/m. Unbiased.

    Power-of-Choice calls it `rand`.

    Args:
        m: Number of draws per round.

    Example:
        >>> result = fm.run(model, data, fm.FedAvg(lr=0.1), fm.MD(m=3), rounds=2, local_steps=2, batch_size=8)
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
        intervals = view.once("by p", lambda: Intervals(view.p))
        return intervals.locate(draws(key, self.m) * intervals.total)
