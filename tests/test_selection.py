"""Who is chosen, how often, with which weight, and at what price.

The laws of selection are enumerated outcome by outcome from the procedures of the specification, in plain
Python, and held against draws of a fixed seed by Pearson's χ². What clients are asked, and what that costs, is
held against quadratic federations whose losses and gradients are known in closed form.
"""

from __future__ import annotations

import hashlib
import itertools
import math
from collections import Counter
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from fractions import Fraction

import numpy as np
import pytest
import torch
from scipy.special import chdtrc

import fedmos as fm
from fedmos.rng import Purpose, stream
from fedmos.selection.draws import Intervals, weighted_choice
from reference import Quadratic, quadratic

DRAWS = 1000
RARE = 1e-4
"""A χ² test refuses what happens to a correct selector once in ten thousand seeds; z-tests, beyond 4.5 sigma."""
SIGMA = 4.5
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


def summed_weights(selector: fm.Selector, view: fm.View, rounds: int = DRAWS, start: int = 0) -> np.ndarray:
    """(rounds, N)."""
    result = np.zeros((rounds, view.N))
    for row, (ids, weights) in zip(result, drawn(selector, view, rounds, start), strict=True):
        np.add.at(row, ids, weights)
    return result


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


# ----------------------------------------------------------------------------------- the laws, enumerated


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


# ------------------------------------------------------------------------------------------------- Oort


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


# -------------------------------------------------------------------------- Cyclic, Full, FixedCohorts


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


# ------------------------------------------------------------------ what clients are asked, and what it costs

LR, K = 0.05, 3
WORK = {"local_steps": K, "dtype": torch.float64, "device": "cpu", "eval_every": 1000}


def run(problem: Quadratic, selection: fm.Selector, algorithm: fm.Algorithm | None = None, **changes) -> fm.Result:
    arguments = {"rounds": 8, "loss": problem.loss} | WORK | changes
    return fm.run(problem.model(), problem.data(), algorithm or fm.FedAvg(lr=LR), selection, **arguments)


def sample_losses(problem: Quadratic, i: int, w: np.ndarray) -> np.ndarray:
    a, b = problem.samples[i]
    return ((a * w - b) ** 2).sum(1) / 2


def replay(problem: Quadratic, result: fm.Result, mu: float = 0.0) -> Iterator[tuple]:
    """FedAvg with full batches once more, by hand: for each round its record, x, and what its cohort then reports."""
    x = problem.x0
    for record in result.history:
        reports, step = {}, np.zeros_like(x)
        for i, w in zip(record.cohort, record.weights, strict=True):
            y, losses = x, []
            for _ in range(K):
                losses.append(sample_losses(problem, i, y).mean())
                y = y - LR * problem.gradient(i, y) - mu * (y - x)
            at_x = sample_losses(problem, i, x)
            reports[i] = {"loss": np.mean(losses), "start_loss": at_x.mean(), "start_squared_loss": (at_x**2).mean()}
            step = step + w * (y - x)
        yield record, x, reports
        x = x + step
    np.testing.assert_allclose(result.params.numpy(), x, rtol=0, atol=1e-12)


@dataclass(frozen=True)
class Curious(fm.Selector):
    """Chooses two clients in turn; asks whom it is told to ask, and notes the answers; or has everything reported."""

    ask: tuple[int, ...] = ()
    what: str = "losses"
    notes: list = field(default_factory=list, compare=False, repr=False)

    @property
    def reports(self):
        return () if self.ask else ("loss", "start_loss", "start_squared_loss")

    def select(self, view):
        if self.ask:
            ids = torch.tensor(self.ask)
            answer = view.gradients(ids) if self.what == "gradients" else view.probe(ids, self.what == "batch")
            self.notes.append(answer.numpy())
        return torch.tensor([view.round % view.N, (view.round + 3) % view.N]), tensor([0.5, 0.5])


FULL_BATCH = [(fm.FedAvg(lr=LR), 0.0), (fm.FedMoS(lr=LR, mu=0.1, beta=0.0), 0.1)]
"""FedMoS takes two gradients in a step, and one before the first; with full batches its d is ∇f_i(y)."""


