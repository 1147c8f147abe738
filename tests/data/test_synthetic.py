"""Problems made up by formula: quadratics and synthetic data."""

import pytest
import torch

import fedmos as fm


def test_quadratic_equals_its_closed_form():
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
