"""Runs side by side: each gets what it would get alone."""

import pytest
import torch

import fedmos as fm

DIGITS = fm.datasets.load("digits")


def run_of(seed: int, algorithm: fm.Algorithm, **more):
    data = DIGITS.partition(fm.partition.ByClass(classes=2, size=(4, 22)), clients=20, seed=seed)
    return {"seed": seed, "data": data, "algorithm": algorithm, "model": fm.models.cnn_digits(seed=seed)} | more


SHARED = {
    "selection": fm.Uniform(m=4),
    "rounds": 4,
    "local_steps": 3,
    "batch_size": 4,
    "dtype": torch.float64,
    "engine": "batched",
}


def same(one: fm.Result, other: fm.Result) -> bool:
    if not torch.allclose(one.params, other.params, rtol=0, atol=1e-12):
        return False
    for a, b in zip(one.history, other.history, strict=True):
        if (a.cohort, a.weights, a.bytes_up) != (b.cohort, b.weights, b.bytes_up) or a.accuracy != b.accuracy:
            return False
    return True


@pytest.mark.parametrize("name", sorted(fm.algorithms()))
def test_every_algorithm_beside_others(name):
    """Seeds, splits, initial weights and step sizes differ."""
    kind = fm.algorithms()[name]
    more = {"mu": 0.1} if name == "FedProx" else {}
    runs = [run_of(seed, kind(lr=lr, **more)) for seed, lr in ((0, 0.1), (1, 0.05), (5, 0.1))]
    for together, given in zip(fm.run_many(runs, **SHARED), runs, strict=True):
        assert same(together, fm.run(**SHARED | given))


def test_other_numbers_may_differ_and_other_kinds_run_by_themselves():
    runs = [
        run_of(0, fm.FedMoS(lr=0.1, mu=0.001)),
        run_of(1, fm.FedMoS(lr=0.1, mu=0.1, beta=0.5)),
        run_of(2, fm.FedAvg(lr=0.1), selection=fm.ACS(m=3)),
        run_of(3, fm.FedAvg(lr=0.1), selection=fm.Bernoulli(rate=0.2), rounds=6),
        run_of(4, fm.FedAvg(lr=0.1), engine="loop"),
    ]
    for together, given in zip(fm.run_many(runs, **SHARED), runs, strict=True):
        assert same(together, fm.run(**SHARED | given))


def test_each_ends_when_it_is_done(tmp_path):
    runs = [
        run_of(0, fm.FedAvg(lr=0.1), target={"accuracy": 0.0}, out=tmp_path / "a"),
        run_of(1, fm.FedAvg(lr=0.1)),
        run_of(2, fm.FedAvg(lr=1e200)),
    ]
    reached, whole, diverged = fm.run_many(runs, **SHARED)
    assert len(reached.history) == 1
    assert len(whole.history) == 4
    assert diverged.interrupted
    assert len(diverged.history) < 4
    assert torch.equal(fm.Result.load(tmp_path / "a").params, reached.params)


def test_mistakes_get_a_sentence():
    with pytest.raises(ValueError, match="run_many: 'runs' must be a list of mappings"):
        fm.run_many({"seed": 1})
    with pytest.raises(TypeError, match="missing a required argument"):
        fm.run_many([{"seed": 1}])
