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

    A client that took part before has the utility n_k √(mean squared sample loss), clipped at a quantile and
    scaled to [0, 1] over these clients, plus √(0.1 ln t / t_k), with t_k its last round. If its last round took
    longer than T, the utility is multiplied by (T/duration)^α. A fraction ε of the cohort is drawn uniformly from
    the clients that never took part; the rest is drawn ∝ utility from the clients whose utility is at least
    `cutoff` times that of the last client among the best. The weights are p_i/Σ_S p.

    Args:
        m: Number of clients per round.
        exploration: Initial value of ε.
        decay: Factor of ε per round.
        exploration_min: Lower bound of ε.
        alpha: Exponent α of the penalty for slow clients.
        cutoff: Fraction of the lowest selected utility from which on clients are eligible.
        clip: Quantile at which utilities are clipped.
        pace: Quantile of the known durations that defines T.
        blacklist: Exclude clients that took part in more than this number of rounds, if enough others remain.

    Deviations:
        Losses are those at the model that a client received. Exploration is uniform (the authors' code prefers
        large, fast clients). T is a fixed quantile; the pacer that adapts it is not implemented.
        Durations are known only in runs with a simulated clock (`fm.run(..., system=...)`).

    Example:
        >>> selector = fm.Oort(m=3, exploration=0.5)
        >>> result = fm.run(model, data, fm.FedAvg(lr=0.1), selector, rounds=2, local_steps=2, batch_size=8)
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
        """Return the utility of each client, (N,); −∞ for clients that never took part."""
        assert view.last is not None
        raw = view.n * view.reported["start_squared_loss"].sqrt()
        seen = ~raw.isnan()
        if not bool(seen.any()):
            return torch.full_like(raw, -math.inf)
        raw = raw.clamp(max=float(raw[seen].quantile(self.clip)))
        low, high = float(raw[seen].min()), float(raw[seen].max())
        t = view.round + 1  # the logarithm needs rounds from 1
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
        exploit = min(m - explore, int(seen.sum()))  # exploit more if too few clients are left to explore

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
