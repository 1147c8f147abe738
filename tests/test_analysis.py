"""Sampling variance, selection skew, and the problems made up by formula."""

import itertools

import numpy as np
import pytest
import torch

import fedmos as fm

P = torch.tensor([0.4, 0.3, 0.2, 0.1], dtype=torch.float64)


@pytest.mark.parametrize("selector", [fm.Uniform(m=2), fm.MD(m=3), fm.ACS(m=3), fm.Full()])
def test_closed_forms_agree_with_draws(selector):
    exact = fm.analysis.sampling_variance(selector, P)
    drawn = fm.analysis.draw_weights(selector, P, None, None, draws=4000)
    assert exact.exact
    assert torch.allclose(exact.mean, P)
    spread = 4 * (exact.variance / 4000).sqrt() + 1e-12
    assert bool(((drawn.mean(0) - P).abs() <= spread).all())
    assert torch.allclose(drawn.var(0), exact.variance, rtol=0.15, atol=1e-12)


def test_without_a_closed_form_weights_are_drawn():
    sampling = fm.analysis.sampling_variance(fm.PowerOfChoice(m=1, d=4), P, losses=torch.tensor([1.0, 4.0, 2.0, 3.0]))
    assert not sampling.exact
    assert sampling.mean.tolist() == [0, 1, 0, 0]
    assert sampling.total == 0


def test_skew_is_one_for_unbiased_selection_and_enumerable_for_pow_d():
    """ρ(S(π, w), w′) of pow-d with m = 1, d = 2, by hand: candidates are drawn one after the other by p."""
    losses, elsewhere = torch.tensor([1.0, 4.0, 2.0, 3.0]).double(), torch.tensor([5.0, 1.0, 1.0, 2.0]).double()
    assert fm.analysis.selection_skew(fm.MD(m=2), P, losses) == pytest.approx(1)
    chosen = torch.zeros(4, dtype=torch.float64)
    for a, b in itertools.permutations(range(4), 2):
        chosen[max(a, b, key=lambda k: losses[k])] += P[a] * P[b] / (1 - P[a])
    best = 0.5
    expected = float((chosen @ (elsewhere - best)) / (P @ (elsewhere - best)))
    measured = fm.analysis.selection_skew(fm.PowerOfChoice(m=1, d=2), P, losses, elsewhere, best, draws=4000)
    assert measured == pytest.approx(expected, abs=0.05)


def test_power_of_choice_skews_more_the_larger_d():
    problem = fm.datasets.quadratic(clients=20, dimensions=2)
    bounds = [
        fm.analysis.skew_bounds(selector, problem, points=3, draws=200)
        for selector in (fm.MD(m=2), fm.PowerOfChoice(m=2, d=4), fm.PowerOfChoice(m=2, d=20))
    ]
    assert bounds[0].rho == pytest.approx(1)
    assert bounds[0].bias == pytest.approx(1)
    assert bounds[1].rho > 1
    assert bounds[0].bias < bounds[1].bias < bounds[2].bias


def test_the_quadratic_is_what_it_says():
    problem = fm.datasets.quadratic(clients=6, dimensions=3, seed=1)
    w = torch.tensor([0.3, -1.0, 2.0], dtype=torch.float64)
    for k in range(6):
        h, e = problem.h[k], problem.e[k]
        by_hand = 0.5 * h * w @ w - e @ w + 0.5 * e @ e / h
        assert float(problem.losses(w)[k]) == pytest.approx(float(by_hand))
        assert float(problem.losses(e / h)[k]) == pytest.approx(0, abs=1e-12)
    assert 1 <= float(problem.h.min()) <= float(problem.h.max()) <= 20
    assert float(problem.p.sum()) == pytest.approx(1)
    gradient = problem.p @ (problem.h[:, None] * problem.optimum - problem.e)
    assert gradient.tolist() == pytest.approx([0, 0, 0], abs=1e-12)
    assert problem.gap == pytest.approx(float(problem.loss(problem.optimum)))
    result = fm.run(
        problem.model(w),
        problem.data(),
        fm.FedAvg(lr=0.05),
        fm.Full(),
        rounds=200,
        local_steps=1,
        loss=problem.objective,
        dtype=torch.float64,
    )
    assert torch.allclose(result.params, problem.optimum, atol=1e-8)
    assert result.history[-1].train_loss == pytest.approx(problem.gap)


def test_synthetic_follows_its_recipe():
    data = fm.datasets.synthetic(1, 1, clients=30, seed=0)
    sizes = data.sizes
    assert len(data) == 30
    assert int(sizes.min()) >= 45  # nine tenths of 50
    assert data.x.shape[1] == 60
    assert set(data.y.tolist()) <= set(range(10))
    variance = torch.stack([data.client(i)[0].double().var(0) for i in range(30) if sizes[i] > 300]).mean(0)
    expected = torch.arange(1, 61).double() ** -1.2
    assert torch.allclose(variance, expected, rtol=0.25)
    same, other = fm.datasets.synthetic(seed=0), fm.datasets.synthetic(seed=1)
    assert torch.equal(data.x, same.x)
    assert data.fingerprint() != other.fingerprint()


@pytest.mark.parametrize("alpha", [0.1, 0.3, 2.0, 100.0])
def test_dirichlet_by_class_shares_out_everything(alpha):
    labels = np.random.default_rng(0).integers(0, 10, 6000)
    parts = fm.partition.DirichletByClass(alpha=alpha).split(labels, 50, seed=0)
    assert sorted(np.concatenate(parts).tolist()) == list(range(6000))
    assert min(map(len, parts)) >= 10


def test_dirichlet_by_class_is_more_skewed_the_smaller_alpha():
    labels = np.random.default_rng(0).integers(0, 10, 6000)

    def skew(alpha: float) -> float:
        parts = fm.partition.DirichletByClass(alpha=alpha).split(labels, 20, seed=0)
        shares = np.array([np.bincount(labels[part], minlength=10) / len(part) for part in parts])
        return float(np.abs(shares - 0.1).sum(1).mean())

    assert skew(0.1) > skew(1.0) > skew(100.0)


@pytest.mark.parametrize(
    ("scheme", "clients", "sentence"),
    [
        (fm.partition.DirichletByClass(alpha=1.0), 601, "use fewer clients"),
        (fm.partition.DirichletByClass(alpha=1e-9, attempts=20), 100, "use a larger 'alpha'"),
    ],
)
def test_impossible_dirichlet_splits_say_why(scheme, clients, sentence):
    with pytest.raises(ValueError, match=sentence):
        scheme.split(np.random.default_rng(0).integers(0, 10, 6000), clients, seed=0)
