"""How skewed partitions are."""

from itertools import pairwise

import numpy as np
import pytest
from scipy import stats

from fedmos.data.partition import (
    Dirichlet,
    DirichletByClass,
)
from helpers.partitions import counts_of, dataset, labels


@pytest.mark.parametrize(
    ("make", "clients"),
    [
        (lambda alpha: Dirichlet(alpha=alpha), 20),
        (lambda alpha: Dirichlet(alpha=alpha, prior="data"), 20),
        (lambda alpha: DirichletByClass(alpha=alpha, least=1), 5),
    ],
    ids=["ones", "data", "by class"],
)
def test_heterogeneity_falls_as_alpha_grows(make, clients):
    made = dataset(labels([200] * 10))
    distance = [
        np.mean([made.partition(make(a), clients=clients, seed=s).describe().labels.total_variation for s in range(6)])
        for a in (0.05, 0.5, 5.0, 500.0)
    ]
    assert all(a > b + 0.02 for a, b in pairwise(distance)), distance


@pytest.mark.parametrize("alpha", [1e-9, 1e-100, 1e-300, 1e-305, 5e-324])
@pytest.mark.parametrize("prior", ["ones", "data"])
def test_the_smallest_alpha_is_the_most_skewed(alpha, prior):
    """Dir(α → 0) puts everything on one class; who finds it used up gets the last few per cent elsewhere."""
    y = labels([20_000] * 2)
    counts = counts_of(Dirichlet(alpha=alpha, prior=prior).split(y, 1000, 1), y)
    assert (counts.max(1) > 0.8 * counts.sum(1)).mean() > 0.98


@pytest.mark.parametrize("alpha", [1e6, 1e300, 1e308])
def test_the_largest_alpha_is_iid(alpha):
    made = dataset(labels([500] * 4))
    for scheme in (Dirichlet(alpha=alpha), Dirichlet(alpha=alpha, prior="data"), DirichletByClass(alpha=alpha)):
        assert made.partition(scheme, clients=5).describe().labels.total_variation < 0.08


@pytest.mark.parametrize(
    ("prior", "sizes", "alpha"),
    [
        ("ones", [20_000] * 5, 0.3),
        ("ones", [20_000] * 5, 4.0),
        ("data", [50_000, 25_000, 15_000, 7_000, 3_000], 0.6),
        ("data", [50_000, 25_000, 15_000, 7_000, 3_000], 10.0),
    ],
)
def test_class_counts_are_those_of_a_dirichlet(prior, sizes, alpha):
    """With q_i ~ Dir(α·prior), five samples of client i hold Beta-Binomially many of each class.

    20,000 clients ask for what there is, give or take a per cent, so that hardly anybody finds a class used up.
    """
    y, n = labels(sizes), 5
    counts = counts_of(Dirichlet(alpha=alpha, prior=prior).split(y, 20_000, 0), y)
    assert (counts.sum(1) == n).all()
    mean = np.array(sizes) / sum(sizes)
    concentration = alpha * (np.ones(5) if prior == "ones" else mean)
    total = concentration.sum()
    q = counts / n
    assert q.mean(0) == pytest.approx(mean, abs=1e-9)  # everything is given, so this is exact
    variance = mean * (1 - mean) * ((1 - 1 / n) / (total + 1) + 1 / n)
    assert q.var(0) == pytest.approx(variance, rel=0.1)
    covariance = -mean[0] * mean[1] * ((1 - 1 / n) / (total + 1) + 1 / n)
    assert np.cov(q[:, 0], q[:, 1])[0, 1] == pytest.approx(covariance, rel=0.15)
    for c in range(5):
        law = stats.betabinom(n, concentration[c], total - concentration[c]).pmf(np.arange(n + 1))
        seen = np.bincount(counts[:, c], minlength=n + 1) / len(counts)
        assert 0.5 * np.abs(seen - law).sum() < 0.025


def test_skew_does_not_depend_on_the_clients_number():
    y = labels([400] * 10)
    for scheme in (Dirichlet(alpha=0.1), Dirichlet(alpha=0.1, prior="data")):
        largest = [np.array(counts_of(scheme.split(y, 40, seed), y)).max(1) for seed in range(20)]
        first, last = np.mean([x[:10] for x in largest]), np.mean([x[-10:] for x in largest])
        assert abs(first - last) < 6


def test_class_proportions_are_those_of_a_dirichlet():
    """The first class is shared out before anybody holds anything: by Dir(α·1) over clients."""
    y, K, alpha = labels([1000] * 8), 5, 2.0
    q = np.array(
        [counts_of(DirichletByClass(alpha=alpha, least=1).split(y, K, seed), y)[:, 0] / 1000 for seed in range(500)]
    )
    assert q.mean(0) == pytest.approx(np.full(K, 1 / K), abs=0.03)
    assert q.var() == pytest.approx((1 / K) * (1 - 1 / K) / (alpha * K + 1), rel=0.15)
    assert stats.kstest(q[:, 2], stats.beta(alpha, alpha * (K - 1)).cdf).pvalue > 1e-4