@pytest.mark.parametrize("engine", ["loop", "batched"])
@pytest.mark.parametrize(("algorithm", "mu"), FULL_BATCH, ids=["FedAvg", "FedMoS"])
def test_clients_report_what_the_specification_says(engine, algorithm, mu):
    """The mean over local steps of the loss at each one's first gradient, and the mean and mean squared loss at the
    model received; three numbers up."""
    problem = quadratic()
    result, latest = run(problem, Curious(), algorithm, rounds=9, engine=engine), {}
    for record, _, reports in replay(problem, result, mu):
        latest |= reports
        assert record.bytes_up == 2 * (5 + 3) * 8
        assert record.bytes_down == 2 * 5 * 8
    for name in Curious().reports:
        found = result.selection[f"reported.{name}"].numpy()
        np.testing.assert_allclose(found, [latest[i][name] for i in range(7)], rtol=0, atol=1e-12)


@pytest.mark.parametrize("engine", ["loop", "batched"])
@pytest.mark.parametrize(("algorithm", "mu"), FULL_BATCH, ids=["FedAvg", "FedMoS"])
def test_rpow_d_goes_by_the_reported_training_loss(engine, algorithm, mu):
    """With all as candidates: those never seen first, then the m whose last report is largest. A number up each."""
    problem, known, m = quadratic(), {}, 2
    result = run(problem, fm.PowerOfChoice(m=m, d=7, loss="reported"), algorithm, rounds=10, engine=engine)
    by_report = 0
    for record, _, reports in replay(problem, result, mu):
        unseen = set(range(7)) - set(known)
        assert len(set(record.cohort) & unseen) == min(m, len(unseen))
        ranked = sorted(known, key=known.get, reverse=True)
        assert set(record.cohort) - unseen == set(ranked[: m - min(m, len(unseen))])
        assert record.weights == [0.5, 0.5]
        by_report += not unseen
        assert record.bytes_down == m * 5 * 8
        assert record.bytes_up == m * (5 + 1) * 8
        assert record.probed == 0
        known |= {i: report["loss"] for i, report in reports.items()}
    assert by_report == 6


@pytest.mark.parametrize("engine", ["loop", "batched"])
def test_pow_d_goes_by_the_local_losses_at_x(engine):
    """With all as candidates, the cohort is the m clients whose f_i(x), computed independently, is largest."""
    problem = quadratic()
    result, cohorts = run(problem, fm.PowerOfChoice(m=3, d=7), rounds=6, engine=engine), set()
    for record, x, _ in replay(problem, result):
        f = [sample_losses(problem, i, x).mean() for i in range(7)]
        assert record.cohort == sorted(sorted(range(7), key=f.__getitem__, reverse=True)[:3])
        cohorts.add(tuple(record.cohort))
    assert len(cohorts) > 1


def test_a_probe_is_the_mean_local_loss_at_x():
    """Answers come in the order asked, at the model of the round; each costs its samples, x down and a number up."""
    problem, curious = quadratic(), Curious(ask=(5, 1, 3))
    for (record, x, _), answer in zip(replay(problem, run(problem, curious)), curious.notes, strict=True):
        np.testing.assert_allclose(answer, [sample_losses(problem, i, x).mean() for i in curious.ask], atol=1e-12)
        assert record.probed == sum(problem.n[i] for i in curious.ask)
        assert record.bytes_up == (2 * 5 + 3) * 8
        assert record.bytes_down == len({*record.cohort, *curious.ask}) * 5 * 8


def test_gradients_asked_are_those_at_x():
    problem, curious = quadratic(), Curious(ask=(5, 1, 3), what="gradients")
    for (record, x, _), answer in zip(replay(problem, run(problem, curious)), curious.notes, strict=True):
        np.testing.assert_allclose(answer, [problem.gradient(i, x) for i in curious.ask], atol=1e-12)
        assert record.probed == sum(problem.n[i] for i in curious.ask)
        assert record.bytes_up == (2 * 5 + 3 * 5) * 8


def test_a_batch_probe_is_the_loss_of_one_random_batch():
    """cpow-d: min(B, n) distinct samples, all subsets equally likely, drawn by client and round apart."""
    base, clients, B = quadratic(sizes=(5,), importance=(1,)), 600, 2
    problem = Quadratic(base.samples * clients, np.ones(clients), base.x0)
    curious = Curious(ask=tuple(range(clients)), what="batch")
    history = run(problem, curious, rounds=2, batch_size=B).history
    subsets = list(itertools.combinations(range(5), B))
    losses = sample_losses(base, 0, base.x0)
    means = np.array([losses[list(s)].mean() for s in subsets])
    distance = np.abs(curious.notes[0][:, None] - means)
    assert (distance.min(1) < 1e-12).all()
    seen = Counter(distance.argmin(1).tolist())
    assert surprise(seen, dict.fromkeys(range(len(subsets)), 1 / len(subsets))) > RARE
    again = np.abs(curious.notes[1][:, None] - curious.notes[1][None]) < 1e-12
    first = np.abs(curious.notes[0][:, None] - curious.notes[0][None]) < 1e-12
    assert (again != first).any()
    assert history[0].probed == clients * B


