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

    Called `rand` in Power-of-Choice.
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
        intervals = view.once("by p", lambda: Intervals(view.p))
        return intervals.locate(draws(key, self.m) * intervals.total)
