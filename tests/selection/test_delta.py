"""DELTA."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
import torch
from scipy.optimize import minimize

import fedmos as fm
from helpers.problems import quadratic
from helpers.selection import NAN, P6, RARE, drawn, run, surprise, tensor, view_of

UPDATES = {i: torch.tensor(v) for i, v in {0: [1.0, 0.0], 2: [-1.0, 0.0], 3: [0.0, 3.0], 5: [0.0, -3.0]}.items()}
NOISE = (4.0, NAN, 0.0, 7.0, NAN, 0.0)
LAST = (3, -1, 3, 3, -1, 3)


def seen_view(**more) -> fm.View:
    """Round 4, after a cohort {0, 2, 3, 5} whose updates have mean zero."""
    view = view_of(P6, last=torch.tensor(LAST), updates=UPDATES, **more)
    view.reported = {"gradient_noise": tensor(NOISE)}
    view.round = 4
    return view


def probabilities(selector: fm.DELTA, view: fm.View) -> list[float]:
    """By the paper: the cohort divides the sum of its own q by √(α1 ζ² + α2 σ²); the others keep 1/N."""
    a1, a2, mix = selector.alpha1, selector.alpha2, selector.mix
    score = {0: (a1 * 1 + a2 * 4) ** 0.5, 2: a1**0.5, 3: (a1 * 9 + a2 * 7) ** 0.5, 5: (9 * a1) ** 0.5}
    q = [score.get(i, 0) / sum(score.values()) * 4 / 6 if i in score else 1 / 6 for i in range(6)]
    return [(1 - mix) * v + mix / 6 for v in q]


@pytest.mark.parametrize("alphas", [(1.0, 1.0), (2.0, 0.0), (0.0, 1.0)])
def test_draws_and_weights(alphas):
    """With replacement by q, and weights p_i/(m q_i)."""
    selector = fm.DELTA(m=2, alpha1=alphas[0], alpha2=alphas[1])
    q = probabilities(selector, seen_view())
    counts: Counter = Counter()
    for t in range(4, 1004):
        view = seen_view()
        view.round = t
        ids, weights = selector.select(view)
        assert weights.tolist() == pytest.approx([P6[i] / (2 * q[i]) for i in ids.tolist()])
        counts.update(ids.tolist())
    assert surprise(counts, dict(enumerate(q))) > RARE
    # E Σ weights of client i = m q_i · p_i/(m q_i) = p_i.


def test_unbiased():
    selector, rounds = fm.DELTA(m=3), 2000
    total, squares = np.zeros(6), np.zeros(6)
    for t in range(4, 4 + rounds):
        view = seen_view()
        view.round = t
        row = np.zeros(6)
        ids, weights = selector.select(view)
        np.add.at(row, ids.numpy(), weights.numpy())
        total += row
        squares += row**2
    mean = total / rounds
    assert (np.abs(mean - P6) <= 4.5 * np.sqrt((squares / rounds - mean**2) / rounds)).all()


def test_scores_minimise_the_bound():
    """Eq. (11) minimises Σ (α1 ζ² + α2 σ²)/q over distributions q: held against a numerical minimiser."""
    view, selector = seen_view(), fm.DELTA(m=2, alpha1=0.5, alpha2=2.0)
    s = selector.scores(view, torch.tensor([0, 2, 3, 5])).numpy()
    found = minimize(
        lambda q: (s**2 / q).sum(),
        np.full(4, 0.25),
        jac=lambda q: -(s**2) / q**2,
        bounds=[(1e-6, 1)] * 4,
        constraints={"type": "eq", "fun": lambda q: q.sum() - 1, "jac": lambda q: np.ones(4)},
        options={"maxiter": 500, "ftol": 1e-14},
    )
    np.testing.assert_allclose(found.x, s / s.sum(), atol=1e-4)


def test_step_scales_the_diversity():
    """Updates are −ηK times gradients: with step 2, the diversity is half of the updates'."""
    cohort = torch.tensor([0, 2, 3, 5])
    scores = fm.DELTA(m=2, alpha2=0.0, step=2.0).scores(seen_view(), cohort)
    assert scores.tolist() == pytest.approx([0.5, 0.5, 1.5, 1.5])


def test_the_noise_is_reported_where_it_counts():
    """One local step gives no estimate of it, and is refused; without α2 it is not needed."""
    assert fm.DELTA(m=2).reports == ("gradient_noise",)
    with pytest.raises(ValueError, match=r"^Cannot report 'gradient_noise' because clients take one local step"):
        run(quadratic(), fm.DELTA(m=2), local_steps=1, rounds=2)
    result = run(quadratic(), fm.DELTA(m=2, alpha2=0.0), local_steps=1, rounds=3)
    assert {record.bytes_up for record in result.history} <= {5 * 8, 2 * 5 * 8}


def test_starts_uniform():
    view = view_of(P6, last=torch.full((6,), -1))
    view.reported = {"gradient_noise": tensor([NAN] * 6)}
    for ids, weights in drawn(fm.DELTA(m=2), view, 20):
        assert weights == pytest.approx([P6[i] * 6 / 2 for i in ids])


def test_a_cohort_is_counted_once():
    """Two selections after one round, as in an abandoned one, use the same probabilities."""
    selector, view = fm.DELTA(m=2), seen_view()
    selector.select(view)
    q = view.state["q"].clone()
    view.round = 5
    selector.select(view)
    assert torch.equal(view.state["q"], q)
    assert float(q.sum()) == pytest.approx(1)


@pytest.mark.parametrize("noise", [0.0, NAN])
def test_one_client_keeps_its_probability(noise):
    """The cohort of one has nobody to divide with; its own mean is its update, so the diversity is zero."""
    view = view_of(P6, last=torch.tensor([3, *[-1] * 5]), updates={0: torch.ones(2)})
    view.reported, view.round = {"gradient_noise": tensor([noise, *[NAN] * 5])}, 4
    fm.DELTA(m=1).select(view)
    assert view.state["q"].tolist() == pytest.approx([1 / 6] * 6)


def test_only_available_clients():
    """Of clients 0, 2 and 4, only 0 and 2 were in the last cohort; unavailable ones keep their probability."""
    here = torch.tensor([0, 2, 4])
    view = view_of(
        [0.5, 0.3, 0.2], ids=here, federation=6, last=torch.tensor([3, 3, -1]), updates={0: UPDATES[0], 1: UPDATES[2]}
    )
    view.reported, view.round = {"gradient_noise": tensor([4.0, 0.0, NAN])}, 4
    ids, _ = fm.DELTA(m=4).select(view)
    assert set(ids.tolist()) <= {0, 1, 2}
    first, second = 5**0.5, 1.0
    q = [first / (first + second) / 3, 1 / 6, second / (first + second) / 3, 1 / 6, 1 / 6, 1 / 6]
    assert view.state["q"].tolist() == pytest.approx(q)
