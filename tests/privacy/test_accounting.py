"""ε against dp-accounting, and the amplification that each selector gives."""

from __future__ import annotations

import math

import pytest

import fedmos as fm
from fedmos.privacy.accountants import RoundAccountant
from fedmos.privacy.compose import is_stateful
from fedmos.privacy.sampling import private_selector, sampling_of
from fedmos.selection.selector import View
from helpers.conformance import CASES

dp = pytest.importorskip("dp_accounting")
rdp = pytest.importorskip("dp_accounting.rdp")
ADD, REPLACE = dp.NeighboringRelation.ADD_OR_REMOVE_ONE, dp.NeighboringRelation.REPLACE_ONE
N = 1000


def expected(event, rounds: int, delta: float, relation=ADD) -> float:
    accountant = rdp.RdpAccountant(neighboring_relation=relation)
    accountant.compose(event, rounds)
    return accountant.get_epsilon(delta)


def spent(selection: fm.Selector, noise: float, rounds: int, delta: float, **how: bool) -> float:
    return fm.privacy.epsilon(noise, rounds=rounds, delta=delta, selection=selection, clients=N, **how)


@pytest.mark.parametrize(("m", "noise"), [(5, 1.0), (100, 0.8), (100, 3.0)])
def test_epsilon_is_that_of_dp_accounting(m, noise):
    gaussian, half = dp.GaussianDpEvent(noise), dp.GaussianDpEvent(noise / 2)
    poisson = dp.PoissonSampledDpEvent(m / N, gaussian)
    fixed = dp.SampledWithoutReplacementDpEvent(N, m, half)
    for rounds in (1, 70, 2000):
        for delta in (1e-3, 1e-6):
            for selection, event, relation in (
                (fm.Bernoulli(rate=m / N), poisson, ADD),
                (fm.Uniform(m=m), fixed, REPLACE),
                (fm.Full(), gaussian, ADD),
                (fm.ACS(m=m), half, ADD),
            ):
                if rounds == 70 or event is not fixed:  # which takes dp-accounting long
                    found = spent(selection, noise, rounds, delta)
                    assert found == pytest.approx(expected(event, rounds, delta, relation), rel=1e-6)


def test_amplification_is_what_the_selector_gives():
    def law(selection, **how):
        found = sampling_of(selection, N, **how)
        return found.law, found.size, found.adjacency

    assert law(fm.Bernoulli(rate=0.1)) == ("poisson", 100.0, "add or remove")
    assert law(fm.Bernoulli(rate=0.1), stateful=True, availability=True) == ("poisson", 100.0, "add or remove")
    assert law(fm.Uniform(m=7)) == ("fixed", 7, "replace")
    assert law(fm.Uniform(m=7), stateful=True) == ("none", 7, "replace")
    assert law(fm.Uniform(m=7), availability=True) == ("none", 7, "replace")
    assert law(fm.Full()) == ("none", N, "add or remove")
    assert law(fm.Cyclic(m=7)) == ("none", 7, "add or remove")
    assert law(fm.FixedCohorts([[0], [1, 2]])) == ("none", 2, "add or remove")
    assert law(fm.ACS(m=7)) == law(fm.MD(m=7)) == ("none", 7, "replace")
    assert "sizes" in sampling_of(fm.ACS(m=7), N).why

    class Largest(fm.Full):
        def select(self, view):
            ids = view.n.argsort()[-7:]
            return ids, view.p[ids]

    assert law(Largest()) == ("none", N, "replace")


def test_sampling_costs_less_than_none():
    amplified = [spent(fm.Bernoulli(rate=rate), 1.0, 100, 1e-5) for rate in (0.01, 0.1, 1.0)]
    assert amplified == sorted(amplified)
    assert amplified[-1] == pytest.approx(spent(fm.Full(), 1.0, 100, 1e-5), rel=1e-9)
    assert spent(fm.Uniform(m=50), 2.0, 50, 1e-5) < spent(fm.Uniform(m=50), 2.0, 50, 1e-5, stateful=True)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_which_clients_remember_rounds(case):
    algorithm = case.make()
    assert is_stateful(algorithm) == (len(algorithm.client_state) > 0)


def test_an_algorithm_that_reads_its_last_round_remembers():
    class Elapsed(fm.FedAvg):
        def finish(self, y, s, c, grad):
            return {"delta": (y - c.x) / (c.t - c.last)}, {}

    class Inside(fm.FedAvg):
        def step(self, y, s, c, grad, k):
            def scale():
                return getattr(c, "last")  # noqa: B009

            return y - c.lr * grad(y) / (c.t - scale()), s

    class ByFunction(fm.FedAvg):
        def finish(self, y, s, c, grad):
            return {"delta": (y - c.x) / _elapsed(c)}, {}

    assert all(is_stateful(kind(lr=0.1)) for kind in (Elapsed, Inside, ByFunction))
    assert not is_stateful(fm.FedAvg(lr=0.1))


def _elapsed(c):
    return c.t - c.last


