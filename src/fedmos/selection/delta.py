"""DELTA: diverse client sampling."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ..core.validation import check, count, non_negative, positive, share
from ..rng import draws
from .draws import Intervals
from .selector import Selector, View


@dataclass(frozen=True, kw_only=True)
class DELTA(Selector):
    """DELTA (Wang et al., NeurIPS 2023): clients with diverse and noisy gradients are drawn more often. Unbiased.

    m draws with replacement, client i with probability q_i and weight p_i/(m q_i). The probabilities (eq. (11)) are

        q_i ∝ √(α1 ζ_i² + α2 σ_i²),  ζ_i = ‖∇F_i(x) − ∇f(x)‖,  σ_i² the variance of the client's gradients,

    which minimises the bound's variance Σ_i (α1 ζ_i² + α2 σ_i²)/q_i. As in the paper's practical version, q starts
    uniform; after a round, its cohort S divides the sum of its own q anew by ζ and σ of that round, with −δ_i/step for
    ∇F_i and their mean over S for ∇f; the other clients keep theirs. Clients report σ_i² (`gradient_noise`), unless
    α2 = 0.

    Args:
        m: Number of draws per round.
        alpha1: Factor α1 of the diversity; in the paper, 20 K² L η.
        alpha2: Factor α2 of the local variance; in the paper, 5 K L η + η_s/m.
        step: The factor ηK between a gradient and an update of a client, so that both terms have one unit.
        mix: Share of the uniform distribution in the probabilities, which keeps them above zero.

    Deviations:
        The uniform share, without which a client can get the probability zero for ever, and the sum is biased.

    Example:
        >>> selector = fm.DELTA(m=3, step=0.2)
        >>> result = fm.run(model, data, fm.FedAvg(lr=0.1), selector, rounds=2, local_steps=2, batch_size=8)
    """

    selects_singly = False

    m: int
    alpha1: float = 1.0
    alpha2: float = 1.0
    step: float = 1.0
    mix: float = 0.1

    updates = True
    state = ("q", "counted")

    def __post_init__(self) -> None:
        check(self, m=count, alpha1=non_negative, alpha2=non_negative, step=positive, mix=share)

    @property
    def reports(self) -> Sequence[str]:
        return ("gradient_noise",) if self.alpha2 else ()

    def select(self, view: View) -> tuple[Tensor, Tensor]:
        q = self._updated(view)
        q = (1 - self.mix) * q / q.sum() + self.mix / view.N
        intervals = Intervals(q)
        ids = intervals.locate(draws(view.key, self.m) * intervals.total)
        return ids, view.p[ids] / (self.m * q[ids])

    def scores(self, view: View, cohort: Tensor) -> Tensor:
        """Return √(α1 ζ² + α2 σ²) of clients that sent an update, (S,), float64.

        Args:
            view: The round.
            cohort: The clients.
        """
        gradients = torch.stack([view.updates[i] for i in cohort.tolist()]).to(torch.float64) / -self.step
        zeta: Tensor = (gradients - gradients.mean(0)).norm(dim=1)
        squared = self.alpha1 * zeta**2
        if self.alpha2:
            squared = squared + self.alpha2 * view.reported["gradient_noise"][cohort].nan_to_num(nan=0.0)
        return squared.sqrt()

    def _updated(self, view: View) -> Tensor:
        """Return the available clients' q, after the round of the last cohort has been counted in."""
        N = view.federation or view.N
        whole = view.state.get("q", torch.full((N,), 1 / N, dtype=torch.float64)).clone()
        counted = int(view.state.get("counted", torch.tensor(-1)))
        q = view.here(whole).clone()
        assert view.last is not None
        latest = int(view.last.max())
        if latest > counted:
            cohort = (view.last == latest).nonzero().flatten()
            cohort = torch.tensor([i for i in cohort.tolist() if i in view.updates], dtype=torch.int64)
            score = self.scores(view, cohort) if len(cohort) else torch.empty(0)
            if len(cohort) and bool(score.sum() > 0) and bool(score.isfinite().all()):
                q[cohort] = score / score.sum() * q[cohort].sum()
        places = torch.arange(N) if view.ids is None else view.ids
        view.state["q"] = whole.index_copy(0, places, q)
        view.state["counted"] = torch.tensor(max(latest, counted))
        return q
