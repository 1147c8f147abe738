"""Dirichlet splits by class: what is shared out, how skewed, and what is refused."""

import numpy as np
import pytest

import fedmos as fm


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
