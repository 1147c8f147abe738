"""UCB-CS."""

from __future__ import annotations

import math
from collections import Counter

import pytest
import torch

import fedmos as fm
from helpers.selection import NAN, P6, RARE, surprise, tensor, view_of

LOSSES = [
    {0: 2.0, 1: 1.0, 2: 3.0},
    {3: 0.5, 4: 4.0, 5: 1.5},
    {4: 3.5, 2: 2.0, 0: 1.0},
    {2: 1.0, 4: 3.0, 1: 2.5},
]
"""By round, the losses that clients reported."""


def played(selector: fm.UCB, rounds: int, here: dict[int, list[int]] | None = None) -> fm.View:
    """The view of the round after these, with the state of a selector that was asked in each."""
    state: dict = {}
    last, loss = torch.full((6,), -1), tensor([NAN] * 6)
    for t in range(rounds + 1):
        ids = torch.tensor((here or {}).get(t, list(range(6))))
        view = fm.View(
            seed=7,
            round=t,
            p=tensor(P6)[ids] / tensor(P6)[ids].sum(),
            n=torch.ones(len(ids)),
            ids=None if len(ids) == 6 else ids,
            federation=None if len(ids) == 6 else 6,
            reported={"loss": loss[ids]},
            last=last[ids],
            state=state,
        )
        selector.select(view)
        if t < rounds:
            for i, v in LOSSES[t].items():
                last[i], loss[i] = t, v
    return view


def index(rounds: int, gamma: float, sigma: float) -> list[float]:
    """The paper's sums over all rounds, written out."""
    T = sum(gamma ** (rounds - 1 - s) for s in range(rounds))
    values = []
    for k in range(6):
        mine = [(s, LOSSES[s][k]) for s in range(rounds) if k in LOSSES[s]]
        if not mine:
            values.append(math.inf)
            continue
        N = sum(gamma ** (rounds - 1 - s) for s, _ in mine)
        L = sum(gamma ** (rounds - 1 - s) * loss for s, loss in mine)
        values.append(P6[k] * (L / N + math.sqrt(2 * sigma**2 * math.log(T) / N)))
    return values


@pytest.mark.parametrize("gamma", [0.7, 1.0])
@pytest.mark.parametrize("rounds", [1, 2, 4])
def test_index(rounds, gamma):
    selector = fm.UCB(m=2, gamma=gamma, sigma=1.5)
    assert selector.index(played(selector, rounds)).tolist() == pytest.approx(index(rounds, gamma, 1.5))


def test_default_sigma():
    """The standard deviation of the last losses over clients."""
    selector, last = fm.UCB(m=2), [1.0, 2.5, 1.0, 0.5, 3.0, 1.5]
    mean = sum(last) / 6
    sigma = math.sqrt(sum((v - mean) ** 2 for v in last) / 6)
    assert selector.index(played(selector, 4)).tolist() == pytest.approx(index(4, 0.7, sigma))


def test_selects_the_largest_index():
    selector = fm.UCB(m=3, sigma=1.0)
    values = index(4, 0.7, 1.0)
    ids, weights = selector.select(played(selector, 4))
    assert ids.tolist() == sorted(range(6), key=lambda i: -values[i])[:3]
    assert weights.tolist() == [1 / 3] * 3


def test_unseen_clients_come_first():
    """After one round, {3, 4, 5} have no report and are chosen; with m=5, two of the others by index."""
    selector = fm.UCB(m=3)
    assert set(selector.select(played(selector, 1))[0].tolist()) == {3, 4, 5}
    view = played(fm.UCB(m=5, sigma=0.0), 1)
    values = index(1, 0.7, 0.0)
    best = sorted((0, 1, 2), key=lambda i: -values[i])[:2]
    assert set(fm.UCB(m=5, sigma=0.0).select(view)[0].tolist()) == {3, 4, 5, *best}


def test_ties_are_broken_at_random():
    """Nobody has reported: every client is as likely as any other."""
    counts: Counter = Counter()
    for t in range(600):
        view = view_of(P6, losses=[NAN] * 6, last=torch.full((6,), -1))
        view.round = t
        counts.update(fm.UCB(m=1).select(view)[0].tolist())
    assert surprise(counts, dict.fromkeys(range(6), 1 / 6)) > RARE


def test_reports_of_absent_clients_count_later():
    """A client that is unavailable after its round is counted when it is back, with the discount of its own round."""
    selector = fm.UCB(m=2, sigma=1.5)
    missing = played(selector, 4, {1: [0, 3, 4, 5], 2: [0, 2, 3, 4, 5]})
    assert selector.index(missing).tolist() == pytest.approx(index(4, 0.7, 1.5))


def test_all_clients():
    ids, weights = fm.UCB(m=6).select(played(fm.UCB(m=6), 3))
    assert sorted(ids.tolist()) == list(range(6))
    assert weights.tolist() == [1 / 6] * 6
