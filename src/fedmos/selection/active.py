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

    The value v of a client is √n_k times its mean loss at the model that it received in its last round, or −∞
    before its first round. The ⌊α1 N⌋ lowest values are set to −∞; ⌊(1 − α3) m⌋ clients (at most as many as have
    finite values) are drawn without replacement ∝ exp(α2 v), and the rest uniformly from the others. The weights
    are p_i/Σ_S p.

    Args:
        m: Number of clients per round.
        alpha1: Fraction α1 of clients whose value is ignored.
        alpha2: Factor α2 of the value in the exponent.
        alpha3: Fraction α3 of the cohort that is drawn uniformly.

    Example:
        >>> selector = fm.ActiveFL(m=3)
        >>> result = fm.run(model, data, fm.FedAvg(lr=0.1), selector, rounds=2, local_steps=2, batch_size=8)
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