@pytest.mark.parametrize(("B", "probed"), [(4, 5 * 4 + 3 + 4), (None, 46), (100, 46)])
def test_batch_probes_count_their_samples(B, probed):
    """At most B of each client's 5, 9, 3, 12, 7, 4, 6 samples."""
    result = run(quadratic(), fm.PowerOfChoice(m=2, d=7, loss="batch"), batch_size=B, rounds=2)
    assert [r.probed for r in result.history] == [probed] * 2


WIRES = {
    "FedAvg": (fm.FedAvg(lr=LR), 1, 1),
    "FedCM": (fm.FedCM(lr=LR), 2, 1),
    "Scaffold": (fm.Scaffold(lr=LR), 2, 2),
    "MimeMom": (fm.Mime(lr=LR, beta=0.9), 3, 2),
}


@pytest.mark.parametrize("name", WIRES)
@pytest.mark.parametrize("loss", ["full", "batch"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_what_power_of_choice_costs(name, loss, dtype):
    """x to d candidates and a number from each; to those chosen, only what else the algorithm sends."""
    algorithm, down, up = WIRES[name]
    m, d, D, n = 2, 4, 5, 6
    problem = quadratic(sizes=(n,) * 7)
    result = run(problem, fm.PowerOfChoice(m=m, d=d, loss=loss), algorithm, dtype=dtype, batch_size=4, rounds=2)
    for record in result.history:
        assert len(record.cohort) == m
        assert record.bytes_down == (d - m + m * down) * D * dtype.itemsize
        assert record.bytes_up == (m * up * D + d) * dtype.itemsize
        assert record.probed == d * {"full": n, "batch": 4}[loss]


def test_samples_computed_only_for_selection_are_counted():
    """ActiveFL and Oort have the cohort evaluate all its data at x, for selection alone: `probed` says so."""
    for selector in (fm.ActiveFL(m=2), fm.Oort(m=2)):
        for record in run(quadratic(sizes=(6,) * 7), selector, rounds=2, batch_size=2).history:
            assert record.bytes_up == 2 * (5 + 1) * 8
            assert record.probed == 2 * 6


# ----------------------------------------------------------------------------------------------- CACS


def three_camps() -> tuple[Quadratic, list[set[int]]]:
    """Nine clients whose minima lie far out in three directions, two of them opposite, numbered across camps."""
    rng = np.random.default_rng(3)
    centres = [np.array(c, dtype=float) for c in ([9, 0, 0], [-9, 0, 0], [0, 9, 0])]
    samples = []
    for i in range(9):
        a = np.ones((4 + i, 3))
        samples.append((a, a * (centres[i % 3] + rng.normal(0, 0.5, (4 + i, 3)))))
    return Quadratic(samples, np.arange(1, 10), np.zeros(3)), [{0, 3, 6}, {1, 4, 7}, {2, 5, 8}]


@pytest.mark.parametrize("engine", ["loop", "batched"])
@pytest.mark.parametrize("name", ["FedAvg", "Scaffold"])
def test_cacs_warms_up_then_asks_everyone_for_gradients(engine, name):
    """Everyone with weight p_i for `warmup` rounds; then N vectors up, x down to all N; from then on like ACS."""
    (problem, _), warmup, D, N = three_camps(), 2, 3, 9
    algorithm, down, up = WIRES[name]
    selector = fm.CACS(m=3, warmup=warmup)
    history = run(problem, selector, algorithm, rounds=5, engine=engine, batch_size=2).history
    for t, record in enumerate(history):
        S = len(record.cohort)
        if t < warmup:
            assert record.cohort == list(range(N))
            assert record.weights == pytest.approx(problem.p)
        else:
            assert S <= 3
            assert [round(3 * w, 9) in (1, 2, 3) for w in record.weights] == [True] * S
            assert sum(record.weights) == pytest.approx(1)
        asked = N if t == warmup else 0
        assert record.bytes_down == (down * S + (asked - S if asked else 0)) * D * 8
        assert record.bytes_up == (up * S + asked) * D * 8
        assert record.probed == (sum(problem.n) if asked else 0)


def test_the_warm_up_is_the_run_s_own_algorithm_and_is_kept():
    problem, _ = three_camps()
    warm = run(problem, fm.CACS(m=3, warmup=3), fm.FedMoS(lr=LR), rounds=3)
    full = run(problem, fm.Full(), fm.FedMoS(lr=LR), rounds=3)  # at once; the warm-up in chunks of a cohort
    assert torch.allclose(warm.params, full.params, rtol=0, atol=1e-14)


@pytest.mark.parametrize("warmup", [0, 2])
def test_cacs_finds_clients_that_pull_the_same_way(warmup):
    """Three camps of gradients become three clusters; with two, the opposite camps stay apart."""
    problem, camps = three_camps()

    def found(clusters: int | None) -> list[set[int]]:
        selector = fm.CACS(m=3, clusters=clusters, warmup=warmup)
        labels = run(problem, selector, rounds=warmup + 1).selection["state.cluster"].tolist()
        return [{i for i in range(9) if labels[i] == c} for c in sorted(set(labels))]

    assert sorted(map(sorted, found(3))) == sorted(map(sorted, camps))
    assert sorted(map(sorted, found(None))) == sorted(map(sorted, camps))
    assert len(found(1)) == 1
    assert sorted(map(len, found(9))) == [1] * 9
    assert not any({0, 3, 6, 1, 4, 7} <= cluster for cluster in found(2))


def test_cacs_clusters_by_angle_not_by_length():
    """Gradients along one line in each of two directions, of lengths 1 to 1000."""
    g = torch.tensor([[1.0, 0], [0, 1], [1000, 1], [1, 1000], [30, -1], [-1, 30]], dtype=torch.float64)
    view = view_of([1] * 6, ask_gradients=lambda ids: g[ids])
    fm.CACS(m=2, warmup=0).select(view)
    label = view.state["cluster"].tolist()
    assert label[0] == label[2] == label[4] != label[1]
    assert label[1] == label[3] == label[5]


@pytest.mark.parametrize("case", range(12))
def test_cacs_orders_by_cluster_then_importance(case):
    """Clusters by Σp, clients inside by p, both descending; then the greedy bins, whose sums are m p_i and one."""
    rng = np.random.default_rng(case)
    N = int(rng.integers(1, 15))
    m = int(rng.integers(1, N + 1))
    counts = rng.integers(0, [4, 1000][case % 2], N) + (np.arange(N) == 0)
    cluster = rng.integers(0, rng.integers(1, N + 1), N)
    exact = [Fraction(int(c), int(counts.sum())) for c in counts]
    mass = {c: sum(q for q, k in zip(exact, cluster, strict=True) if k == c) for c in set(cluster.tolist())}
    order = sorted(range(N), key=lambda i: (-mass[cluster[i]], cluster[i], -exact[i], i))
    p = tensor([float(q) for q in exact])
    bins = fm.CACS(m=m).bins(p, torch.from_numpy(cluster)).numpy()
    np.testing.assert_allclose(bins.sum(0), 1, atol=1e-12)
    np.testing.assert_allclose(bins.sum(1), m * p.numpy(), atol=1e-12)
    masses = sorted(mass.values())
    if all(b - a > Fraction(1, 10**9) for a, b in itertools.pairwise(masses)):  # else which comes first is open
        np.testing.assert_allclose(bins, np.array(greedy_bins(order, exact, m), dtype=float), atol=1e-12)


# --------------------------------------------------------------------------------------------- purity

EVERY = {
    "ACS": fm.ACS(m=3),
    "ActiveFL": fm.ActiveFL(m=3, alpha1=0.3),
    "Bernoulli": fm.Bernoulli(rate=0.3),
    "CACS": fm.CACS(m=3, warmup=1),
    "Cyclic": fm.Cyclic(m=3),
    "FixedCohorts": fm.FixedCohorts([[0, 1], [2]]),
    "Full": fm.Full(),
    "MD": fm.MD(m=3),
    "Oort": fm.Oort(m=3),
    "PowerOfChoice": fm.PowerOfChoice(m=3, d=5),
    "PowerOfChoice, batch": fm.PowerOfChoice(m=3, d=5, loss="batch"),
    "PowerOfChoice, reported": fm.PowerOfChoice(m=3, d=5, loss="reported"),
    "Uniform": fm.Uniform(m=3),
}


def test_every_selector_is_tested():
    assert {name.split(",")[0] for name in EVERY} == set(fm.selectors())


def rich_view(seed: int, t: int) -> fm.View:
    rng = np.random.default_rng(0)
    losses = np.where(rng.random(12) < 0.3, np.nan, rng.random(12))
    gradients = torch.from_numpy(rng.normal(size=(12, 4)))
    last = torch.from_numpy(np.where(np.isnan(losses), -1, 0))
    view = view_of(
        rng.random(12), rng.integers(1, 30, 12).tolist(), losses, last=last, durations=tensor(rng.random(12))
    )
    view.seed, view.round = seed, t
    view.ask_losses = lambda ids, batch: gradients[ids, 0]
    view.ask_gradients = lambda ids: gradients[ids]
    return view


def copied(view: fm.View) -> dict:
    values = {f.name: getattr(view, f.name) for f in fields(view)}
    values |= {f"reported.{name}": v for name, v in view.reported.items()}
    return {name: v.clone() for name, v in values.items() if isinstance(v, torch.Tensor)}


@pytest.mark.parametrize("name", EVERY)
def test_selection_is_a_pure_function(name):
    """An equal view gives the same clients and weights, used or fresh, and is left as it was."""
    selector = EVERY[name]
    for t in (1, 2, 5):
        view = rich_view(seed=1, t=t)
        before = copied(view)
        first = [v.tolist() for v in selector.select(view)]
        assert [v.tolist() for v in selector.select(view)] == first
        assert [v.tolist() for v in selector.select(rich_view(seed=1, t=t))] == first
        assert all(torch.equal(v.nan_to_num(-1.0), before[k].nan_to_num(-1.0)) for k, v in copied(view).items())


@pytest.mark.parametrize("name", EVERY)
def test_selection_follows_seed_and_round(name):
    """Both change the draws of every selector that draws."""
    selector = EVERY[name]

    def draws(seed: int, rounds: Sequence[int]) -> list:
        return [sorted(selector.select(rich_view(seed, t))[0].tolist()) for t in rounds]

    rounds = range(1, 7)
    assert (draws(1, rounds) != draws(2, rounds)) == (name not in ("Full", "FixedCohorts"))
    assert (draws(1, rounds) != draws(1, range(2, 8))) == (name != "Full")


AHEAD = [fm.MD, fm.ACS, fm.Uniform, *(lambda m, w=w: fm.Uniform(m=m, weights=w) for w in ("cohort", "mean"))]


@pytest.mark.parametrize("make", AHEAD)
@pytest.mark.parametrize(("N", "m"), [(12, 1), (12, 5), (12, 12), (700, 30), (700, 300)])
def test_many_rounds_drawn_at_once_are_those_drawn_one_by_one(make, N, m):
    view = view_of((np.random.default_rng(N).random(N) + 0.01).tolist())
    ids, weights = make(m=m).select_ahead(view, range(3, 40))
    one_by_one = list(drawn(make(m=m), view, rounds=37, start=3))
    assert list(zip(ids.tolist(), weights.tolist(), strict=True)) == one_by_one


@pytest.mark.parametrize("selection", [fm.Uniform(m=3), fm.MD(m=5), fm.ACS(m=5)], ids=lambda s: type(s).__name__)
@pytest.mark.parametrize("seed", [0, 5, 2**60 + 1])
def test_a_run_s_cohorts_are_the_selector_s(quick, tmp_path, selection, seed):
    """Over more rounds than are drawn at once, whole or resumed; repeats are summed."""
    whole = quick(selection=selection, rounds=40, seed=seed, eval_every=40)
    for rounds in (7, 23, 40):
        parts = quick(selection=selection, rounds=rounds, seed=seed, eval_every=40, out=tmp_path / "run", resume=True)
    assert [(r.cohort, r.weights) for r in parts.history] == [(r.cohort, r.weights) for r in whole.history]
    assert digest(parts) == digest(whole)
    picks = Counter(i for r in whole.history for i in r.cohort)
    view = view_of([1.0] * len(whole.selection["picks"]))
    view.seed = seed
    by_hand = [sorted(set(ids)) for ids, _ in drawn(selection, view, rounds=40)]
    if isinstance(selection, fm.Uniform):  # the others follow the importances, which the view does not know
        assert [r.cohort for r in whole.history] == by_hand
    assert [picks[i] for i in range(view.N)] == whole.selection["picks"].tolist()


class OddOnly(fm.Uniform):
    """A selector that inherits how to draw ahead, but selects otherwise."""

    def select(self, view: fm.View) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.arange(1, view.N, 2), torch.ones(view.N // 2, dtype=torch.float64)


def test_a_selection_of_one_s_own_is_not_drawn_ahead_by_another(quick):
    assert all(i % 2 for r in quick(selection=OddOnly(m=3), rounds=5).history for i in r.cohort)


def test_a_selection_of_the_object_s_own_counts(quick):
    selector = fm.Uniform(m=3)
    object.__setattr__(selector, "select", lambda view: ([view.round % 2], [1.0]))
    assert [r.cohort for r in quick(selection=selector, rounds=5).history] == [[0], [1], [0], [1], [0]]


def digest(result: fm.Result) -> str:
    return hashlib.sha256(result.params.numpy().tobytes()).hexdigest()


LASTING = {
    "rpow-d": (fm.PowerOfChoice(m=3, d=12, loss="reported"), {}),
    "ActiveFL": (fm.ActiveFL(m=4, alpha1=0.2, alpha2=1.0), {}),
    "Oort": (fm.Oort(m=4, exploration=0.3, blacklist=2), {"system": fm.System(speed=fm.LogNormal(median=100))}),
    "CACS": (fm.CACS(m=4, warmup=2), {}),
    "CACS, some away": (fm.CACS(m=4, warmup=2), {"availability": fm.RandomAvailability(0.6)}),
}


@pytest.mark.parametrize("name", LASTING)
def test_a_resumed_run_selects_as_if_never_stopped(quick, tmp_path, name):
    """Stopped after rounds 1, 2 and 5, saved and resumed each time: the same cohorts, the same bits."""
    selection, more = LASTING[name]
    whole = quick(selection=selection, rounds=8, **more)
    for rounds in (1, 2, 5, 8):
        parts = quick(selection=selection, rounds=rounds, out=tmp_path / "run", resume=True, **more)
    assert [(r.cohort, r.weights, r.clock) for r in parts.history] == [
        (r.cohort, r.weights, r.clock) for r in whole.history
    ]
    assert digest(parts) == digest(whole)
    assert parts.selection.keys() == whole.selection.keys()
    for key, value in whole.selection.items():
        assert torch.equal(parts.selection[key].nan_to_num(-1.0), value.nan_to_num(-1.0))
    assert name.startswith("CACS") == ("state.cluster" in whole.selection)


@dataclass(frozen=True)
class Diary(fm.Selector):
    """A user's selector: goes on from where it last was, by as many clients as it has made steps."""

    declared: tuple[str, ...] = ("place", "steps")
    in_place: bool = False

    @property
    def state(self):
        return self.declared

    def select(self, view):
        view.state.setdefault("place", torch.tensor(0))
        view.state.setdefault("steps", torch.tensor(0))
        if self.in_place:
            view.state["steps"] += 1
            view.state["place"] += view.state["steps"]
        else:
            view.state["steps"] = view.state["steps"] + 1
            view.state["place"] = view.state["place"] + view.state["steps"]
        return view.state["place"].view(1) % view.N, torch.ones(1)


def test_a_user_s_selector_state_is_checkpointed(quick, tmp_path):
    expected = [[sum(range(1, t + 2)) % 20] for t in range(6)]
    assert [r.cohort for r in quick(selection=Diary(), rounds=6).history] == expected
    quick(selection=Diary(), rounds=2, out=tmp_path / "run")
    resumed = quick(selection=Diary(), rounds=6, out=tmp_path / "run", resume=True)
    assert [r.cohort for r in resumed.history] == expected
    assert int(resumed.selection["state.place"]) == 21


def test_an_interrupted_round_leaves_the_selector_s_state_alone(quick, tmp_path):
    """Also where a selector changes it in place: the round is played again as if for the first time."""
    calls = []

    class Impatient(torch.nn.Linear):
        def forward(self, x):
            if torch.is_grad_enabled():
                calls.append(1)
                if len(calls) == 5:  # two local steps a round: in the third
                    raise KeyboardInterrupt
            return super().forward(x.flatten(1))

    model, diary = Impatient(64, 10), Diary(in_place=True)
    stopped = quick(model=model, selection=diary, rounds=6, engine="loop", out=tmp_path / "run")
    assert len(stopped.history) == 2
    resumed = quick(model=model, selection=diary, rounds=6, engine="loop", out=tmp_path / "run", resume=True)
    assert [r.cohort for r in resumed.history] == [[sum(range(1, t + 2)) % 20] for t in range(6)]


@dataclass(frozen=True)
class Asking(fm.Selector):
    reports = ("loss", "mood")

    def select(self, view):
        return torch.tensor([0]), torch.ones(1)


@dataclass(frozen=True)
class Nobody(fm.Selector):
    def select(self, view):
        return torch.empty(0, dtype=torch.int64), torch.empty(0)


@pytest.mark.parametrize(
    ("selector", "sentence"),
    [
        (Diary(declared=("steps",)), "Diary: 'state' must name place"),
        (Asking(), "Asking: 'reports' must be of loss, start_loss, start_squared_loss, got 'mood'"),
        (Nobody(), "Nobody: 'select' must return at least one client, got none"),
    ],
    ids=["undeclared state", "unknown report", "empty cohort"],
)
def test_a_selector_is_held_to_its_declaration(quick, selector, sentence):
    with pytest.raises(ValueError) as error:
        quick(selection=selector)
    assert str(error.value) == sentence


IDS = {
    "list": [7, 2, 7],
    "array": np.array([7, 2, 7]),
    "int32": np.array([7, 2, 7], dtype=np.int32),
    "uint8": np.array([7, 2, 7], dtype=np.uint8),
    "uint64": np.array([7, 2, 7], dtype=np.uint64),
    "tensor of int16": torch.tensor([7, 2, 7], dtype=torch.int16),
    "backwards": np.array([7, 2, 7])[::-1],
}


@pytest.mark.parametrize("away", [None, fm.Alternating(groups=1, drop=0)], ids=["everyone", "those available"])
@pytest.mark.parametrize("kind", IDS)
def test_client_numbers_of_any_kind(quick, kind, away):
    """The same cohort, and the same answers to questions."""

    class Taking(fm.Selector):
        def __init__(self, ids):
            self.ids, self.answers = ids, []

        def select(self, view):
            self.answers += [view.probe(self.ids, batch=True), view.gradients(self.ids)[0]]
            return self.ids, [0.5, 0.2, 0.3]

    one, other = Taking(torch.tensor([7, 2, 7])), Taking(IDS[kind])
    first, second = (quick(selection=s, availability=away, engine="loop") for s in (one, other))
    assert second.history[0].cohort == [2, 7]
    assert second.history[0].weights == pytest.approx([0.2, 0.8])
    assert torch.allclose(first.params, second.params, rtol=0, atol=1e-6)
    for a, b in zip(one.answers, other.answers, strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize("what", ["p", "n", "last", "picks", "durations"])
def test_a_selector_that_writes_into_its_view_is_refused(quick, digits, what):
    class Writing(fm.Selector):
        def select(self, view):
            getattr(view, what)[0] = 3
            return [0], [1.0]

    own = replace(digits, importance=digits.importance.clone())  # it is refused afterwards: the others' stays whole
    with pytest.raises(ValueError, match="Writing: 'select' must leave what the view shows as it is; use a clone"):
        quick(selection=Writing(), data=own)


def test_a_selector_s_state_is_of_tensors(quick):
    class Counting(fm.Selector):
        state = ("count",)

        def select(self, view):
            view.state["count"] = 3
            return [0], [1.0]

    with pytest.raises(ValueError, match="Counting: 'state' must hold tensors, got 3 for 'count'"):
        quick(selection=Counting())


def test_nobody_may_be_chosen_or_asked(quick):
    class Waiting(fm.Selector):
        def select(self, view):
            assert view.probe([]).shape == (0,)
            assert view.gradients([]).shape == (0, 650)
            return [], []

    result = quick(selection=Waiting(), availability=fm.Alternating(groups=1, drop=0))
    assert [(r.cohort, r.bytes_up) for r in result.history] == [([], 0)] * 3


def test_questions_need_a_run():
    with pytest.raises(ValueError, match=r"^Cannot ask clients because this view belongs to no run; use"):
        fm.PowerOfChoice(m=1, d=2).select(view_of(P6))
