"""Oort: guided participant selection."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from ..core.rounding import floor_of
from ..core.validation import below_one, check, count, fraction, non_negative, none, share
from ..rng import choose, fold
from .draws import gumbel_top
from .selector import Selector, View, proportional


@dataclass(frozen=True, kw_only=True)
class Oort(Selector):
    """Oort's training selector (Lai et al., OSDI 2021), Algorithm 1.

    A client that took part has the utility n_k √(mean squared sample loss), cut at the `clip` quantile and
    scaled to [0, 1] over the clients seen, plus √(0.1 ln t / t_k) with t_k the round it last took part in; if it
    took longer than T, times (T/its duration)^`alpha`, with T the `pace` quantile of the durations known.
    A share ε of the cohort explores clients never seen, at random; the rest is drawn ∝ utility from those
    whose utility is at least `cutoff` of the last one that would make the cut. ε starts at `exploration` and
    decays by `decay` a round down to `exploration_min`. Clients that took part in more than `blacklist` rounds are
    left out while others remain. Weights p_i/Σ_S p.

    Deviations:
        Losses are those at the model a client received. Exploration is uniform (the authors' code prefers
        large, fast clients among the unseen). T is a fixed quantile; the pacer that moves it is left out.
        Durations are known in runs with a simulated clock only (`fm.run(..., system=...)`).
    """

    m: int
    exploration: float = 0.9
    decay: float = 0.98
    exploration_min: float = 0.2
    alpha: float = 2.0
    cutoff: float = 0.95
    clip: float = 0.95
    pace: float = 0.3
    blacklist: int | None = None

    reports = ("start_squared_loss",)

    def __post_init__(self) -> None:
        check(
            self,
            m=count,
            exploration=fraction,
            decay=share,
            exploration_min=below_one,
            alpha=non_negative,
            cutoff=share,
            clip=share,
            pace=share,
            blacklist=count | none,
        )

    def utility(self, view: View) -> Tensor:
        """(N,): −∞ for clients never seen."""
        assert view.last is not None
        raw = view.n * view.reported["start_squared_loss"].sqrt()
        seen = ~raw.isnan()
        if not bool(seen.any()):
            return torch.full_like(raw, -math.inf)
        raw = raw.clamp(max=float(raw[seen].quantile(self.clip)))
        low, high = float(raw[seen].min()), float(raw[seen].max())
        t = view.round + 1  # rounds from 1, for the logarithm
        utility = (raw - low) / max(high - low, 1e-4) + (0.1 * math.log(t) / (view.last + 1.0)).sqrt()
        if view.durations is not None and bool((known := ~view.durations.isnan()).any()):
            T = float(view.durations[known].quantile(self.pace))
            slow = known & (view.durations > T)
            utility = torch.where(slow, utility * (T / view.durations) ** self.alpha, utility)
        return torch.where(seen, utility, -math.inf)

    def select(self, view: View) -> tuple[Tensor, Tensor]:
        assert view.picks is not None
        m = min(self.m, view.N)
        utility = self.utility(view)
        usable = torch.ones(view.N, dtype=torch.bool)
        if self.blacklist is not None and int((view.picks <= self.blacklist).sum()) >= m:
            usable = view.picks <= self.blacklist
        seen, unseen = usable & utility.isfinite(), usable & ~utility.isfinite()
        epsilon = max(self.exploration * self.decay**view.round, self.exploration_min)
        exploit = min(floor_of(1 - epsilon, m), int(seen.sum()))
        explore = min(m - exploit, int(unseen.sum()))
        exploit = min(m - explore, int(seen.sum()))  # nobody left to explore: exploit more

        chosen = []
        if exploit:
            utility = torch.where(seen, utility, -math.inf)
            bar = self.cutoff * float(utility.topk(exploit).values[-1])
            eligible = torch.where(utility >= bar, utility.clamp(min=1e-9), 0.0)
            chosen.append(gumbel_top(view.key, eligible.log(), exploit))
        if explore:
            fresh = unseen.nonzero().flatten()
            chosen.append(fresh[choose(fold(view.key, -1), len(fresh), explore)])
        ids = torch.cat(chosen)
        return ids, proportional(view.p, ids)
