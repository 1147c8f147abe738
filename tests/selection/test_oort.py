"""Oort."""

from __future__ import annotations

import itertools
import math

import pytest
import torch

import fedmos as fm
from helpers.selection import INF, NAN, P6, RARE, as_sets, chosen_sets, drawn, successive, surprise, tensor, view_of


def oort_view(**more) -> fm.View:
    """Round 10 (from 1): three clients seen in rounds 9, 4 and 6 with mean squared losses 4, 1 and .25, one never."""
    given = {"last": torch.tensor([8, 3, 5, -1]), "picks": torch.tensor([1, 1, 1, 0])} | more
    view = view_of([1, 2, 3, 4], [10, 20, 50, 40], (4.0, 1.0, 0.25, NAN), **given)
    view.round = 9
    return view


STALE = [math.sqrt(0.1 * math.log(10) / last) for last in (9, 4, 6)]
"""√(0.1 ln t / t_k)."""


@pytest.mark.parametrize(
    ("selector", "durations", "expected"),
    [
        # n √(mean squared loss) = 20, 20, 25, scaled to 0, 0, 1
        pytest.param(fm.Oort(m=2, clip=1.0), None, [0, 0, 1], id="no clock"),
        # T = .5 quantile of 1, 2, 4 = 2; the client that took 4 is penalised by (2/4)²
        pytest.param(fm.Oort(m=2, clip=1.0, pace=0.5), (1.0, 4.0, 2.0, NAN), [0, 0, 1], id="one slow"),
        pytest.param(fm.Oort(m=2, clip=1.0, pace=0.5, alpha=0.0), (1.0, 4.0, 2.0, NAN), [0, 0, 1], id="no penalty"),
        # T = .3 quantile = 1.6: the two that took longer
        pytest.param(fm.Oort(m=2, clip=1.0, pace=0.3, alpha=1.0), (1.0, 4.0, 2.0, NAN), [0, 0, 1], id="two slow"),
    ],
)
def test_oort_utility_by_hand(selector, durations, expected):
    view = oort_view(durations=None if durations is None else tensor(durations))
    utility = [u + s for u, s in zip(expected, STALE, strict=True)]
    if durations is not None:
        T = {0.5: 2.0, 0.3: 1.6}[selector.pace]
        utility = [u * ((T / t) ** selector.alpha if t > T else 1) for u, t in zip(utility, durations[:3], strict=True)]
    found = selector.utility(view).tolist()
    assert found[:3] == pytest.approx(utility, abs=1e-6)
    assert found[3] == -INF


def test_oort_cuts_outstanding_utilities():
    """Above the clip quantile all are alike: of 0, 1, …, 10 and 1000 the median is 5.5."""
    losses = [float(u) ** 2 for u in [*range(11), 1000]]
    view = view_of([1] * 12, losses=losses)
    found = fm.Oort(m=2, clip=0.5).utility(view).tolist()  # in round 1, ln t = 0
    assert found == pytest.approx([min(u, 5.5) / 5.5 for u in [*range(11), 1000]])


def test_oort_exploits_in_proportion_to_utility_above_the_cutoff():
    """With utilities 0, .2, .5, .6, .8, 1 and m = 2, the bar is .7 · .8 = .56: three are drawn ∝ utility."""
    raw = (0.0, 0.2, 0.5, 0.6, 0.8, 1.0)
    selector = fm.Oort(m=2, exploration=0.0, exploration_min=0.0, cutoff=0.7, clip=1.0)
    view = view_of([1] * 6, losses=[u**2 for u in raw], last=torch.full((6,), 10**15))
    law = as_sets(successive([u if u >= 0.56 else 0.0 for u in raw], 2))
    assert surprise(chosen_sets(selector, view, 1000), law) > RARE


@pytest.mark.parametrize("start", [0, 20, 60, 1000])
@pytest.mark.parametrize("m", [7, 11])
def test_oort_explores_less_and_less(start, m):
    """ε = max(.9 · .98^t, .2): m − ⌊(1−ε)m⌋ of the cohort were never seen."""
    losses = [1.0 + i for i in range(20)] + [NAN] * 20
    view = view_of([1] * 40, losses=losses)
    for t, (ids, weights) in enumerate(drawn(fm.Oort(m=m), view, 5, start), start):
        epsilon = max(0.9 * 0.98**t, 0.2)
        assert len(set(ids)) == m
        assert sum(i >= 20 for i in ids) == m - math.floor((1 - epsilon) * m)
        assert weights == pytest.approx([1 / m] * m)


def test_oort_explores_the_share_as_written():
    """A constant ε = .9 of ten leaves one to exploit."""
    view = view_of([1] * 40, losses=[1.0 + i for i in range(20)] + [NAN] * 20)
    for ids, _ in drawn(fm.Oort(m=10, decay=1.0), view, 5):
        assert sum(i < 20 for i in ids) == 1


def test_oort_explores_uniformly():
    """Nobody seen: every subset is as likely; everybody seen: the whole cohort exploits."""
    law = {frozenset(s): 1 / 15 for s in itertools.combinations(range(6), 2)}
    assert surprise(chosen_sets(fm.Oort(m=2), view_of(P6, losses=[NAN] * 6), 1000), law) > RARE
    view = view_of([1] * 6, losses=[0.0, 0.0, 0.0, 0.0, 1.0, 1.0])
    assert set(chosen_sets(fm.Oort(m=2), view, 30)) == {frozenset({4, 5})}


@pytest.mark.parametrize(
    ("picks", "allowed"),
    [((3, 4, 0, 9, 1, 2), {0, 2, 4, 5}), ((4, 4, 4, 4, 1, 2), {4, 5}), ((4, 4, 4, 4, 4, 2), set(range(6)))],
    ids=["two", "just enough left", "too few left"],
)
def test_oort_blacklists_those_picked_too_often(picks, allowed):
    """More than 3 rounds are too many, unless fewer than m clients have less."""
    losses = [1.0, 1.0, NAN, 1.0, NAN, 1.0]
    counts = chosen_sets(fm.Oort(m=2, blacklist=3), view_of([1] * 6, losses=losses, picks=torch.tensor(picks)), 200)
    assert frozenset.union(*counts) == allowed
