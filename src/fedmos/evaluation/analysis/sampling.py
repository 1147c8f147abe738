"""What selection does to an average: its variance, and Power-of-Choice's measures of bias."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import torch
from torch import Tensor

from ...data.synthetic import Quadratic
from ...selection import ACS, MD, Full, Uniform
from ...selection.selector import Selector, View


@dataclass(frozen=True, kw_only=True)
class Sampling:
    """Mean and variance of each client's aggregation weight in one round."""

    mean: Tensor
    variance: Tensor
    exact: bool
    """Closed form, or estimated from draws."""

    @property
    def total(self) -> float:
        """Σ_i var(w_i)."""
        return float(self.variance.sum())


def sampling_variance(
    selector: Selector,
    p: Tensor,
    n: Tensor | None = None,
    losses: Tensor | None = None,
    draws: int = 10_000,
    seed: int = 0,
) -> Sampling:
    """Mean and variance of the weights that `selector` gives to clients of importances p.

    Closed form for Uniform (unbiased), MD, ACS and Full (FedMoS eqs. (25)–(28)); for others, and for
    selectors that ask for `losses`, estimated from so many draws.
    """
    p = torch.as_tensor(p, dtype=torch.float64)
    known = _closed_form(selector, p)
    if known is not None:
        return known
    weights = draw_weights(selector, p, n, losses, draws, seed)
    return Sampling(mean=weights.mean(0), variance=weights.var(0), exact=False)


def _closed_form(selector: Selector, p: Tensor) -> Sampling | None:
    N = len(p)
    match selector:
        case Full():
            return Sampling(mean=p, variance=torch.zeros(N, dtype=torch.float64), exact=True)
        case MD(m=m):
            return Sampling(mean=p, variance=p * (1 - p) / m, exact=True)
        case ACS(m=m):
            return Sampling(mean=p, variance=p / m - (selector.bins(p) ** 2).sum(1) / m**2, exact=True)
        case Uniform(m=m, weights="unbiased"):
            return Sampling(mean=p, variance=(N / m - 1) * p**2, exact=True)
        case _:
            return None


def draw_weights(
    selector: Selector, p: Tensor, n: Tensor | None, losses: Tensor | None, draws: int, seed: int = 0
) -> Tensor:
    """(draws, N): the weights of so many rounds, all at one model with the given local losses."""
    N = len(p)
    weights = torch.zeros(draws, N, dtype=torch.float64)
    unknown = torch.full((N,), torch.nan, dtype=torch.float64)
    view = View(
        seed=seed,
        round=0,
        p=p,
        n=torch.ones(N, dtype=torch.int64) if n is None else n,
        reported=dict.fromkeys(selector.reports, unknown if losses is None else losses),
        last=torch.full((N,), -1 if losses is None else 0),
        picks=torch.zeros(N, dtype=torch.int64),
    )
    if losses is not None:
        view.ask_losses = lambda ids, batch: losses[ids]
    for view.round in range(draws):
        ids, w = selector.select(view)
        weights[view.round].index_add_(0, ids, w)
    return weights


def selection_skew(
    selector: Selector,
    p: Tensor,
    losses: Tensor,
    losses_at: Tensor | None = None,
    best: Tensor | float = 0.0,
    draws: int = 10_000,
    seed: int = 0,
) -> float | Tensor:
    """ρ(S(π, w), w′) = E[Σ_S w_k (F_k(w′) − F_k*)] / Σ p_k (F_k(w′) − F_k*) (Power-of-Choice, eq. (5)).

    `losses` are F_k(w), by which clients are chosen, `losses_at` F_k(w′), by default the same, or a row of
    them for each of several points; `best` is F_k*. One for unbiased selection; larger where clients with
    high loss are preferred.
    """
    p = torch.as_tensor(p, dtype=torch.float64)
    known = _closed_form(selector, p)
    weights = draw_weights(selector, p, None, losses, draws, seed).mean(0) if known is None else known.mean
    excess = (losses if losses_at is None else losses_at) - best
    skew: Tensor = (excess @ weights) / (excess @ p)
    return float(skew) if skew.ndim == 0 else skew


@dataclass(frozen=True, kw_only=True)
class SkewBounds:
    """The two numbers that Power-of-Choice's bound depends on."""

    rho: float
    """ρ = min over w, w′ of ρ(S(π, w), w′): how much faster."""
    rho_tilde: float
    """ρ̃ = max over w of ρ(S(π, w), w*): how biased, relative to ρ."""

    @property
    def bias(self) -> float:
        return self.rho_tilde / self.rho


def skew_bounds(
    selector: Selector, problem: Quadratic, points: int = 3, radius: float = 2.0, draws: int = 2_000, seed: int = 0
) -> SkewBounds:
    """ρ and ρ̃ of a quadratic problem, by search over a grid around its optimum (Power-of-Choice, Appendix F).

    The grid has `points` values in each dimension, up to `radius` times the largest distance of a client's own
    optimum away.
    """
    optimum = problem.optimum
    reach = radius * float((problem.e / problem.h[:, None] - optimum).abs().max())
    steps = torch.linspace(-reach, reach, points, dtype=torch.float64).tolist()
    grid = optimum + torch.tensor(list(itertools.product(steps, repeat=len(optimum))), dtype=torch.float64)
    losses = problem.losses(grid)
    at_optimum = problem.losses(optimum)
    rho, rho_tilde = float("inf"), 0.0
    for here in losses:
        skew = selection_skew(selector, problem.p, here, torch.cat([losses, at_optimum[None]]), draws=draws, seed=seed)
        assert isinstance(skew, Tensor)
        rho, rho_tilde = min(rho, float(skew.min())), max(rho_tilde, float(skew[-1]))
    return SkewBounds(rho=rho, rho_tilde=rho_tilde)
