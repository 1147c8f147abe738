"""Uniform selection."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from ..core.validation import check, count, one_of
from ..rng import choose
from .selector import Selector, View, equal, proportional


@dataclass(frozen=True, kw_only=True)
class Uniform(Selector):
    """m of N clients, uniformly without replacement (UCS; FedMoS eq. (28)).

    Weights: "unbiased" (N/m) p_i, which sum to one on average only; "cohort" p_i/Σ_S p; "mean" 1/m.
    """

    prefetchable = True

    m: int
    weights: Literal["unbiased", "cohort", "mean"] = "unbiased"

    def __post_init__(self) -> None:
        check(self, m=count, weights=one_of("unbiased", "cohort", "mean"))

    def select(self, view: View) -> tuple[Tensor, Tensor]:
        ids, weights = self._drawn(view, view.key[None])
        return ids[0], weights[0]

    def select_ahead(self, view: View, rounds: range) -> tuple[Tensor, Tensor]:
        return self._drawn(view, view.keys(rounds))

    def _drawn(self, view: View, keys: Tensor) -> tuple[Tensor, Tensor]:
        m = min(self.m, view.N)
        ids = choose(keys, view.N, m)
        match self.weights:
            case "unbiased":
                return ids, view.p[ids] * (view.N / m)
            case "cohort":
                return ids, torch.stack([proportional(view.p, row) for row in ids])
            case _:
                return ids, equal(m).expand_as(ids)
