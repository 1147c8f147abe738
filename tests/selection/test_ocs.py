"""Optimal client sampling."""

from __future__ import annotations

import itertools
import math
from collections import Counter

import numpy as np
import pytest
import torch
from scipy.optimize import minimize

import fedmos as fm
from helpers.selection import P6, RARE, surprise, tensor, view_of

NORMS = {
    "unequal": (1.0, 0.5, 3.0, 2.0, 0.2, 7.0),
    "one dominates": (1.0, 1.0, 1.0, 1.0, 1.0, 100.0),
    "equal": (2.0,) * 6,
    "ties": (1.0, 1.0, 4.0, 4.0, 4.0, 9.0),
    "some zero": (0.0, 2.0, 0.0, 1.0, 5.0, 0.0),
}


def variance(q, u) -> float:
    """Σ (1/q − 1) u²: the variance of Σ u_i/q_i over independent inclusions."""
    return sum((1 / a - 1) * b**2 for a, b in zip(q, u, strict=True) if b > 0)


@pytest.mark.parametrize("m", [1, 2, 3, 5])
@pytest.mark.parametrize("name", NORMS)
def test_probabilities_are_optimal(name, m):
    """No probabilities with a sum of m have a smaller variance: held against a numerical minimiser."""
    u = np.array(NORMS[name])
    q = fm.OCS(m=m).probabilities(tensor(u))
    assert float(q.sum()) <= m + 1e-12
    assert bool(((q >= 0) & (q <= 1)).all())
    found = minimize(
        lambda v: variance(v, u),
        np.full(6, m / 6),
        jac=lambda v: -(u**2) / v**2,
        bounds=[(1e-6, 1)] * 6,
        constraints={"type": "ineq", "fun": lambda v: m - v.sum(), "jac": lambda v: -np.ones(6)},
        options={"maxiter": 500, "ftol": 1e-14},
    )
    assert variance(q.tolist(), u) <= found.fun * (1 + 1e-5) + 1e-5
    if (u > 0).sum() >= m:
        assert float(q.sum()) == pytest.approx(m)


def test_probabilities_by_hand():
    """m=3 of 4, u = 1, 1, 2, 8: l=2 is the largest with 0 < l−1 ≤ Σ_{i≤l} u_i/u_l."""
    assert fm.OCS(m=3).probabilities(tensor([8, 1, 2, 1])).tolist() == [1.0, 0.5, 1.0, 0.5]
    assert fm.OCS(m=2).probabilities(tensor([3, 1])).tolist() == [1.0, 1.0]
    assert fm.OCS(m=5).probabilities(tensor([3, 0])).tolist() == [1.0, 1.0]
    assert fm.OCS(m=1).probabilities(tensor([3, 1])).tolist() == [0.75, 0.25]
    assert fm.OCS(m=1).probabilities(tensor([0, 0, 0])).tolist() == [0.0, 0.0, 0.0]


@pytest.mark.parametrize("m", [1, 2, 3, 5])
@pytest.mark.parametrize("name", NORMS)
def test_the_approximation_converges_to_the_optimum(name, m):
    """Algorithm 2 scales probabilities below one up to the sum m; with enough iterations it finds Algorithm 1's."""
    u = tensor(NORMS[name])
    exact = fm.OCS(m=m).probabilities(u)
    torch.testing.assert_close(fm.OCS(m=m, method="approximate", iterations=10).probabilities(u), exact)
    first = fm.OCS(m=m, method="approximate", iterations=1).probabilities(u)
    assert float(first.sum()) <= m + 1e-12


def thinned(selector: fm.OCS, norms, t: int, p=P6) -> tuple[list[int], list[float]]:
    view = view_of(p)
    view.round = t
    ids, weights = selector.select(view)
    order = ids.argsort()
    view.cohort, view.weights = ids[order], weights[order]
    chosen, weights = selector.thin(view, {"update_norm": tensor(norms)[view.cohort]})
    return chosen.tolist(), weights.tolist()


@pytest.mark.parametrize("method", ["exact", "approximate"])
def test_law_of_the_uploads(method):
    """Clients upload independently, with weight p_i/q_i: every subset has its probability."""
    selector, norms = fm.OCS(m=2, method=method), (1.0, 0.5, 3.0, 2.0, 0.2, 7.0)
    q = selector.probabilities(tensor(P6) * tensor(norms)).tolist()
    counts: Counter = Counter()
    for t in range(1000):
        ids, weights = thinned(selector, norms, t)
        assert weights == pytest.approx([P6[i] / q[i] for i in ids])
        counts[frozenset(ids)] += 1
    law = {
        frozenset(s): math.prod(q[i] if i in s else 1 - q[i] for i in range(6))
        for k in range(7)
        for s in itertools.combinations(range(6), k)
    }
    assert surprise(counts, {s: v for s, v in law.items() if v > 0}) > RARE


def test_unbiased_with_candidates():
    """d of N train, uniformly, and m of them upload: each client's expected weight is p_i."""
    selector, norms, rounds = fm.OCS(m=2, d=4), (1.0, 0.5, 3.0, 2.0, 0.2, 7.0), 3000
    total, squares = np.zeros(6), np.zeros(6)
    for t in range(rounds):
        ids, weights = thinned(selector, norms, t)
        assert len(set(ids)) == len(ids) <= 4
        total[ids] += weights
        squares[ids] += np.square(weights)
    mean = total / rounds
    error = np.sqrt((squares / rounds - mean**2) / rounds)
    assert (np.abs(mean - P6) <= 4.5 * error).all()


@pytest.mark.parametrize("norms", [(1.0,) * 6, (0.0, 2.0, 0.0, 1.0, 5.0, 0.0)], ids=["equal", "some zero"])
def test_all_upload_where_m_is_everyone(norms):
    ids, weights = thinned(fm.OCS(m=6), norms, 0)
    assert ids == list(range(6))
    assert weights == pytest.approx(P6)


def test_bad_arguments():
    with pytest.raises(ValueError, match=r"^OCS: 'd' must be ≥ 'm' \(3\), got 2$"):
        fm.OCS(m=3, d=2)
    with pytest.raises(ValueError, match=r"^OCS: 'd' must be ≤ the number of clients \(5\), got 6$"):
        fm.OCS(m=3, d=6).validate(5)
    with pytest.raises(ValueError, match=r"^OCS: 'm' must be ≤ the number of clients \(2\), got 3$"):
        fm.OCS(m=3).validate(2)
