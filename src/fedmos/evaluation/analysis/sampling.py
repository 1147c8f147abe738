"""Effects of client selection on an average: its variance, and Power-of-Choice's measures of bias."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ...core.formatting import format_value
from ...core.validation import Rule, count, positive, require
from ...core.validation import seed as seed_rule
from ...data.synthetic import Quadratic
from ...engine.selected import as_array
from ...selection import ACS, MD, Clustered, Full, Uniform
from ...selection.selector import Selector, View, thins

_ROUNDING = 1e-4
"""By how much the sum of importances, perhaps in float32, may differ from one."""


@dataclass(frozen=True, kw_only=True)
class Sampling:
    """Mean and variance of each client's aggregation weight in one round; see `sampling_variance`.

    Example:
        >>> found = fm.analysis.sampling_variance(fm.Uniform(m=2), torch.full((4,), 0.25))
        >>> found.total, found.exact
        (0.25, True)
    """

    mean: Tensor
    """(N,)."""
    variance: Tensor
    """(N,)."""
    exact: bool
    """Whether the values are a closed form, or else estimated from draws."""

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
    """Return mean and variance of the weights that a selector gives to clients.

    Uniform (unbiased), MD, ACS, Clustered (by size) and Full have a closed form (FedMoS eqs. (25)–(28)). For other
    selectors, the values are estimated from draws.

    Args:
        selector: The selector.
        p: Importances of the clients.
        n: Numbers of samples of the clients (default: one each).
        losses: Local losses, for selectors that request them.
        draws: Number of draws of an estimate, at least 2.
        seed: Seed of the draws.

    Returns:
        A `Sampling`.

    Raises:
        ValueError: If an argument is invalid.

    Example:
        >>> fm.analysis.sampling_variance(fm.Uniform(m=4, weights="unbiased"), torch.full((8,), 1 / 8)).total
        0.125
    """
    owner = "sampling_variance"
    p = _importances(owner, selector, p)
    known, view = _closed_form(selector, p), _view(owner, selector, p, n, losses, seed)
    if known is not None:
        return known
    require(owner, "draws", draws, Rule("an integer ≥ 2", lambda v: count.test(v) and v >= 2))
    weights = _draws(owner, selector, view, draws)
    return Sampling(mean=weights.mean(0), variance=weights.var(0), exact=False)


def _importances(owner: str, selector: Selector, given: Any) -> Tensor:
    """Return valid importances of as many clients as the selector supports, float64."""
    require(owner, "selector", selector, Rule("a fedmos.Selector", lambda v: isinstance(v, Selector)))
    p = _numbers(given)
    if p is None or p.ndim != 1 or not bool((p >= 0).all()):
        got = format_value(given if p is None else p.tolist())
        raise ValueError(f"{owner}: 'p' must hold a number ≥ 0 for each client, got {got}")
    if abs(float(p.sum()) - 1) > _ROUNDING:
        raise ValueError(f"{owner}: 'p' must have the sum one, got {float(p.sum()):g}; use p / p.sum()")
    selector.validate(len(p))
    return p


def _numbers(given: Any, dtype: torch.dtype | None = torch.float64) -> Tensor | None:
    """Return an array-like as a tensor; None if it is no array of numbers."""
    try:
        return torch.as_tensor(given, dtype=dtype)
    except (TypeError, ValueError, RuntimeError, OverflowError):
        return None


def _of_clients(
    owner: str, field: str, given: Any, N: int, *, dtype: torch.dtype | None = torch.float64, also: str = ""
) -> Tensor:
    """Return one number for each of N clients; `also` permits "rows of them" or "one number"."""
    v = _numbers(given, dtype)
    shape = () if v is None else v.shape
    rows, single = also == "rows of them" and len(shape) == 2, also == "one number" and not shape
    if v is None or not (single or (shape[-1:] == (N,) and (rows or len(shape) == 1))):
        permitted = f", or {also}" if also else ""
        raise ValueError(
            f"{owner}: '{field}' must hold a number for each of {N} clients{permitted}, got {format_value(given)}"
        )
    return v


def _closed_form(selector: Selector, p: Tensor) -> Sampling | None:
    """Return the moments of the weights by a formula; None without one. A subclass may draw otherwise."""
    if type(selector) not in (Full, MD, ACS, Clustered, Uniform):
        return None
    N = len(p)
    match selector:
        case Full():
            return Sampling(mean=p, variance=torch.zeros(N, dtype=torch.float64), exact=True)
        case MD(m=m):
            return Sampling(mean=p, variance=p * (1 - p) / m, exact=True)
        case ACS(m=m) | Clustered(m=m, by="size"):
            return Sampling(mean=p, variance=p / m - (selector.bins(p) ** 2).sum(1) / m**2, exact=True)
        case Uniform(m=m, weights="unbiased"):
            return Sampling(mean=p, variance=(N / m - 1) * p**2, exact=True)
        case _:
            return None


def draw_weights(
    selector: Selector, p: Tensor, n: Tensor | None, losses: Tensor | None, draws: int, seed: int = 0
) -> Tensor:
    """Return the weights of so many rounds, (draws, N), all at one model with the given local losses.

    Args:
        selector: The selector.
        p: Importances of the clients.
        n: Numbers of samples of the clients (default: one each).
        losses: Local losses, for selectors that request them.
        draws: Number of rounds.
        seed: Seed of the draws.

    Raises:
        ValueError: If an argument is invalid, or the selector chooses after local training.

    Example:
        >>> fm.analysis.draw_weights(fm.MD(m=5), torch.full((10,), 0.1), None, None, draws=3).sum(1)
        tensor([1., 1., 1.], dtype=torch.float64)
    """
    owner = "draw_weights"
    p = _importances(owner, selector, p)
    return _draws(owner, selector, _view(owner, selector, p, n, losses, seed), draws)


def _draws(owner: str, selector: Selector, view: View, draws: int) -> Tensor:
    """Return the weights of so many rounds, (draws, N)."""
    if thins(selector):
        raise ValueError(
            f"Cannot draw weights with {type(selector).__name__} because it chooses after training; use a run's records"
        )
    require(owner, "draws", draws, count)
    weights = torch.zeros(draws, len(view.p), dtype=torch.float64)
    for view.round in range(draws):
        ids, w = (torch.from_numpy(as_array(v)) for v in selector.select(view))
        weights[view.round].index_add_(0, ids, w.to(torch.float64))
    return weights


def _view(owner: str, selector: Selector, p: Tensor, n: Any, losses: Any, seed: int) -> View:
    """Return what a selector sees of clients with these losses, which it can also ask for."""
    N = len(p)
    require(owner, "seed", seed, seed_rule)
    view = View(
        seed=int(seed),
        round=0,
        p=p,
        n=torch.ones(N, dtype=torch.int64) if n is None else _of_clients(owner, "n", n, N, dtype=None),
        last=torch.full((N,), -1 if losses is None else 0),
        picks=torch.zeros(N, dtype=torch.int64),
    )
    known = torch.full((N,), torch.nan, dtype=torch.float64)
    if losses is not None:
        known = _of_clients(owner, "losses", losses, N)
        view.ask_losses = lambda ids, batch: known[ids]
    view.reported = dict.fromkeys(selector.reports, known)
    return view


def selection_skew(
    selector: Selector,
    p: Tensor,
    losses: Tensor,
    losses_at: Tensor | None = None,
    best: Tensor | float = 0.0,
    draws: int = 10_000,
    seed: int = 0,
) -> float | Tensor:
    """Return ρ(S(π, w), w′) = E[Σ_S w_k (F_k(w′) − F_k*)] / Σ p_k (F_k(w′) − F_k*) (Power-of-Choice, eq. (5)).

    The skew of unbiased selection is one; it is larger if clients with a high loss are preferred.

    Args:
        selector: The selector π.
        p: Importances of the clients.
        losses: F_k(w), by which clients are chosen.
        losses_at: F_k(w′), or a row of them for each of several points w′ (default: `losses`).
        best: F_k*.
        draws: Number of draws, if the selector has no closed form.
        seed: Seed of the draws.

    Returns:
        The skew, or a tensor with the skew at each point of `losses_at`.

    Raises:
        ValueError: If an argument is invalid.

    Example:
        >>> p, losses = torch.full((4,), 0.25), torch.tensor([1.0, 2.0, 3.0, 4.0], dtype=torch.float64)
        >>> fm.analysis.selection_skew(fm.PowerOfChoice(m=1, d=4), p, losses, draws=100)
        1.6
    """
    owner = "selection_skew"
    p = _importances(owner, selector, p)
    N, known = len(p), _closed_form(selector, p)
    view = _view(owner, selector, p, None, _of_clients(owner, "losses", losses, N), seed)
    at = _of_clients(owner, "losses_at", losses if losses_at is None else losses_at, N, also="rows of them")
    excess = at - _of_clients(owner, "best", best, N, also="one number")
    weights = _draws(owner, selector, view, draws).mean(0) if known is None else known.mean
    skew: Tensor = (excess @ weights) / (excess @ p)
    return float(skew) if skew.ndim == 0 else skew


@dataclass(frozen=True, kw_only=True)
class SkewBounds:
    """The two numbers of Power-of-Choice's convergence bound; see `skew_bounds`.

    Example:
        >>> fm.analysis.SkewBounds(rho=2.0, rho_tilde=3.0).bias
        1.5
    """

    rho: float
    """ρ = min over w, w′ of ρ(S(π, w), w′): the speed-up."""
    rho_tilde: float
    """ρ̃ = max over w of ρ(S(π, w), w*): the bias, relative to ρ."""

    @property
    def bias(self) -> float:
        """ρ̃ / ρ."""
        return self.rho_tilde / self.rho


def skew_bounds(
    selector: Selector, problem: Quadratic, points: int = 3, radius: float = 2.0, draws: int = 2_000, seed: int = 0
) -> SkewBounds:
    """Return ρ and ρ̃ of a quadratic problem, by search over a grid around its optimum (Power-of-Choice, Appendix F).

    Args:
        selector: The selector.
        problem: The problem, from `fedmos.data.synthetic.quadratic`.
        points: Values of the grid in each dimension.
        radius: Extent of the grid, relative to the largest distance of a client's optimum from that of the problem.
        draws: Number of draws at each point, if the selector has no closed form.
        seed: Seed of the draws.

    Returns:
        A `SkewBounds`.

    Raises:
        ValueError: If an argument is invalid.

    Example:
        >>> from fedmos.data.synthetic import quadratic
        >>> fm.analysis.skew_bounds(fm.Full(), quadratic(4, 2)).rho
        1.0
    """
    require("skew_bounds", "problem", problem, Rule("a problem of quadratic(…)", lambda v: isinstance(v, Quadratic)))
    require("skew_bounds", "points", points, count)
    require("skew_bounds", "radius", radius, positive)
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
