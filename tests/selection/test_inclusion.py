"""How often clients are drawn: rates and biases of many draws."""

from __future__ import annotations

import math
from collections import Counter
from fractions import Fraction

import numpy as np
import pytest
import torch
from scipy.special import chdtrc

import fedmos as fm
from fedmos.selection.draws import Intervals
from helpers.selection import DRAWS, NAN, P6, RARE, drawn, greedy_bins, power_of_choice, surprise, view_of

SIGMA = 4.5


def summed_weights(selector: fm.Selector, view: fm.View, rounds: int = DRAWS, start: int = 0) -> np.ndarray:
    """(rounds, N)."""
    result = np.zeros((rounds, view.N))
    for row, (ids, weights) in zip(result, drawn(selector, view, rounds, start), strict=True):
        np.add.at(row, ids, weights)
    return result


# ------------------------------------------------------------------------------------ many clients, by χ²
RNG = np.random.default_rng(5)
P200 = RNG.pareto(1.5, 200) * (RNG.random(200) > 0.1)
P200 = P200 / P200.sum()


@pytest.mark.parametrize("m", [40, 80])
def test_uniform_inclusion(m):
    """20,000 or more inclusions among 200 clients; without replacement, counts vary by π(1−π)N/(N−1)."""
    counts, R, pi = np.zeros(200), 500, m / 200
    for ids, _ in drawn(fm.Uniform(m=m), view_of([1] * 200), R):
        counts[ids] += 1
    assert chdtrc(199, ((counts - R * pi) ** 2).sum() / (R * pi * (1 - pi) * 200 / 199)) > RARE


def test_md_inclusion():
    """20,000 draws by very unequal importances, some of them zero."""
    counts, R, m = Counter(), 200, 100
    for ids, _ in drawn(fm.MD(m=m), view_of(P200), R):
        counts.update(ids)
    assert surprise(counts, dict(enumerate(P200.tolist()))) > RARE


def test_bernoulli_inclusion():
    """20,000 inclusions; counts are independent, with variance π(1−π)."""
    counts, R, rate = np.zeros(200), 500, 0.2
    for ids, _ in drawn(fm.Bernoulli(rate=rate), view_of([1] * 200), R):
        counts[ids] += 1
    assert chdtrc(200, ((counts - R * rate) ** 2).sum() / (R * rate * (1 - rate))) > RARE


@pytest.mark.parametrize("kind", ["ACS", "CACS"])
def test_stratified_inclusion(kind):
    """How often each of 200 clients is drawn: m p_i a round, with variance Σ_j p_ij (1 − p_ij)."""
    m, R = 20, 500
    cluster = torch.from_numpy(np.random.default_rng(9).integers(0, 7, 200))
    selector = {"ACS": fm.ACS(m=m), "CACS": fm.CACS(m=m, warmup=0)}[kind]
    view = view_of(P200, state={"cluster": cluster})
    mass = np.bincount(cluster, P200)
    rank = {"ACS": lambda i: -P200[i], "CACS": lambda i: (-mass[cluster[i]], -P200[i])}[kind]
    exact = [Fraction(float(q)) for q in P200]
    bins = np.array(greedy_bins(sorted(range(200), key=rank), [q / sum(exact) for q in exact], m), dtype=float)
    counts = m * R * summed_weights(selector, view, R).mean(0)
    spread = np.sqrt(R * (bins * (1 - bins)).sum(1))
    assert (np.abs(counts - R * m * P200) <= SIGMA * spread + 1e-6).all()


MASSES = {
    "one": np.ones(1),
    "one block less one": RNG.random(31),
    "one block": RNG.random(32),
    "one block and one": RNG.random(33),
    "zeros around": np.r_[np.zeros(70), RNG.random(40), np.zeros(90)],
    "zeros between": np.where(RNG.random(1000) < 0.9, 0, RNG.random(1000)),
    "one giant": np.r_[RNG.random(500), 1e9, RNG.random(517)],
    "of every size": 10.0 ** RNG.uniform(-12, 3, 2001),
    "many": RNG.random(100_003),
}


@pytest.mark.parametrize("name", MASSES)
@pytest.mark.parametrize("ordered", [False, True])
def test_intervals_are_those_of_the_cumulative_sum(name, ordered):
    """A point lies in the interval that the plain cumulative sum says, away from edges by 1e-12 of the total."""
    mass = MASSES[name]
    order = np.random.default_rng(0).permutation(len(mass)) if ordered else np.arange(len(mass))
    intervals = Intervals(torch.from_numpy(mass), torch.from_numpy(order) if ordered else None)
    edges = np.cumsum(mass[order].astype(np.longdouble))
    total = float(edges[-1])
    assert intervals.total == pytest.approx(total, rel=1e-13)
    small = edges[: min(len(edges), 300)].astype(float)
    u = np.random.default_rng(1).random(20_000)
    u = np.r_[u * total, (small - 1e-11 * total).clip(0), (small + 1e-11 * total).clip(0, total * (1 - 1e-11))]
    near = np.abs(edges[np.searchsorted(edges, u).clip(max=len(edges) - 1)] - u)
    near = np.minimum(near, np.abs(edges[(np.searchsorted(edges, u) - 1).clip(0)] - u))
    u = u[near > 1e-12 * total]
    assert len(u) > 15_000
    found = intervals.locate(torch.from_numpy(u)).numpy()
    assert (found == order[np.searchsorted(edges, u, side="right")]).all()
    ends = torch.tensor([0.0, math.nextafter(intervals.total, 0), intervals.total], dtype=torch.float64)
    assert (mass[intervals.locate(ends).numpy()] > 0).all()


# ----------------------------------------------------------------------------------------------- bias
@pytest.mark.parametrize("m", [2, 5])
def test_cacs_is_unbiased(m):
    """E[w_i] = p_i for any clusters, once they are known."""
    p = np.array([5, 40, 10, 10, 0, 15, 8, 2, 10]) / 100
    view = view_of(p, state={"cluster": torch.tensor([2, 0, 1, 1, 0, 2, 1, 0, 2])})
    w = summed_weights(fm.CACS(m=m, warmup=3), view, start=3)
    assert (np.abs(w.mean(0) - p) <= SIGMA * w.std(0) / math.sqrt(len(w)) + 1e-12).all()
    assert w[:, p == 0].max() == 0
    assert w.std(0).max() > 0.01


@pytest.mark.parametrize(
    ("selector", "losses"),
    [(fm.PowerOfChoice(m=2, d=d), (1, 6, 2, 5, 3, 4)) for d in (2, 4, 6)]
    + [(fm.PowerOfChoice(m=2, d=4, loss="reported"), (1, NAN, 2, 5, NAN, 4))],
    ids=["d=m", "d=4", "d=N", "reported"],
)
def test_power_of_choice_is_biased_as_enumerated(selector, losses):
    """E[w_i] = Pr(i ∈ S)/m, which is not p_i: even d = m draws without replacement."""
    expected = np.zeros(6)
    for chosen, q in power_of_choice(P6, losses, selector.m, selector.d).items():
        expected[list(chosen)] += q / selector.m
    w = summed_weights(selector, view_of(P6, losses=losses))
    error = SIGMA * np.sqrt(expected * (1 / selector.m - expected) / len(w))
    assert (np.abs(w.mean(0) - expected) <= error + 1e-12).all()
    assert (np.abs(w.mean(0) - P6) > error).any() or selector.d == selector.m
    assert np.abs(expected - P6).max() > 0.02
