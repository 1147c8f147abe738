"""Views of a federation, draws from selectors and their laws, enumerated."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Hashable, Iterator, Mapping, Sequence
from fractions import Fraction

import pytest
import torch
from scipy.special import chdtrc

import fedmos as fm
from helpers.problems import Quadratic

DRAWS = 1000
RARE = 1e-4
"""A χ² test refuses what happens to a correct selector once in ten thousand seeds; z-tests, beyond 4.5 sigma."""

NAN, INF = float("nan"), float("inf")
Law = Mapping[Hashable, float]
"""Outcome → probability."""


def tensor(values: Sequence[float]) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


def view_of(
    p: Sequence[float], n: Sequence[int] | None = None, losses: Sequence[float] | None = None, **more
) -> fm.View:
    """What a selector sees; `losses` are those it is told when it asks, and those clients reported."""
    N = len(p)
    view = fm.View(
        seed=7,
        round=0,
        p=tensor(p) / sum(p),
        n=torch.tensor([1] * N if n is None else n),
        **{"last": torch.zeros(N, dtype=torch.int64), "picks": torch.ones(N, dtype=torch.int64)} | more,
    )
    if losses is not None:
        view.reported = {"loss": tensor(losses), "start_loss": tensor(losses), "start_squared_loss": tensor(losses)}
        view.ask_losses = lambda ids, batch: tensor(losses)[ids]
    return view


def drawn(selector: fm.Selector, view: fm.View, rounds: int = DRAWS, start: int = 0) -> Iterator[tuple[list, list]]:
    """Clients and weights of many rounds."""
    for view.round in range(start, start + rounds):
        ids, weights = selector.select(view)
        yield ids.tolist(), weights.tolist()


def chosen_sets(selector: fm.Selector, view: fm.View, rounds: int = DRAWS, start: int = 0) -> Counter:
    """How often each set was chosen; nobody may be in one twice."""
    counts: Counter = Counter()
    for ids, _ in drawn(selector, view, rounds, start):
        assert len(set(ids)) == len(ids)
        counts[frozenset(ids)] += 1
    return counts


def surprise(counts: Mapping[Hashable, int], law: Law) -> float:
    """The probability, if the law holds, of counts as far from it as these; outcomes below 5 expected are pooled."""
    impossible = {outcome for outcome in counts if law.get(outcome, 0) <= 0}
    assert not impossible
    assert sum(law.values()) == pytest.approx(1)
    total = sum(counts.values())
    cells: dict[Hashable, list[float]] = {}
    for outcome, q in law.items():
        cell = cells.setdefault(outcome if q * total >= 5 else "rare", [0.0, 0.0])
        cell[0] += counts.get(outcome, 0)
        cell[1] += q * total
    assert len(cells) > 1
    return float(chdtrc(len(cells) - 1, sum((c - e) ** 2 / e for c, e in cells.values() if e > 0)))


def successive(weights: Sequence[float], d: int) -> dict[tuple[int, ...], float]:
    """Ordered outcomes of d draws without replacement, each ∝ weight among those left."""
    law = {}
    for order in itertools.permutations(range(len(weights)), d):
        q, left = 1.0, float(sum(weights))
        for i in order:
            q *= weights[i] / left if left > 0 else 0.0
            left -= weights[i]
        if q > 0:
            law[order] = q
    return law


def as_sets(law: Law) -> Counter:
    result: Counter = Counter()
    for outcome, q in law.items():
        result[frozenset(outcome)] += q
    return result


def power_of_choice(p: Sequence[float], losses: Sequence[float], m: int, d: int) -> Counter:
    """d candidates by p; the m with the largest loss (NaN: never seen, +∞), every way to break a tie equally likely."""
    loss = [INF if math.isnan(f) else f for f in losses]
    law: Counter = Counter()
    for candidates, q in as_sets(successive(p, d)).items():
        bar = sorted((loss[i] for i in candidates), reverse=True)[m - 1]
        sure = {i for i in candidates if loss[i] > bar}
        ways = list(itertools.combinations([i for i in candidates if loss[i] == bar], m - len(sure)))
        for tied in ways:
            law[frozenset(sure | set(tied))] += q / len(ways)
    return law


def greedy_bins(order: Sequence[int], p: Sequence[Fraction], m: int) -> list[list[Fraction]]:
    """p_{i,j}: clients in that order fill bins of one, each with m p_i in all, overflowing into the next bin."""
    bins = [[Fraction(0)] * m for _ in p]
    j, room = 0, Fraction(1)
    for i in order:
        left = m * p[i]
        while left > 0:
            part = min(left, room)
            bins[i][j] += part
            left, room = left - part, room - part
            if room == 0:
                j, room = j + 1, Fraction(1)
    return bins


P6 = (0.3, 0.22, 0.2, 0.15, 0.08, 0.05)
LR, K = 0.05, 3
WORK = {"local_steps": K, "dtype": torch.float64, "device": "cpu", "eval_every": 1000}


def run(problem: Quadratic, selection: fm.Selector, algorithm: fm.Algorithm | None = None, **changes) -> fm.Result:
    arguments = {"rounds": 8, "loss": problem.loss} | WORK | changes
    return fm.run(problem.model(), problem.data(), algorithm or fm.FedAvg(lr=LR), selection, **arguments)


WIRES = {
    "FedAvg": (fm.FedAvg(lr=LR), 1, 1),
    "FedCM": (fm.FedCM(lr=LR), 2, 1),
    "Scaffold": (fm.Scaffold(lr=LR), 2, 2),
    "MimeMom": (fm.Mime(lr=LR, beta=0.9), 3, 2),
}
