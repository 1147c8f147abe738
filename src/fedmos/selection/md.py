"""Multinomial selection."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ..rng import draws
from ..validate import check, count
from .selector import Selector, View


@dataclass(frozen=True, kw_only=True)
class MD(Selector):
    """m independent draws with replacement, client i with probability p_i; weight (times drawn)/m. Unbiased.

    Called `rand` in Power-of-Choice.
    """

    m: int

    def __post_init__(self) -> None:
        check(self, m=count)

    def select(self, view: View) -> tuple[Tensor, Tensor]:
        edges = view.once("MD", lambda: interval_edges(view.p))
        ids = torch.searchsorted(edges, draws(view.key, self.m), right=True)
        return ids, torch.full((self.m,), 1 / self.m, dtype=torch.float64)


def interval_edges(mass: Tensor) -> Tensor:
    """Right ends of consecutive intervals of lengths `mass`, the last but those of length zero open to +∞.

    `searchsorted(edges, u, right=True)` then names the interval that holds u, never an empty one,
    whatever rounding did to the sum.
    """
    edges = mass.cumsum(0)
    edges[int(mass.nonzero()[-1]) :] = torch.inf
    return edges
