"""Client selection as a bandit."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from ..core.validation import check, count, non_negative, none, share
from .draws import largest
from .selector import Selector, View, equal


@dataclass(frozen=True, kw_only=True)
class UCB(Selector):
    """UCB-CS (Cho et al., 2020): a discounted bandit that prefers clients with high training loss.

    The m clients with the largest index

        A_k = p_k (L_k/N_k + √(2 σ² ln T/N_k)),
        L_k = Σ γ^(t−1−s) loss_k(s),  N_k = Σ γ^(t−1−s),  T = Σ_{s<t} γ^(t−1−s),

    where L and N sum over the rounds s in which the client took part, and loss_k(s) is the mean training loss that it
    reported. Clients without a report come first; ties are broken at random. The weights are 1/m. Biased.

    Args:
        m: Number of clients per round.
        gamma: Discount factor γ of earlier rounds.
        sigma: The scale σ of the confidence bound. By default the standard deviation of the last losses over clients.

    Deviations:
        The default of σ; the paper uses the largest standard deviation of a client's loss over its local steps, which
        would be one more number to report.

    Example:
        >>> selector = fm.UCB(m=3)
        >>> result = fm.run(model, data, fm.FedAvg(lr=0.1), selector, rounds=4, local_steps=2, batch_size=8)
        >>> len({i for record in result.history for i in record.cohort})  # in four rounds, everyone
        10
    """

    m: int
    gamma: float = 0.7
    sigma: float | None = None

    reports = ("loss",)
    state = ("sum", "count", "at")

    def __post_init__(self) -> None:
        check(self, m=count, gamma=share, sigma=non_negative | none)

    def select(self, view: View) -> tuple[Tensor, Tensor]:
        self._count_reports(view)
        index = self.index(view)
        chosen = largest(view.key, index, min(self.m, view.N))
        return chosen, equal(len(chosen))

    def index(self, view: View) -> Tensor:
        """Return the index A of the available clients, (N,); ∞ for clients without a report.

        Args:
            view: The round, with the state of the selector.
        """
        total, number, at = (view.here(view.state[name]) for name in self.state)
        seen = number > 0
        if not bool((seen & view.reported["loss"].isfinite()).any()):
            return torch.full((view.N,), math.inf, dtype=torch.float64)
        mean = total / number
        sigma = self.sigma
        if sigma is None:
            losses = view.reported["loss"][seen]
            sigma = float(losses[losses.isfinite()].std(correction=0))
        N = self.gamma ** (view.round - 1 - at).to(torch.float64) * number
        t = view.round
        T = t if self.gamma == 1 else (1 - self.gamma**t) / (1 - self.gamma)
        bound = (2 * sigma**2 * max(math.log(T), 0.0) / N).sqrt()
        return torch.where(seen, view.p * (mean + bound), math.inf)

    def _count_reports(self, view: View) -> None:
        """Add the reports that have arrived since a client was last counted. Sums are discounted to round `at`."""
        N = view.federation or view.N
        if not view.state:
            view.state["sum"] = torch.zeros(N, dtype=torch.float64)
            view.state["count"] = torch.zeros(N, dtype=torch.float64)
            view.state["at"] = torch.full((N,), -1)
        places = torch.arange(N) if view.ids is None else view.ids
        total, number, at = (view.here(view.state[name]) for name in self.state)
        loss = view.reported["loss"]
        assert view.last is not None
        new = (view.last > at) & loss.isfinite()
        fade = torch.where(new, self.gamma ** (view.last - at).to(torch.float64), 1.0)
        for name, old, gained in (("sum", total, loss), ("count", number, torch.ones_like(loss))):
            value = fade * old + torch.where(new, gained, 0.0)
            view.state[name] = view.state[name].index_copy(0, places, value)
        view.state["at"] = view.state["at"].index_copy(0, places, torch.where(new, view.last, at))
