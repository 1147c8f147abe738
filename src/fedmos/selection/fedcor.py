"""FedCor: selection by correlated losses."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ..core.validation import check, count, positive, share
from ..rng import choose, fold, normal
from .gaussian_process import fit, greedy
from .selector import Selector, View, equal


@dataclass(frozen=True, kw_only=True)
class FedCor(Selector):
    """FedCor (Tang et al., CVPR 2022), Algorithm 1: clients whose update is expected to reduce the global loss most.

    The changes of the clients' losses in a round are a Gaussian process, Δ ~ N(0, Σ) with Σ = XᵀX + noise² I and a
    position x_i of `dimension` numbers for each client. One after another, the client with the largest
    α_k Σ_i p_i Σ_ik/σ_k is selected, and Σ becomes the posterior given that client, so that correlated clients are not
    selected together. α_k = β^τ_k, where τ_k counts the selections of client k since the last fit. The weights are 1/m.
    Biased.

    In the first `warmup` rounds, and then in every `interval`-th round, the cohort is uniform, and all clients send
    their loss before and after it. X then maximises the marginal likelihood of the last `window` such changes, with a
    factor `gamma` per round of age.

    Args:
        m: Number of clients per round.
        warmup: Number of rounds of the warm-up.
        interval: Rounds from one uniform round after the warm-up to the next, at least 2.
        beta: Factor β of a client's score for each selection since the last fit.
        dimension: Numbers in the position of a client.
        window: Number of observed changes that a fit uses.
        gamma: Factor of a change in the likelihood, per round of age.
        noise: Standard deviation of the noise of a change.
        steps: Steps of Adam (step size 0.01) per fit.

    Deviations:
        The uniform rounds after the warm-up are rounds of the run; the authors' code trains an extra cohort and
        discards its model. The first fit is at the end of the warm-up; theirs is in each of its rounds. The change of a
        round leaves out clients that were unavailable before or after it.

    Example:
        >>> selector = fm.FedCor(m=3, warmup=2)
        >>> result = fm.run(model, data, fm.FedAvg(lr=0.1), selector, rounds=4, local_steps=2, batch_size=8)
        >>> [record.probed > 0 for record in result.history]
        [True, True, True, False]
    """

    selects_singly = False

    m: int
    warmup: int = 15
    interval: int = 10
    beta: float = 0.9
    dimension: int = 15
    window: int = 10
    gamma: float = 0.8
    noise: float = 0.01
    steps: int = 500

    state = ("losses", "asked", "changes", "rounds", "positions", "selected")

    def __post_init__(self) -> None:
        check(
            self,
            m=count,
            warmup=count,
            interval=count,
            beta=share,
            dimension=count.up_to(1000),
            window=count.up_to(1000),
            gamma=share,
            noise=positive,
            steps=count.up_to(10**5),
        )
        if self.interval < 2:
            raise ValueError(f"FedCor: 'interval' must be ≥ 2, got {self.interval}")

    @property
    def asks(self) -> Sequence[str]:
        return ("losses",)

    def select(self, view: View) -> tuple[Tensor, Tensor]:
        t, m = view.round, min(self.m, view.N)
        if self._uniform(t) or self._uniform(t - 1):
            self._ask(view)
        if not self._uniform(t) and self._uniform(t - 1):
            self._fit(view)
        if self._uniform(t) or "positions" not in view.state:
            return choose(view.key, view.N, m), equal(m)
        selected = view.here(view.state["selected"])
        X = view.here(view.state["positions"]).T
        ids = greedy(X, view.p, self.beta ** selected.to(torch.float64), self.noise, m)
        places = ids if view.ids is None else view.ids[ids]
        view.state["selected"] = view.state["selected"].index_add(0, places, torch.ones_like(places))
        return ids, equal(m)

    def _uniform(self, t: int) -> bool:
        """Return whether the cohort of round t is uniform and its change is observed."""
        return 0 <= t < self.warmup or (t > self.warmup and (t - self.warmup) % self.interval == 0)

    def _ask(self, view: View) -> None:
        """Have all clients send their loss, and store its change in the round before."""
        N, t = view.federation or view.N, view.round
        places = torch.arange(N) if view.ids is None else view.ids
        unknown = torch.full((N,), torch.nan, dtype=torch.float64)
        losses = unknown.index_copy(0, places, view.probe(torch.arange(view.N)).to(torch.float64))
        if "asked" in view.state and int(view.state["asked"]) == t - 1 and self._uniform(t - 1):
            change = losses - view.state["losses"]
            change[~change.isfinite()] = torch.nan
            if not bool(change.isnan().all()):
                kept = view.state.get("changes", unknown[None, :][:0])
                rounds = view.state.get("rounds", torch.empty(0, dtype=torch.int64))
                view.state["changes"] = torch.cat([kept, change[None]])[-self.window :]
                view.state["rounds"] = torch.cat([rounds, torch.tensor([t - 1])])[-self.window :]
        view.state["losses"], view.state["asked"] = losses, torch.tensor(t)

    def _fit(self, view: View) -> None:
        """Fit the positions of the clients to the changes that were observed."""
        if "changes" not in view.state:
            return
        N = view.federation or view.N
        X = view.state["positions"].T if "positions" in view.state else self._initial(view, N)
        changes, rounds = view.state["changes"], view.state["rounds"]
        factors = self.gamma ** (rounds.max() - rounds).to(torch.float64)
        view.state["positions"] = fit(X, changes, factors, self.noise, self.steps).T.contiguous()
        view.state["selected"] = torch.zeros(N, dtype=torch.int64)

    def _initial(self, view: View, N: int) -> Tensor:
        """Return normal positions with an expected squared length of one, (dimension, N)."""
        return normal(fold(view.key, -1), self.dimension * N).view(self.dimension, N) / math.sqrt(self.dimension)