def test_poisson_sampling_is_bernoulli_that_may_be_empty():
    import torch

    p = torch.full((20,), 0.05, dtype=torch.float64)
    drawn = []
    for t in range(400):
        view = View(seed=0, round=t, p=p, n=p)
        ids, weights = private_selector(fm.Bernoulli(rate=0.1)).select(view)
        drawn.append(len(ids))
        if len(ids):
            assert ids.equal(fm.Bernoulli(rate=0.1).select(view)[0])
        assert weights.tolist() == [0.5] * len(ids)
    assert drawn.count(0) == pytest.approx(400 * 0.9**20, abs=30)
    assert sum(drawn) == pytest.approx(800, abs=120)


@pytest.mark.parametrize(
    ("selection", "sentence"),
    [
        (fm.OCS(m=3, d=5), "Cannot use privacy= with OCS because its clients report update_norm without noise; use"),
        (fm.DELTA(m=3), "Cannot use privacy= with DELTA because"),
        (fm.PowerOfChoice(m=3, d=5), "because it asks clients for losses or gradients without noise; use"),
        (fm.FedCor(m=3), "Cannot use privacy= with FedCor because it asks clients for losses or gradients"),
        (fm.CACS(m=3), "Cannot use privacy= with CACS because it asks clients for losses or gradients"),
        (fm.Clustered(m=3, by="similarity"), "because it needs the updates of single clients; use fm.Bernoulli"),
        (fm.FixedCohorts([[0, 1]], [[0.9, 0.1]]), "because its weights change how much a client can contribute"),
        (fm.Uniform(m=N + 1), "Uniform: 'm' must be ≤ the number of clients"),
    ],
    ids=lambda v: type(v).__name__,
)
def test_selectors_that_reveal_data_are_refused(selection, sentence):
    with pytest.raises(ValueError) as error:
        sampling_of(selection, N)
    assert sentence in str(error.value)


@pytest.mark.parametrize("epsilon", [0.5, 4.0, 40.0])
def test_the_planned_noise_is_the_least(epsilon):
    how = {"rounds": 500, "delta": 1e-5, "selection": fm.Bernoulli(rate=0.02), "clients": N}
    noise = fm.privacy.plan(epsilon, **how)
    assert fm.privacy.epsilon(noise, **how) <= epsilon < fm.privacy.epsilon(0.999 * noise, **how)


def test_invalid_questions():
    how = {"rounds": 5, "delta": 1e-5, "selection": fm.Full(), "clients": N}
    with pytest.raises(ValueError, match="plan: 'epsilon' must be > 0, got 0"):
        fm.privacy.plan(0, **how)
    with pytest.raises(ValueError, match=r"epsilon: 'delta' must be in \(0, 1\), got 1"):
        fm.privacy.epsilon(1.0, **how | {"delta": 1})
    with pytest.raises(ValueError, match="Cannot reach ε = 1e-30 with any noise"):
        fm.privacy.plan(1e-30, **how | {"delta": 1e-300})
    with pytest.raises(ValueError, match="epsilon: 'noise_multiplier' must be ≥ 0, got -1"):
        fm.privacy.epsilon(-1, **how)
    assert RoundAccountant(sampling_of(fm.Full(), N), 0.0, 1e-5).epsilon(1) == math.inf
    assert RoundAccountant(sampling_of(fm.Full(), N), 0.0, 1e-5).epsilon(0) == 0


@pytest.mark.parametrize("mechanism", ["Gaussian", "MatrixFactorization", "Local", "DiscreteGaussian"])
def test_without_noise_there_is_no_privacy(mechanism):
    how = {"rounds": 5, "delta": 1e-5, "selection": fm.Cyclic(m=10), "clients": N}
    assert fm.privacy.epsilon(0.0, mechanism=mechanism, **how) == math.inf


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({"clip": 0}, "Gaussian: 'clip' must be > 0, or bounds > 0 by upload, got 0"),
        ({"clip": {}}, "Gaussian: 'clip' must map names of uploads to bounds, got {}"),
        ({"clip": {"delta": -1}}, "Gaussian: 'clip['delta']' must be > 0, got -1"),
        ({"noise_multiplier": -1}, "Gaussian: 'noise_multiplier' must be ≥ 0, got -1"),
        ({"delta": 1}, "Gaussian: 'delta' must be in (0, 1), got 1"),
        ({"budget": 0}, "Gaussian: 'budget' must be > 0 or None, got 0"),
        ({"adaptive": 1}, "Gaussian: 'adaptive' must be true or false, got 1"),
        ({"adaptive": True, "clip": {"delta": 1.0}}, "Gaussian: 'clip' must be a number where 'adaptive' is true"),
    ],
)
def test_invalid_options(fields, sentence):
    with pytest.raises(ValueError) as error:
        fm.privacy.Gaussian(**{"clip": 1.0, "noise_multiplier": 1.0, "delta": 1e-5} | fields)
    assert sentence in str(error.value)
