"""Active federated learning."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from ..core.rounding import floor_of
from ..core.validation import check, count, fraction, positive
from ..rng import choose, fold
from .draws import gumbel_top
from .selector import Selector, View, proportional


@dataclass(frozen=True, kw_only=True)
class ActiveFL(Selector):
    """Active federated learning (Goetz et al., 2019), called `afl` in Power-of-Choice.

    A client's value is √n_k times its mean loss at the model it received when it last took part, −∞ if it
    never did. The ⌊α1 N⌋ lowest values are set to −∞; ⌊(1 − α3) m⌋ clients are drawn without replacement
    ∝ exp(α2 v), as many as have finite values, and the rest uniformly from the others. Weights p_i/Σ_S p.

    Symbols: α1 = `alpha1`, α2 = `alpha2`, α3 = `alpha3`.
    """

    m: int
    alpha1: float = 0.75
    alpha2: float = 0.01
    alpha3: float = 0.1

    reports = ("start_loss",)

    def __post_init__(self) -> None:
        check(self, m=count, alpha1=fraction, alpha2=positive, alpha3=fraction)

    def select(self, view: View) -> tuple[Tensor, Tensor]:
        m = min(self.m, view.N)
        value = (view.n.sqrt() * view.reported["start_loss"]).nan_to_num(nan=-math.inf)
        value[value.argsort(stable=True)[: floor_of(self.alpha1, view.N)]] = -math.inf
        by_value = min(floor_of(1 - self.alpha3, m), int(value.isfinite().sum()))
        valued = gumbel_top(view.key, self.alpha2 * value, by_value)
        others = torch.ones(view.N, dtype=torch.bool)
        others[valued] = False
        others_ids = others.nonzero().flatten()
        ids = torch.cat([valued, others_ids[choose(fold(view.key, -1), len(others_ids), m - by_value)]])
        return ids, proportional(view.p, ids)
