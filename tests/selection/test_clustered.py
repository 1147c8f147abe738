"""Clustered sampling."""

from __future__ import annotations

import itertools
import math
from collections import Counter

import numpy as np
import pytest
import torch

import fedmos as fm
from helpers.selection import P6, RARE, drawn, surprise, tensor, view_of

P8 = (0.2, 0.05, 0.1, 0.15, 0.2, 0.1, 0.1, 0.1)
UPDATES = {i: torch.tensor([math.cos(a), math.sin(a)]) for i, a in enumerate((0, 0.1, 2, 2.1, 4, 4.1, 0.05, 2.05))}

CASES = {
    "P6": (P6, 3),
    "P8": (P8, 4),
    "one": (P8, 1),
    "equal, as many as clients": ((0.125,) * 8, 8),
    "equal": ((0.125,) * 8, 3),
    "large clients": ((0.55, 0.3, 0.05, 0.05, 0.05), 4),
    "whole bins": ((0.5, 0.25, 0.25), 4),
    "some without importance": ((0.4, 0, 0.3, 0.2, 0, 0.1), 3),
}
KNOWN = {
    "all known": lambda N: {i: UPDATES[i] for i in range(N)},
    "some known": lambda N: {i: UPDATES[i] for i in range(0, N, 2)},
    "none known": lambda N: {},
}


@pytest.mark.parametrize("known", KNOWN)
@pytest.mark.parametrize("by", ["size", "similarity"])
@pytest.mark.parametrize("case", CASES)
def test_distributions(case, by, known):
    """Each is a distribution, a client has m p_i in all, so the expected weight is p_i; the variance is at most MD's."""
    p, m = CASES[case]
    selector = fm.Clustered(m=m, by=by)
    r = selector.bins(tensor(p), KNOWN[known](len(p)))
    assert r.shape == (len(p), m)
    torch.testing.assert_close(r.sum(0), torch.ones(m, dtype=torch.float64))
    torch.testing.assert_close(r.sum(1), m * tensor(p))
    mine = (r * (1 - r)).sum(1) / m**2
    md = tensor(p) * (1 - tensor(p)) / m
    assert bool((mine <= md + 1e-12).all())


def test_by_size_is_acs():
    """Algorithm 1 fills bins in the order of importance, as FedMoS's ACS does: the same clients in every round."""
    for (ids, weights), (same, equal) in zip(
        drawn(fm.Clustered(m=3), view_of(P6), 50), drawn(fm.ACS(m=3), view_of(P6), 50), strict=True
    ):
        assert (ids, weights) == (same, equal)
    torch.testing.assert_close(fm.Clustered(m=3).bins(tensor(P6)), fm.ACS(m=3).bins(tensor(P6)))


def test_similar_clients_share_a_distribution():
    """Three directions, three draws: one client of each group, always."""
    selector = fm.Clustered(m=3, by="similarity")
    p = [2, 1, 1, 1, 1, 2, 0, 1]  # {0, 1, 6}, {2, 3, 7} and {4, 5} weigh a third each
    groups = {0: 0, 1: 0, 6: 0, 2: 1, 3: 1, 7: 1, 4: 2, 5: 2}
    for ids, weights in drawn(selector, view_of(p, updates=UPDATES), 100):
        assert sorted(groups[i] for i in ids) == [0, 1, 2]
        assert weights == [1 / 3] * 3


def test_joint_law_by_similarity():
    """Independent draws, one from each distribution."""
    selector = fm.Clustered(m=3, by="similarity")
    r = selector.bins(tensor(P8), UPDATES).tolist()
    law: Counter = Counter()
    for draws in itertools.product(range(8), repeat=3):
        q = math.prod(r[i][k] for k, i in enumerate(draws))
        if q > 0:
            law[tuple(sorted(draws))] += q
    counts = Counter(tuple(sorted(ids)) for ids, _ in drawn(selector, view_of(P8, updates=UPDATES)))
    assert surprise(counts, law) > RARE


def test_groups_that_do_not_fit_are_split():
    """A group of more than 1/m is cut; what is left over fills the free space of the largest groups."""
    p = tensor([0.3, 0.3, 0.2, 0.2])
    angles = {i: UPDATES[j] for i, j in enumerate((0, 1, 2, 3))}
    r = fm.Clustered(m=2, by="similarity").bins(p, angles)
    # 0 and 1 weigh .6 > ½ and are cut; {2, 3} weighs .4 and is the first, then 0, then 1 in the space that is left.
    torch.testing.assert_close(r, tensor([[0, 0.6], [0.2, 0.4], [0.4, 0], [0.4, 0]]))


def test_many_clients():
    """Three hundred clients of very unequal importance, a third of them with updates: still exact."""
    p = tensor(np.random.default_rng(1).pareto(1.2, 300))
    p = p / p.sum()
    updates = {i: torch.randn(5, generator=torch.Generator().manual_seed(i)) for i in range(0, 300, 3)}
    r = fm.Clustered(m=40, by="similarity").bins(p, updates)
    torch.testing.assert_close(r.sum(1), 40 * p)
    torch.testing.assert_close(r.sum(0), torch.ones(40, dtype=torch.float64))
