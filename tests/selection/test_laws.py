"""Cohorts are drawn by the laws of the papers."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Sequence
from fractions import Fraction

import pytest
import torch

import fedmos as fm
from fedmos.rng import Purpose, stream
from fedmos.selection.draws import Intervals, weighted_choice
from helpers.selection import (
    DRAWS,
    INF,
    NAN,
    P6,
    RARE,
    as_sets,
    chosen_sets,
    drawn,
    greedy_bins,
    power_of_choice,
    successive,
    surprise,
    tensor,
    view_of,
)


def active_fl(n: Sequence[int], losses: Sequence[float], m: int, a1: str, a2: float, a3: str) -> Counter:
    """v = √n × loss, unseen −∞; the ⌊α1 N⌋ lowest −∞; ⌊(1−α3)m⌋ ∝ exp(α2 v), the rest uniformly from the others."""
    N = len(n)
    value = [-INF if math.isnan(f) else math.sqrt(k) * f for k, f in zip(n, losses, strict=True)]
    for i in sorted(range(N), key=lambda i: value[i])[: math.floor(Fraction(a1) * N)]:
        value[i] = -INF
    finite = [i for i in range(N) if value[i] > -INF]
    by_value = min(math.floor((1 - Fraction(a3)) * m), len(finite))
    law: Counter = Counter()
    for places, q in as_sets(successive([math.exp(a2 * value[i]) for i in finite], by_value)).items():
        valued = {finite[j] for j in places}
        rest = list(itertools.combinations(set(range(N)) - valued, m - by_value))
        for others in rest:
            law[frozenset(valued | set(others))] += q / len(rest)
    return law


@pytest.mark.parametrize(
    ("p", "d", "draws"),
    [
        pytest.param(P6, 2, DRAWS, id="few of them"),
        pytest.param((0.4, 0.25, 0.2, 0.1, 0.05), 3, DRAWS, id="most of them"),
        pytest.param((0.4, 0, 0.3, 0.2, 0, 0.1, 0), 3, DRAWS, id="some without importance"),
        pytest.param((0.96, 0.03, *[0.002] * 5), 3, 3 * DRAWS, id="one with nearly all importance"),
    ],
)
def test_candidates_are_drawn_one_after_another_by_p(p, d, draws):
    """Every ordered outcome of weighted draws without replacement has its probability, however long repeats make it."""
    q = tensor(p)
    intervals, counts = Intervals(q), Counter()
    for t in range(draws):
        counts[tuple(weighted_choice(stream(1, t, 0, Purpose.SELECT), intervals, q, d).tolist())] += 1
    assert surprise(counts, successive(p, d)) > RARE


def test_clients_without_importance_are_candidates_last():
    """If d is more than have any importance, the others fill up uniformly."""
    q, counts = tensor((0.5, 0.0, 0.3, 0.0, 0.2, 0.0)), Counter()
    for t in range(300):
        ids = weighted_choice(stream(1, t, 0, Purpose.SELECT), Intervals(q), q, 4).tolist()
        assert set(ids[:3]) == {0, 2, 4}
        counts[ids[3]] += 1
    assert surprise(counts, {1: 1 / 3, 3: 1 / 3, 5: 1 / 3}) > RARE


def test_uniform_law():
    """All subsets of m are equally likely."""
    law = {frozenset(s): 1 / 10 for s in itertools.combinations(range(5), 2)}
    assert surprise(chosen_sets(fm.Uniform(m=2), view_of([1, 2, 3, 4, 5])), law) > RARE


def test_bernoulli_law():
    """Every subset of four at rate .3, given that it is not empty; weights 1/|S|."""
    rate, law = 0.3, {}
    for mask in itertools.product((0, 1), repeat=4):
        if any(mask):
            chance = math.prod(rate if here else 1 - rate for here in mask)
            law[frozenset(i for i in range(4) if mask[i])] = chance / (1 - (1 - rate) ** 4)
    selector, view = fm.Bernoulli(rate=rate), view_of([4, 3, 2, 1])
    assert surprise(chosen_sets(selector, view), law) > RARE
    for ids, weights in drawn(selector, view, 20):
        assert weights == [1 / len(ids)] * len(ids)


def test_md_law():
    """Multinomial: m independent draws with replacement, each weighing 1/m."""
    p, m = (0.5, 0.3, 0.0, 0.2), 3
    law: Counter = Counter()
    for draws in itertools.product(range(4), repeat=m):
        law[tuple(sorted(draws))] += math.prod(p[i] for i in draws)
    counts: Counter = Counter()
    for ids, weights in drawn(fm.MD(m=m), view_of(p)):
        counts[tuple(sorted(ids))] += 1
        assert weights == [1 / m] * m
    assert surprise(counts, law) > RARE


def test_acs_joint_law():
    """One draw from each greedy bin, independently."""
    check_bins_law(fm.ACS(m=3), [25, 30, 15, 20, 10], (1, 0, 3, 2, 4), {})


def test_cacs_joint_law():
    """The same, in the order of clusters: {2, 4} weighs .45, {0, 1} .35, {3} .20; inside by p."""
    view = {"state": {"cluster": torch.tensor([1, 1, 0, 2, 0])}}
    check_bins_law(fm.CACS(m=3, warmup=2), [15, 20, 25, 20, 20], (2, 4, 1, 0, 3), view)


def check_bins_law(selector: fm.Selector, counts: list[int], order: Sequence[int], more: dict) -> None:
    bins = greedy_bins(order, [Fraction(c, sum(counts)) for c in counts], selector.m)
    law: Counter = Counter()
    for draws in itertools.product(range(len(counts)), repeat=selector.m):
        q = math.prod(bins[i][j] for j, i in enumerate(draws))
        if q:
            law[tuple(sorted(draws))] += float(q)
    found: Counter = Counter()
    for ids, weights in drawn(selector, view_of(counts, **more), start=2):
        found[tuple(sorted(ids))] += 1
        assert weights == [1 / selector.m] * selector.m
    assert surprise(found, law) > RARE


POWER = {
    "distinct losses": (P6, (1, 6, 2, 5, 3, 4), 2, 4),
    "few candidates": (P6, (1, 6, 2, 5, 3, 4), 1, 2),
    "ties at the bar": (P6, (2, 1, 2, 2, 1, 2), 2, 4),
    "all equal": (P6, (1, 1, 1, 1, 1, 1), 2, 3),
    "everyone a candidate": (P6, (5, 5, 5, 9, 1, 5), 3, 6),
}


@pytest.mark.parametrize("case", POWER)
def test_power_of_choice_law(case):
    """Each set of the m highest losses among d candidates by p, ties broken evenly; weights 1/m."""
    p, losses, m, d = POWER[case]
    selector, view = fm.PowerOfChoice(m=m, d=d), view_of(p, losses=losses)
    assert surprise(chosen_sets(selector, view), power_of_choice(p, losses, m, d)) > RARE
    assert next(drawn(selector, view, 1))[1] == [1 / m] * m


def test_reported_power_of_choice_takes_unseen_clients_first():
    """rpow-d: never seen is +∞, so they come before everyone seen, and tie with each other."""
    losses = (NAN, 3.0, NAN, 1.0, NAN, 2.0)
    selector = fm.PowerOfChoice(m=2, d=4, loss="reported")
    counts = chosen_sets(selector, view_of(P6, losses=losses))
    assert surprise(counts, power_of_choice(P6, losses, 2, 4)) > RARE
    unseen = {0, 2, 4}
    for chosen in counts:  # of 4 candidates at least one is unseen; of 2 chosen at least one then is
        assert chosen & unseen


@pytest.mark.parametrize(("loss", "batch"), [("full", False), ("batch", True)])
def test_power_of_choice_asks_d_candidates_in_its_form(loss, batch):
    """pow-d asks for losses on all data, cpow-d on a batch; the chosen are the highest of those asked."""
    view, asked = view_of(P6), []

    def answer(ids: torch.Tensor, batch: bool) -> torch.Tensor:
        asked.append((ids.tolist(), batch))
        return tensor([10.0 - i for i in ids.tolist()])

    view.ask_losses = answer
    for ids, _ in drawn(fm.PowerOfChoice(m=2, d=4, loss=loss), view, 50):
        candidates, how = asked.pop()
        assert not asked
        assert how is batch
        assert len(set(candidates)) == 4
        assert set(ids) == set(sorted(candidates)[:2])


N8 = (1, 4, 9, 16, 25, 4, 9, 1)

ACTIVE = {
    "all seen": (N8, (0.9, 0.8, 0.7, 0.1, 0.3, 0.2, 0.5, 1.0), 4, "0.5", 1.5, "0.3"),
    "unseen only by chance": (N8, (0.9, NAN, 0.7, NAN, 0.3, 0.2, NAN, 1.0), 4, "0.25", 1.5, "0.3"),
    "nothing set aside": (N8, (0.9, 0.8, 0.7, NAN, 0.3, 0.2, 0.5, 1.0), 3, "0", 1.0, "0"),
    "too few finite values": (N8, (0.9, NAN, NAN, NAN, 0.3, NAN, NAN, NAN), 4, "0.75", 1.0, "0"),
    "all unseen": (N8[:6], (NAN,) * 6, 3, "0.75", 0.01, "0.1"),
    "all by chance": (N8[:6], (0.9, 0.8, 0.7, 0.1, 0.3, 0.2), 3, "0.5", 5.0, "1"),
}


@pytest.mark.parametrize("case", ACTIVE)
def test_active_fl_law(case):
    """The α1, α2 and α3 rules, outcome by outcome; weights p_i/Σ_S p."""
    n, losses, m, a1, a2, a3 = ACTIVE[case]
    selector = fm.ActiveFL(m=m, alpha1=float(a1), alpha2=a2, alpha3=float(a3))
    view = view_of(range(1, len(n) + 1), n, losses)
    assert surprise(chosen_sets(selector, view), active_fl(n, losses, m, a1, a2, a3)) > RARE
    for ids, weights in drawn(selector, view, 5):
        assert weights == pytest.approx([(i + 1) / sum(j + 1 for j in ids) for i in ids])


@pytest.mark.parametrize(("alpha1", "N", "aside"), [(0.75, 100, 75), (0.29, 100, 29), (0.57, 100, 57)])
def test_active_fl_sets_aside_the_share_as_written(alpha1, N, aside):
    """⌊α1 N⌋ of the decimal number given: .29 of 100 is 29, though 0.29 · 100 is a little less in floating point."""
    selector = fm.ActiveFL(m=N - aside, alpha1=alpha1, alpha2=1e-9, alpha3=0.0)
    for ids, _ in drawn(selector, view_of([1] * N, losses=range(N)), 10):
        assert sorted(ids) == list(range(aside, N))


@pytest.mark.parametrize(("alpha3", "m", "by_value"), [(0.1, 10, 9), (0.7, 10, 3), (0.9, 10, 1), (0.8, 5, 1)])
def test_active_fl_draws_by_value_the_share_as_written(alpha3, m, by_value):
    """⌊(1−α3)m⌋: with values far apart the highest are sure to be among the cohort."""
    losses = [1000.0 * i for i in range(40)]
    selector = fm.ActiveFL(m=m, alpha1=0.0, alpha2=1.0, alpha3=alpha3)
    always = set.intersection(*(set(ids) for ids, _ in drawn(selector, view_of([1] * 40, losses=losses), 25)))
    assert always == set(range(40 - by_value, 40))


@pytest.mark.parametrize(("N", "m"), [(10, 4), (12, 3), (5, 5), (7, 1)])
def test_cyclic_groups(N, m):
    """Disjoint groups of m, the last smaller, that cover everyone in ⌈N/m⌉ rounds and return each cycle."""
    p = [i + 1 for i in range(N)]
    selector, view, turns = fm.Cyclic(m=m), view_of(p), math.ceil(N / m)
    rounds = list(drawn(selector, view, 3 * turns))
    groups = [ids for ids, _ in rounds]
    assert [len(g) for g in groups[:turns]] == [m] * (N // m) + [N % m] * (N % m > 0)
    assert sorted(itertools.chain(*groups[:turns])) == list(range(N))
    assert groups[:turns] == groups[turns : 2 * turns] == groups[2 * turns :]
    for ids, weights in rounds:
        assert weights == pytest.approx([p[i] / sum(p[j] for j in ids) for i in ids])


def test_cyclic_order_is_drawn_from_the_seed():
    """Every client is as likely to come first."""
    view, counts = view_of([1] * 6), Counter()
    for view.seed in range(500):
        counts[int(fm.Cyclic(m=1).select(view)[0])] += 1
    assert surprise(counts, dict.fromkeys(range(6), 1 / 6)) > RARE


def test_full_is_everyone_with_weight_p():
    ids, weights = fm.Full().select(view_of([3, 0, 1]))
    assert ids.tolist() == [0, 1, 2]
    assert weights.tolist() == [0.75, 0.0, 0.25]


def test_fixed_cohorts_follow_their_script():
    """Cohorts in turn, starting over; weights p_i/Σ_S p or as given; repeats without weights count once."""
    view = view_of([1, 2, 3, 4])
    rounds = list(drawn(fm.FixedCohorts([[3, 1], [0], [2, 2]]), view, 4))
    assert [sorted(ids) for ids, _ in rounds] == [[1, 3], [0], [2], [1, 3]]
    assert dict(zip(*rounds[0], strict=True)) == pytest.approx({1: 1 / 3, 3: 2 / 3})
    given = fm.FixedCohorts([[3, 1], [0]], weights=[[0.5, 0.25], [2.0]])
    assert list(drawn(given, view, 2)) == [([3, 1], [0.5, 0.25]), ([0], [2.0])]
