"""FedCor."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scipy.stats import multivariate_normal

import fedmos as fm
from fedmos.selection.gaussian_process import fit, greedy, log_likelihood
from helpers.selection import NAN, P6, RARE, chosen_sets, surprise, tensor, view_of

G = torch.Generator().manual_seed(2)
X = torch.randn(3, 6, generator=G, dtype=torch.float64)


def test_likelihood():
    """Held against SciPy's density of the whole covariance."""
    rows = torch.randn(4, 6, generator=G, dtype=torch.float64)
    covariance = X.T @ X + 0.3**2 * torch.eye(6, dtype=torch.float64)
    expected = multivariate_normal(np.zeros(6), covariance.numpy()).logpdf(rows.numpy()) + 3 * math.log(2 * math.pi)
    np.testing.assert_allclose(log_likelihood(X, rows, 0.3), expected, rtol=1e-10)


@pytest.mark.parametrize("m", [1, 3, 6])
def test_greedy_choice(m):
    """Held against the paper's rule with the whole covariance, conditioned after each choice."""
    alpha, p, noise = tensor([1, 0.9, 1, 0.81, 1, 0.5]), tensor(P6), 0.2
    sigma = X.T @ X + noise**2 * torch.eye(6, dtype=torch.float64)
    free, expected = list(range(6)), []
    for _ in range(m):
        k = max(free, key=lambda k: float(alpha[k] * (p @ sigma[:, k]) / sigma[k, k].sqrt()))
        expected.append(k)
        free.remove(k)
        sigma = sigma - sigma[:, [k]] @ sigma[[k]] / sigma[k, k]
    assert greedy(X, p, alpha, noise, m).tolist() == expected


def test_fit_finds_correlated_groups():
    """Changes of {0, 1, 2} move together, as do those of {3, 4, 5}: so do the fitted covariances."""
    common = torch.randn(40, 2, generator=G, dtype=torch.float64)
    changes = common.repeat_interleave(3, dim=1) + 0.05 * torch.randn(40, 6, generator=G, dtype=torch.float64)
    changes[::5, 1] = torch.nan  # a client that was not there
    start = torch.randn(15, 6, generator=G, dtype=torch.float64) / 15**0.5
    factors = torch.ones(40, dtype=torch.float64)
    found = fit(start, changes, factors, 0.1, 500)
    covariance = found.T @ found
    scale = covariance.diagonal().sqrt()
    correlation = covariance / scale[:, None] / scale
    assert bool((correlation[:3, :3] > 0.9).all())
    assert bool((correlation[3:, 3:] > 0.9).all())
    assert bool((correlation[:3, 3:].abs() < 0.5).all())
    chosen = set(greedy(found, tensor(P6), torch.ones(6, dtype=torch.float64), 0.1, 2).tolist())
    assert len(chosen & {0, 1, 2}) == len(chosen & {3, 4, 5}) == 1


class Losses:
    """Losses that clients answer with: a walk with a common part for each half of the clients."""

    def __init__(self, N: int = 6) -> None:
        g = torch.Generator().manual_seed(5)
        steps = torch.randn(60, 2, generator=g, dtype=torch.float64).repeat_interleave(N // 2, dim=1)
        self.values = steps.cumsum(0)
        self.asked: list[int] = []

    def view(self, t: int, state: dict, here: list[int] | None = None) -> fm.View:
        ids = torch.arange(6) if here is None else torch.tensor(here)
        p = tensor(P6)[ids]
        view = fm.View(
            seed=3,
            round=t,
            p=p / p.sum(),
            n=torch.ones(len(ids)),
            ids=None if here is None else ids,
            federation=None if here is None else 6,
            state=state,
        )

        def ask(asked, batch):
            self.asked.append(t)
            assert asked.tolist() == list(range(len(ids)))
            return self.values[t, ids]

        view.ask_losses = ask
        return view


def test_schedule():
    """All clients are asked in the warm-up and one round more, and before and after every later uniform round."""
    selector, losses, state = fm.FedCor(m=2, warmup=3, interval=4, steps=5), Losses(), {}
    for t in range(13):
        ids, weights = selector.select(losses.view(t, state))
        assert weights.tolist() == [0.5, 0.5]
        assert len(set(ids.tolist())) == 2
    assert losses.asked == [0, 1, 2, 3, 7, 8, 11, 12]
    assert state["rounds"].tolist() == [0, 1, 2, 7, 11]
    changes = losses.values[[1, 2, 3, 8, 12]] - losses.values[[0, 1, 2, 7, 11]]
    torch.testing.assert_close(state["changes"], changes)


def test_window():
    selector, losses, state = fm.FedCor(m=2, warmup=5, window=2, steps=1), Losses(), {}
    for t in range(6):
        selector.select(losses.view(t, state))
    assert state["rounds"].tolist() == [3, 4]


def test_warmup_is_uniform():
    """Every pair is equally likely."""
    law = {frozenset({i, j}): 1 / 15 for i in range(6) for j in range(i)}
    view = view_of(P6, losses=[1.0] * 6)
    counts = chosen_sets(fm.FedCor(m=2, warmup=10**6), view, 1000)
    assert surprise(counts, law) > RARE


def test_selects_by_the_fit_and_discounts():
    """After the warm-up: the greedy choice with α = β^(selections since the fit)."""
    selector, losses, state = fm.FedCor(m=2, warmup=6, steps=200, beta=0.5, dimension=4), Losses(), {}
    for t in range(6):
        selector.select(losses.view(t, state))
    selections = torch.zeros(6, dtype=torch.int64)
    for t in range(6, 12):
        ids, _ = selector.select(losses.view(t, state))
        alpha = 0.5 ** selections.to(torch.float64)
        assert ids.tolist() == greedy(state["positions"].T, tensor(P6), alpha, 0.01, 2).tolist()
        selections[ids] += 1
        assert torch.equal(state["selected"], selections)
    assert int((selections > 0).sum()) > 2  # the discount lets others in


def test_absent_clients_are_left_out():
    """A change is known for clients that were there before and after; only those there are selected."""
    selector, losses, state = fm.FedCor(m=2, warmup=3, steps=3), Losses(), {}
    for t, here in enumerate([[0, 1, 2, 3], [1, 2, 3, 4, 5], None, [0, 2, 4, 5]]):
        ids, _ = selector.select(losses.view(t, state, here))
        assert set(ids.tolist()) <= set(range(len(here or range(6))))
    known = [[not math.isnan(v) for v in row] for row in state["changes"].tolist()]
    assert known[0] == [False, True, True, True, False, False]
    assert known[1] == [False, True, True, True, True, True]
    assert known[2] == [True, False, True, False, True, True]


def test_losses_that_are_not_finite_are_left_out():
    selector, losses, state = fm.FedCor(m=2, warmup=2, steps=3), Losses(), {}
    losses.values[1, 3] = NAN
    losses.values[2, 0] = math.inf
    for t in range(4):
        ids, _ = selector.select(losses.view(t, state))
    assert bool(state["positions"].isfinite().all())
    assert len(ids) == 2


def test_all_clients():
    selector, losses, state = fm.FedCor(m=6, warmup=1, steps=3), Losses(), {}
    for t in range(3):
        ids, weights = selector.select(losses.view(t, state))
        assert sorted(ids.tolist()) == list(range(6))
        assert weights.tolist() == [1 / 6] * 6


def test_bad_arguments():
    with pytest.raises(ValueError, match=r"^FedCor: 'interval' must be ≥ 2, got 1$"):
        fm.FedCor(m=2, interval=1)
