"""Uniform selection."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from ..rng import choose
from ..validate import check, count, one_of
from .selector import Selector, View, equal, proportional


@dataclass(frozen=True, kw_only=True)
class Uniform(Selector):
    """m of N clients, uniformly without replacement (UCS; FedMoS eq. (28)).

    Weights: "unbiased" (N/m) p_i, which sum to one on average only; "cohort" p_i/Σ_S p; "mean" 1/m.
    """

    foreseeable = True

    m: int
    weights: Literal["unbiased", "cohort", "mean"] = "unbiased"

    def __post_init__(self) -> None:
        check(self, m=count, weights=one_of("unbiased", "cohort", "mean"))

    def select(self, view: View) -> tuple[Tensor, Tensor]:
        m = min(self.m, view.N)
        ids = choose(view.key, view.N, m)
        match self.weights:
            case "unbiased":
                return ids, view.p[ids] * (view.N / m)
            case "cohort":
                return ids, proportional(view.p, ids)
            case _:
                return ids, equal(m)
