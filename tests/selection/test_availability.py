"""Availability models, and selection among available clients."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from scipy.special import chdtrc

import fedmos as fm
from helpers.clocked import RARE, SIGMA, digest
from helpers.problems import quadratic


def trace(*rounds: set[int]) -> fm.Trace:
    """Who is there in rounds 0, 1, …"""
    return fm.Trace([(i, t, t + 1) for t, here in enumerate(rounds) for i in sorted(here)])


def there(model: fm.Availability, t: int, N: int, seed: int = 0) -> set[int]:
    present = model.available(seed, t, N)
    assert present.shape == (N,)
    assert present.dtype == torch.bool
    return set(present.nonzero().flatten().tolist())


# ------------------------------------------------------------------------------------------- the models
@pytest.mark.parametrize(
    ("N", "groups", "drop", "away"),
    [(100, 2, 0.1, [5, 5]), (25, 2, 0.1, [1, 1]), (30, 3, 0.25, [2, 2, 2]), (8, 2, 0.0, [0, 0]), (7, 1, 0.5, [3])],
)
def test_alternating_groups(N, groups, drop, away):
    """Fixed groups of N/groups take turns; exactly ⌊drop · size⌋ of the group are away."""
    model = fm.Alternating(groups=groups, drop=drop)
    members: list[set[int]] = [set() for _ in range(groups)]
    for t in range(60 * groups):
        members[t % groups] |= there(model, t, N)
    assert sorted(i for group in members for i in group) == list(range(N))  # disjoint, and everyone in one
    assert max(map(len, members)) - min(map(len, members)) <= 1
    for t in range(4 * groups):
        assert len(there(model, t, N)) == len(members[t % groups]) - away[t % groups]
        assert there(model, t, N) <= members[t % groups]


@pytest.mark.parametrize(("drop", "away"), [(0.1, 10), (0.29, 29), (0.57, 57)])
def test_alternating_drops_the_share_as_written(drop, away):
    """Of a hundred, .29 are 29, though 0.29 · 100 is a little less in floating point."""
    assert len(there(fm.Alternating(groups=1, drop=drop), 0, 100)) == 100 - away


def test_alternating_is_seeded_and_drops_evenly():
    """The groups depend on the seed alone; who is away changes from round to round, and is anyone as often."""
    model, N, R = fm.Alternating(drop=0.2), 20, 1000
    assert there(fm.Alternating(drop=0.0), 0, N) == there(fm.Alternating(drop=0.0), 2, N)
    assert there(fm.Alternating(drop=0.0), 0, N) != there(fm.Alternating(drop=0.0), 0, N, seed=1)
    here = [there(model, t, N) for t in range(0, 2 * R, 2)]
    assert here[:5] == [there(model, t, N) for t in range(0, 10, 2)]
    assert len({frozenset(h) for h in here}) > 30  # of C(10, 2) = 45 ways to be away
    group = set.union(*here)
    away = np.array([sum(i not in h for h in here) for i in group])
    assert chdtrc(9, ((away - 0.2 * R) ** 2).sum() / (R * 0.2 * 0.8 * 10 / 9)) > RARE


@pytest.mark.parametrize("p", [0.05, 0.6, 1.0])
def test_random_availability_is_independent(p):
    """Each client, each round, with probability p: by client, by round, and of neighbours together."""
    N, R = 300, 100
    here = torch.stack([fm.RandomAvailability(p).available(3, t, N) for t in range(R)]).double().numpy()
    spread = math.sqrt(p * (1 - p))
    assert np.abs(here.mean(0) - p).max() <= 4.5 * spread / math.sqrt(R) + 1e-12
    assert np.abs(here.mean(1) - p).max() <= 4.5 * spread / math.sqrt(N) + 1e-12
    for a, b in ((here[1:], here[:-1]), (here[:, 1:], here[:, :-1])):
        assert abs(((a - p) * (b - p)).mean()) <= 4.5 * spread**2 / math.sqrt(a.size) + 1e-12
    again = fm.RandomAvailability(p).available(3, 0, N).numpy()
    assert (again == here[0]).all()
    assert p == 1 or (fm.RandomAvailability(p).available(4, 0, N).numpy() != here[0]).any()


ROWS = [(0, 0, 3), (2, 1, 2), (2, 4, 6), (1, 5, 5), (3, 0, 10**9), (0, 2, 4)]


def test_a_trace_is_followed_exactly(tmp_path):
    """From ≤ t < to: spans that touch, overlap or are empty; the same from rows and from CSV."""
    path = tmp_path / "trace.csv"
    path.write_text("to,client,note,from\n" + "".join(f"{to},{i},x,{start}\n" for i, start, to in ROWS))
    expected = [{0, 3}, {0, 2, 3}, {0, 3}, {0, 3}, {2, 3}, {2, 3}, {3}]
    for model in (fm.Trace(ROWS), fm.Trace(path), fm.Trace(str(path))):
        assert [there(model, t, 5) for t in range(7)] == expected
        assert there(model, 0, 5, seed=9) == expected[0]


def test_a_trace_from_parquet(tmp_path):
    pyarrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    path = tmp_path / "trace.parquet"
    columns = {name: [row[k] for row in ROWS] for k, name in enumerate(("client", "from", "to"))}
    parquet.write_table(pyarrow.table(columns), path)
    assert fm.Trace(path) == fm.Trace(ROWS)
    fractions = columns | {"to": [to + 0.5 for to in columns["to"]]}
    for bad in ({"client": [0], "from": [0]}, columns | {"from": [None] * len(ROWS)}, fractions):
        parquet.write_table(pyarrow.table(bad), path)
        with pytest.raises(ValueError, match="it needs whole numbers in columns client, from, to"):
            fm.Trace(path)
    path.write_bytes(b"not parquet")
    with pytest.raises(ValueError, match="Cannot read the trace"):
        fm.Trace(path)
    with pytest.raises(FileNotFoundError, match=r"Cannot read the trace .*none\.parquet because it does not exist"):
        fm.Trace(tmp_path / "none.parquet")


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("client,from\n1,2\n", "it needs whole numbers in columns client, from, to"),
        ("client,from,to\n1,0,2\n1,zero,3\n", "it needs whole numbers in columns client, from, to"),
        ("client,from,to\n1,0.5,3\n", "it needs whole numbers in columns client, from, to"),
        ("client,from,to\n1,0\n", "it needs whole numbers in columns client, from, to"),
        ("client,from,to\n", "Trace: 'rows' must hold at least one row"),
        ("", "Trace: 'rows' must hold at least one row"),
        ("client,from,to\n1,5,3\n", "Trace: 'rows' must be of (client ≥ 0, from, to ≥ from), got (1, 5, 3)"),
        ("client,from,to\n-1,0,3\n", "Trace: 'rows' must be of (client ≥ 0, from, to ≥ from), got (-1, 0, 3)"),
    ],
)
def test_a_bad_trace_gets_a_sentence(tmp_path, text, sentence):
    path = tmp_path / "trace.csv"
    path.write_text(text)
    with pytest.raises(ValueError) as error:
        fm.Trace(path)
    assert sentence in str(error.value)
    assert "\n" not in str(error.value)


def test_a_trace_must_fit_the_federation(quick, tmp_path):
    with pytest.raises(FileNotFoundError, match=r"^Cannot read the trace .*none\.csv because it does not exist$"):
        fm.Trace(tmp_path / "none.csv")
    with pytest.raises(ValueError, match=r"^Trace: 'rows' must hold client numbers < 20, got 20$"):
        quick(availability=fm.Trace([(20, 0, 1)]))
    with pytest.raises(ValueError, match=r"^Alternating: 'groups' must be ≤ the number of clients \(20\), got 21$"):
        quick(availability=fm.Alternating(groups=21))


# ------------------------------------------------------------------------------------- with every selector
EVERY = {
    "ACS": fm.ACS(m=4),
    "ActiveFL": fm.ActiveFL(m=4),
    "Bernoulli": fm.Bernoulli(rate=0.3),
    "CACS": fm.CACS(m=4, warmup=2),
    "Clustered": fm.Clustered(m=4),
    "Clustered, similarity": fm.Clustered(m=4, by="similarity"),
    "Cyclic": fm.Cyclic(m=20),
    "DELTA": fm.DELTA(m=4),
    "FedCor": fm.FedCor(m=4, warmup=2, steps=5),
    "FixedCohorts": fm.FixedCohorts([[0, 3, 5, 9], [8, 3, 2]]),
    "Full": fm.Full(),
    "MD": fm.MD(m=4),
    "OCS": fm.OCS(m=4, d=4),
    "OCS, all train": fm.OCS(m=4),
    "Oort": fm.Oort(m=4, exploration=0.5),
    "PowerOfChoice": fm.PowerOfChoice(m=4, d=8),
    "PowerOfChoice, batch": fm.PowerOfChoice(m=4, d=8, loss="batch"),
    "PowerOfChoice, reported": fm.PowerOfChoice(m=4, d=8, loss="reported"),
    "UCB": fm.UCB(m=4),
    "Uniform": fm.Uniform(m=4),
}

HERE = [set(range(0, 20, 2)) | {3}, {3}, set(), set(range(3, 18)), {3, 5, 8}, {1, 3, 8, 19}]


def test_every_selector_is_tested():
    assert {name.split(",")[0] for name in EVERY} == set(fm.selectors())


@pytest.mark.parametrize("name", EVERY)
def test_availability_composes(quick, name):
    """Only those there are chosen, whoever was seen before; a round with nobody is recorded, and leaves the model."""
    selector = EVERY[name]
    result = quick(selection=selector, availability=trace(*HERE), rounds=6)
    m = getattr(selector, selector.cohort_field, 1) or 1
    for record, here in zip(result.history, HERE, strict=True):
        assert set(record.cohort) <= here
        assert record.available == len(here)
        assert record.short == (len(here) < m)
        assert record.abandoned == (not record.cohort) == (not here)
        assert len(record.cohort) <= max(m, 20)
        if here and name not in (
            "Bernoulli",
            "MD",
            "ACS",
            "CACS",
            "Clustered",
            "Clustered, similarity",
            "DELTA",
            "FixedCohorts",
        ):
            assert len(record.cohort) == (len(here) if name in ("Full", "OCS, all train") else min(m, len(here)))
        if here and name not in ("Uniform", "DELTA", "OCS"):
            assert sum(record.weights) == pytest.approx(1)
    nobody = result.history[2]
    assert nobody.cohort == nobody.weights == []
    assert nobody.bytes_down == nobody.bytes_up == nobody.probed == 0
    assert nobody.train_loss == result.history[1].train_loss
    assert result.short_rounds == sum(len(here) < m for here in HERE)


def test_a_round_with_nobody_changes_nothing(quick):
    """Not the model, nor what server and clients keep; the next round goes on from there."""
    algorithm, everyone = fm.Scaffold(lr=0.1), set(range(20))
    cohorts = fm.FixedCohorts([[0, 1], [2, 3], [1, 2]])
    run = {"algorithm": algorithm, "selection": cohorts}
    one = quick(**run, rounds=1, availability=trace(everyone))
    two = quick(**run, rounds=2, availability=trace(everyone, set(), everyone))
    assert digest(one) == digest(two)
    assert torch.equal(one.server_state["c"], two.server_state["c"])
    assert one.clients.keys() == two.clients.keys()
    assert two.last.tolist() == one.last.tolist()
    assert two.short_rounds == 1
    never = quick(**run, rounds=2, availability=fm.Trace([(0, 10, 11)]))
    assert never.short_rounds == 2
    assert all(r.abandoned for r in never.history)


@pytest.mark.parametrize(
    "selector", [fm.Cyclic(m=4), fm.FixedCohorts([[0, 3], [8, 2]])], ids=["Cyclic", "FixedCohorts"]
)
def test_a_round_whose_whole_group_is_away(quick, selector):
    """Others are there, but it is not their turn: nobody is chosen, and the record says so."""
    groups = [set(r.cohort) for r in quick(selection=selector, rounds=2).history]
    away = trace(set(range(20)), set(range(20)) - groups[1], set(range(20)))
    result = quick(selection=selector, rounds=3, availability=away)
    assert [r.abandoned for r in result.history] == [False, True, False]
    assert result.history[1].cohort == []
    assert result.history[1].train_loss == result.history[0].train_loss
    part = trace(set(range(20)), set(range(20)) - groups[1] | {max(groups[1])})
    assert quick(selection=selector, rounds=2, availability=part).history[1].cohort == [max(groups[1])]


@pytest.mark.parametrize("weights", ["unbiased", "cohort", "mean"])
def test_uniform_weights_among_those_available(quick, digits, weights):
    """(N/m) p_i, p_i/Σ_S p or 1/m, where N and p are of the available clients alone."""
    for record, here in zip(
        quick(selection=fm.Uniform(m=4, weights=weights), availability=trace(*HERE), rounds=6).history,
        HERE,
        strict=True,
    ):
        total, m = sum(float(digits.importance[i]) for i in here), min(4, len(here))
        p = {i: float(digits.importance[i]) / total for i in here}
        expected = {
            "unbiased": [len(here) / m * p[i] for i in record.cohort] if m else [],
            "cohort": [p[i] / sum(p[j] for j in record.cohort) for i in record.cohort],
            "mean": [1 / max(1, m)] * m,
        }
        assert record.weights == pytest.approx(expected[weights])


def test_full_weights_among_those_available(quick, digits):
    result = quick(selection=fm.Full(), availability=trace({1, 4, 7}), rounds=1)
    p = digits.importance[[1, 4, 7]]
    assert result.history[0].weights == pytest.approx((p / p.sum()).tolist())


@pytest.mark.parametrize("selector", [fm.Uniform(m=3), fm.MD(m=5), fm.ACS(m=3), fm.CACS(m=3, warmup=0)], ids=repr)
def test_unbiased_selection_is_unbiased_among_those_available(selector):
    """E[w_i] = p_i/Σ p of those available, over 200 rounds with the same five of seven."""
    problem, here, R = quadratic(), [0, 2, 3, 4, 6], 200
    work = {"loss": problem.loss, "local_steps": 1, "rounds": R, "eval_every": R, "dtype": torch.float64}
    rows = fm.Trace([(i, 0, R) for i in here])
    history = fm.run(problem.model(), problem.data(), fm.FedAvg(lr=0.01), selector, availability=rows, **work).history
    w = np.zeros((R, 7))
    for row, record in zip(w, history, strict=True):
        row[record.cohort] = record.weights
    expected = np.zeros(7)
    expected[here] = problem.p[here] / problem.p[here].sum()
    assert (np.abs(w.mean(0) - expected) <= SIGMA * w.std(0) / math.sqrt(R) + 1e-9).all()
    assert w.std(0)[here].max() > 0.01


@pytest.mark.parametrize("name", EVERY)
@pytest.mark.extended
def test_permanent_availability_equals_none(quick, name):
    """Bit for bit, for every selector; and a model that happens to let everyone in chooses the same clients."""
    selector = EVERY[name]
    plain = quick(selection=selector)
    always = quick(selection=selector, availability=fm.Always())
    assert digest(always) == digest(plain)
    assert [(r.cohort, r.weights, r.available) for r in always.history] == [
        (r.cohort, r.weights, 20) for r in plain.history
    ]
    all_in = quick(selection=selector, availability=fm.RandomAvailability(1.0))
    assert [r.cohort for r in all_in.history] == [r.cohort for r in plain.history]
    assert torch.allclose(all_in.params, plain.params, atol=1e-6)


def test_a_user_s_availability(quick):
    """Any subclass will do; one that forgets its method gets a sentence."""

    @dataclass(frozen=True)
    class Odd(fm.Availability):
        def available(self, seed, round, N):
            return torch.arange(N) % 2 == 1

    assert all(i % 2 for r in quick(availability=Odd()).history for i in r.cohort)
    with pytest.raises(TypeError, match=r"Availability must define available\(seed, round, N\)"):
        quick(availability=fm.Availability())


def test_clients_away_when_cacs_clusters_share_a_cluster(quick):
    """Whoever was away at the question forms one more cluster, and can be chosen later."""
    away = {4, 11, 12}
    result = quick(
        selection=fm.CACS(m=4, clusters=3, warmup=1),
        availability=trace(set(range(20)), set(range(20)) - away, away),
        rounds=3,
    )
    label = result.selection["state.cluster"].tolist()
    assert len({label[i] for i in away}) == 1
    assert {label[i] for i in away}.isdisjoint({label[i] for i in range(20) if i not in away})
    assert set(result.history[2].cohort) <= away
    D, S = len(result.params), len(result.history[1].cohort)
    assert result.history[1].bytes_up == (17 + S) * D * 4
    assert result.history[1].bytes_down == 17 * D * 4
