"""Who is there, how long a round takes, and what becomes of those who are away or late.

Traces are written by the tests, so that who is available is known without asking; clocks are computed by hand
from the specification's table of wires and from how many samples' gradients a client takes.
"""

from __future__ import annotations

import hashlib
import itertools
import math
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from scipy.special import chdtrc, ndtri

import fedmos as fm
from fedmos.rng import Purpose, stream
from reference import Quadratic, quadratic

RARE = 1e-4
"""What a χ² test refuses; z-tests refuse 4.5 sigma."""
SIGMA = 4.5


def digest(result: fm.Result) -> str:
    return hashlib.sha256(result.params.numpy().tobytes()).hexdigest()


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
    "Cyclic": fm.Cyclic(m=20),
    "FixedCohorts": fm.FixedCohorts([[0, 3, 5, 9], [8, 3, 2]]),
    "Full": fm.Full(),
    "MD": fm.MD(m=4),
    "Oort": fm.Oort(m=4, exploration=0.5),
    "PowerOfChoice": fm.PowerOfChoice(m=4, d=8),
    "PowerOfChoice, batch": fm.PowerOfChoice(m=4, d=8, loss="batch"),
    "PowerOfChoice, reported": fm.PowerOfChoice(m=4, d=8, loss="reported"),
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
    m = getattr(selector, "m", 1)
    for record, here in zip(result.history, HERE, strict=True):
        assert set(record.cohort) <= here
        assert record.available == len(here)
        assert record.short == (len(here) < m)
        assert record.abandoned == (not record.cohort) == (not here)
        assert len(record.cohort) <= max(m, 20)
        if here and name not in ("Bernoulli", "MD", "ACS", "CACS", "FixedCohorts"):
            assert len(record.cohort) == (len(here) if name == "Full" else min(m, len(here)))
        if here and name not in ("Uniform",):
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
def test_always_is_none(quick, name):
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


# ---------------------------------------------------------------------------------------------- profiles


def test_log_normal_profile():
    """ln v ~ N(ln median, σ²): its quantiles by χ², its mean and spread within 4.5 sigma; seeded."""
    N, median, sigma, bins = 20_000, 50.0, 0.7, 50
    key = stream(1, 0, 2, Purpose.AVAILABILITY)
    values = fm.LogNormal(median=median, sigma=sigma).values(N, key).numpy()
    z = np.log(values / median) / sigma
    assert abs(np.median(z)) < SIGMA * 1.2533 / math.sqrt(N)
    assert abs(z.std() - 1) < SIGMA / math.sqrt(2 * N)
    counts = np.histogram(z, [-np.inf, *ndtri(np.arange(1, bins) / bins), np.inf])[0]
    assert chdtrc(bins - 1, ((counts - N / bins) ** 2 / (N / bins)).sum()) > RARE
    assert (fm.LogNormal(median=median, sigma=0.0).values(5, key) == median).all()
    assert (fm.LogNormal(median=median).values(5, stream(2, 0, 2, Purpose.AVAILABILITY)).numpy() != values[:5]).all()


def test_profiles_given_in_full(tmp_path):
    """A constant, a sequence, or a column of a CSV file."""
    key = stream(0, 0, 0, Purpose.AVAILABILITY)
    assert fm.Constant(3).values(2, key).tolist() == [3.0, 3.0]
    path = tmp_path / "speed.csv"
    path.write_text("value,speed\n1,10\n2,20.5\n")
    assert fm.Table([4, 5.5]).values(2, key).tolist() == [4.0, 5.5]
    assert fm.Table(path, column="speed").values(2, key).tolist() == [10.0, 20.5]
    for make, sentence in (
        (lambda: fm.Table(path, column="pace"), "must have numbers in a column 'pace'"),
        (lambda: fm.Table([1, 0]), "PerClient: 'numbers' must be > 0, got 0"),
        (lambda: fm.Table([1, 2]).values(3, key), "PerClient: 'numbers' must hold one for each of 3 clients, got 2"),
        (lambda: fm.Constant(0), "Constant: 'value' must be > 0, got 0"),
        (lambda: fm.System(speed="fast"), "System: 'speed' must be > 0 or a profile, got 'fast'"),
        (lambda: fm.System(over_select=0.9), "System: 'over_select' must be ≥ 1, got 0.9"),
        (lambda: fm.System(quorum=1.1), "System: 'quorum' must be in [0, 1], got 1.1"),
    ):
        with pytest.raises(ValueError) as error:
            make()
        assert sentence in str(error.value)


def test_profiles_differ_between_speed_and_bandwidth(quick):
    """Three log-normal profiles of one run are drawn apart: a client slow in one is not slow in all."""
    run = {"selection": fm.FixedCohorts([[i] for i in range(20)]), "rounds": 20, "eval_every": 20}
    flat = {"speed": 1e12, "down": 1e12, "up": 1e12}
    found = []
    for name in flat:
        clock = [r.clock for r in quick(**run, system=fm.System(**flat | {name: fm.LogNormal(median=10)})).history]
        found.append(np.diff([0, *clock]))
    assert all(v.max() > 3 * v.min() for v in found)
    ranks = [np.argsort(np.argsort(v)) for v in found]
    assert np.abs(np.corrcoef(ranks)[np.triu_indices(3, 1)]).max() < 0.9


# ------------------------------------------------------------------------------------------------- clock

SPEED = (10.0, 25.0, 40.0, 8.0, 100.0, 16.0, 5.0)
DOWN = (100.0, 300.0, 50.0, 1000.0, 200.0, 80.0, 640.0)
UP = (30.0, 60.0, 90.0, 20.0, 45.0, 70.0, 15.0)
PROFILES = {"speed": fm.Table(SPEED), "down": fm.Table(DOWN), "up": fm.Table(UP)}
COHORTS = [[0, 1, 4], [3], [2, 5, 6]]
B, K, D, ITEM = 4, 3, 5, 8


def run(problem: Quadratic, selection: fm.Selector, algorithm: fm.Algorithm, **changes) -> fm.Result:
    arguments = {"loss": problem.loss, "local_steps": K, "batch_size": B, "dtype": torch.float64, "device": "cpu"}
    arguments |= {"rounds": 3, "eval_every": 100}
    return fm.run(problem.model(), problem.data(), algorithm, selection, **arguments | changes)


def client_seconds(i: int, down: float, samples: float, up: float) -> float:
    """Numbers down, samples' gradients, numbers up."""
    return down * ITEM / DOWN[i] + samples / SPEED[i] + up * ITEM / UP[i]


GRADIENTS = {
    # vectors down and up, and gradients of samples for a client with n samples whose batches hold b
    "FedAvg": (fm.FedAvg(lr=0.05), 1, 1, lambda n, b: K * b),
    "FedCM": (fm.FedCM(lr=0.05), 2, 1, lambda n, b: K * b),
    "Scaffold": (fm.Scaffold(lr=0.05), 2, 2, lambda n, b: K * b),
    "Scaffold, option 1": (fm.Scaffold(lr=0.05, option=1), 2, 2, lambda n, b: K * b + n),
    "Mime": (fm.Mime(lr=0.05), 2, 2, lambda n, b: n + 2 * K * b),
    "MimeMom": (fm.Mime(lr=0.05, beta=0.9), 3, 2, lambda n, b: n + 2 * K * b),
    "MimeLiteMom": (fm.MimeLite(lr=0.05, beta=0.9), 2, 2, lambda n, b: K * b + n),
    "FedMoS": (fm.FedMoS(lr=0.05), 1, 1, lambda n, b: n + 2 * (K - 1) * b),
    "FedMoS, first batch": (fm.FedMoS(lr=0.05, first_batch=2), 1, 1, lambda n, b: 2 + 2 * (K - 1) * b),
}


@pytest.mark.parametrize("engine", ["loop", "batched"])
@pytest.mark.parametrize("name", GRADIENTS)
def test_the_clock_by_hand(engine, name):
    """A round lasts as long as its slowest client: bytes over bandwidth, samples' gradients over speed."""
    algorithm, down, up, samples = GRADIENTS[name]
    problem, now = quadratic(), 0.0
    result = run(problem, fm.FixedCohorts(COHORTS), algorithm, system=fm.System(**PROFILES), engine=engine)
    for record, cohort in zip(result.history, COHORTS, strict=True):
        n = {i: problem.n[i] for i in cohort}
        now += max(client_seconds(i, down * D, samples(n[i], min(B, n[i])), up * D) for i in cohort)
        assert record.clock == pytest.approx(now, rel=1e-12)


def test_the_clock_counts_epochs_of_unequal_length():
    """local_epochs=2 is twice everyone's own data."""
    problem, now = quadratic(), 0.0
    work = {"local_steps": None, "local_epochs": 2, "system": fm.System(**PROFILES)}
    for record in run(problem, fm.FixedCohorts(COHORTS), fm.FedAvg(lr=0.05), **work).history:
        now += max(client_seconds(i, D, 2 * problem.n[i], D) for i in record.cohort)
        assert record.clock == pytest.approx(now, rel=1e-12)


@pytest.mark.parametrize(
    ("selector", "losses"),
    [(fm.PowerOfChoice(m=2, d=7, loss="reported"), 0), (fm.ActiveFL(m=2), 1 / 3), (fm.Oort(m=2), 1 / 3)],
    ids=["rpow-d", "ActiveFL", "Oort"],
)
def test_the_clock_counts_reports(selector, losses):
    """A number up; and where it is the loss at x, all samples at a third of a gradient's time."""
    problem, now = quadratic(), 0.0
    for record in run(problem, selector, fm.FedAvg(lr=0.05), system=fm.System(**PROFILES)).history:
        now += max(client_seconds(i, D, K * min(B, problem.n[i]) + losses * problem.n[i], D + 1) for i in record.cohort)
        assert record.clock == pytest.approx(now, rel=1e-7)


@pytest.mark.parametrize(("loss", "most"), [("full", 10**9), ("batch", B)], ids=["pow-d", "cpow-d"])
def test_the_clock_counts_probes(loss, most):
    """First all candidates receive x, compute losses and send a number; x is not sent again to those chosen."""
    problem, now = quadratic(), 0.0
    selector = fm.PowerOfChoice(m=2, d=7, loss=loss)
    for record in run(problem, selector, fm.FedAvg(lr=0.05), system=fm.System(**PROFILES)).history:
        now += max(client_seconds(i, D, min(most, problem.n[i]) / 3, 1) for i in range(7))
        now += max(client_seconds(i, 0, K * min(B, problem.n[i]), D) for i in record.cohort)
        assert record.clock == pytest.approx(now, rel=1e-7)


def test_the_clock_counts_cacs_s_gradients():
    """x down, a gradient of all samples, a vector up, from everyone; then the cohort, which holds x, works."""
    problem = quadratic()
    result = run(problem, fm.CACS(m=2, warmup=0), fm.FedAvg(lr=0.05), system=fm.System(**PROFILES), rounds=1)
    seconds = max(client_seconds(i, D, problem.n[i], D) for i in range(7))
    seconds += max(client_seconds(i, 0, K * min(B, problem.n[i]), D) for i in result.history[0].cohort)
    assert result.history[0].clock == pytest.approx(seconds, rel=1e-7)


def test_a_clock_changes_nothing_else(quick):
    """Without a deadline the run is the same, bit for bit."""
    timed = quick(system=fm.System(speed=fm.LogNormal(median=10)))
    assert digest(timed) == digest(quick())
    assert all(r.late == [] and not r.abandoned for r in timed.history)


def test_time_to_a_target(quick):
    """The clock at the end of the first round that reached it; None if none did, or if there is no clock."""
    result = quick(rounds=30, system=fm.System(speed=fm.LogNormal(median=10)))
    clock = [r.clock for r in result.history]
    assert all(a < b for a, b in itertools.pairwise(clock))
    target = sorted(r.accuracy for r in result.history)[20]
    assert result.time_to("accuracy", target) == clock[result.rounds_to("accuracy", target) - 1]
    assert result.time_to("accuracy", 1.1) is None
    assert quick().time_to("accuracy", 0.0) is None
    assert quick().history[-1].clock is None


# ------------------------------------------------------------------------------ deadlines, quorum, more clients

SLOW = {1, 5}
"""Clients who cannot even take one gradient of all their data before the deadline; the others need milliseconds."""
LATE = {"speed": fm.Table([1.0 if i in SLOW else 1000.0 for i in range(7)]), "deadline": 2.0}
WEIGHTS = [[0.2, 0.3, 0.1], [0.7, 0.6], [0.25, 0.5, 0.25]]
ALL = [[0, 1, 4], [5, 2], [6, 3, 1]]


@pytest.mark.parametrize("engine", ["loop", "batched"])
@pytest.mark.parametrize(
    "algorithm",
    [
        fm.FedAvg(lr=0.05),
        fm.FedMoS(lr=0.05),
        fm.Scaffold(lr=0.05),
        fm.FedDyn(lr=0.05),
        fm.FedCM(lr=0.05),
        fm.AdaBest(lr=0.05),
        fm.MimeLite(lr=0.05, beta=0.5),
        fm.Mime(lr=0.05),
        fm.Stem(lr=0.05),
    ],
    ids=lambda algorithm: type(algorithm).__name__,
)
def test_late_clients_are_left_out_as_if_not_chosen(engine, algorithm):
    """The same model and state as without them, the others' weights scaled up to the same sum."""
    problem = quadratic()
    timed = run(problem, fm.FixedCohorts(ALL, WEIGHTS), algorithm, system=fm.System(**LATE), engine=engine)
    cohorts, weights = [], []
    for cohort, given in zip(ALL, WEIGHTS, strict=True):
        kept = {i: w for i, w in zip(cohort, given, strict=True) if i not in SLOW}
        cohorts.append(list(kept))
        weights.append([w * sum(given) / sum(kept.values()) for w in kept.values()])
    plain = run(problem, fm.FixedCohorts(cohorts, weights), algorithm, engine=engine)
    assert [r.late for r in timed.history] == [[1], [5], [1]]
    assert [r.cohort for r in timed.history] == [sorted(c) for c in ALL]
    assert torch.equal(timed.last, plain.last)
    assert not any(r.abandoned for r in timed.history)
    for name, value in plain.server_state.items():
        assert torch.allclose(timed.server_state[name], value, rtol=0, atol=1e-6)
    assert torch.allclose(timed.params, plain.params, rtol=0, atol=1e-6)


def test_a_late_client_s_bad_update_does_no_harm():
    """It never arrives, so it cannot stop the run."""
    problem = quadratic()
    problem.samples[1] = (problem.samples[1][0] * 1e200, problem.samples[1][1])
    result = run(problem, fm.FixedCohorts([[0, 1]]), fm.FedAvg(lr=0.05), system=fm.System(**LATE))
    assert [r.late for r in result.history] == [[1]] * 3


def test_a_round_closes_at_its_deadline():
    """It lasts until the last client is done, but no longer; who needs exactly that long is in time."""
    problem = quadratic()
    seconds = {i: client_seconds(i, D, K * min(B, problem.n[i]), D) for i in range(7)}
    ranked = sorted(seconds, key=seconds.get)
    for k, i in enumerate(ranked):
        system = fm.System(**PROFILES, deadline=seconds[i] * (1 + 1e-12))
        (record,) = run(problem, fm.Full(), fm.FedAvg(lr=0.05), system=system, rounds=1).history
        assert record.late == sorted(ranked[k + 1 :])
        assert record.clock == pytest.approx(seconds[i], rel=1e-9)
        assert record.bytes_down == 7 * D * ITEM


@pytest.mark.parametrize(
    ("quorum", "abandoned"), [(0.0, False), (0.25, False), (0.5, False), (0.51, True), (0.75, True), (1.0, True)]
)
def test_a_round_below_quorum_is_abandoned(quorum, abandoned):
    """Two of m = 4 are in time; below quorum nothing changes but the clock, which has run to the deadline."""

    @dataclass(frozen=True)
    class Four(fm.Selector):
        m: int = 4

        def select(self, view):
            return torch.tensor([0, 1, 2, 5]), torch.full((4,), 0.25)

    problem, algorithm = quadratic(), fm.Scaffold(lr=0.05)
    result = run(problem, Four(), algorithm, system=fm.System(**LATE, quorum=quorum), rounds=2)
    assert [r.abandoned for r in result.history] == [abandoned] * 2
    assert [r.late for r in result.history] == [[1, 5]] * 2
    assert [r.clock for r in result.history] == [2.0, 4.0]
    assert np.array_equal(result.params.numpy(), problem.x0) == abandoned
    assert (result.server_state["c"].abs().max() == 0) == abandoned
    assert result.last.tolist() == [-1 if abandoned or i not in (0, 2) else 1 for i in range(7)]
    assert result.selection["picks"].tolist() == [0 if abandoned or i not in (0, 2) else 2 for i in range(7)]


@pytest.mark.parametrize(("quorum", "m", "needed"), [(0.55, 20, 11), (0.28, 25, 7), (0.07, 100, 7)])
def test_the_quorum_as_written(quorum, m, needed):
    """⌈quorum · m⌉ of decimal numbers: .28 of 25 is 7, though 0.28 · 25 is a little more in floating point."""
    problem = quadratic(sizes=(2,) * m, importance=(1,) * m)
    speed = fm.Table([1000.0 if i < needed else 0.1 for i in range(m)])
    selector = fm.Uniform(m=m)
    (record,) = run(
        problem, selector, fm.FedAvg(lr=0.05), rounds=1, system=fm.System(speed=speed, deadline=2.0, quorum=quorum)
    ).history
    assert len(record.late) == m - needed
    assert not record.abandoned


@pytest.mark.parametrize("selector", [fm.MD(m=6), fm.Cyclic(m=5)], ids=["MD", "Cyclic"])
def test_a_round_in_which_everyone_is_in_time_counts(selector):
    """Some draws name a client twice, and Cyclic's last group is smaller: no one is late, so nothing is abandoned."""
    result = run(quadratic(), selector, fm.FedAvg(lr=0.05), system=fm.System(quorum=0.9), rounds=4)
    assert any(len(r.cohort) < 0.9 * selector.m for r in result.history)
    assert not any(r.late for r in result.history)
    assert not any(r.abandoned for r in result.history)


@pytest.mark.parametrize(
    ("m", "over_select", "expected"),
    [(10, 1.3, 13), (4, 1.3, 6), (5, 1.5, 8), (10, 1.1, 11), (18, 1.3, 20), (7, 1.0, 7)],
)
def test_over_selection(quick, digits, m, over_select, expected):
    """⌈over_select · m⌉ clients, at most everyone, with the weights of so many."""
    for record in quick(selection=fm.Uniform(m=m), system=fm.System(over_select=over_select)).history:
        assert len(record.cohort) == expected
        assert record.weights == pytest.approx([20 / expected * float(digits.importance[i]) for i in record.cohort])
        assert not record.short


def test_over_selection_as_written():
    """⌈1.1 · 100⌉ is 110, though 1.1 · 100 is a little more in floating point."""
    problem = quadratic(sizes=(2,) * 120, importance=(1,) * 120)
    system = fm.System(over_select=1.1)
    (record,) = run(problem, fm.Uniform(m=100), fm.FedAvg(lr=0.05), rounds=1, system=system).history
    assert len(record.cohort) == 110


def test_over_selection_needs_an_m(quick):
    with pytest.raises(ValueError, match=r"^Cannot over-select with Full because it has no m; use over_select=1$"):
        quick(selection=fm.Full(), system=fm.System(over_select=1.3))


def test_over_selection_with_a_deadline_and_quorum(quick):
    """Select 130 %, close at the deadline, abandon below quorum: the three together."""
    system = fm.System(speed=fm.LogNormal(median=10), deadline=0.5, over_select=1.3, quorum=0.6)
    result = quick(selection=fm.Uniform(m=10), rounds=12, system=system)
    abandoned = [r.abandoned for r in result.history]
    assert {True, False} == set(abandoned)
    for record in result.history:
        assert len(record.cohort) == 13
        assert set(record.late) <= set(record.cohort)
        assert record.abandoned == (13 - len(record.late) < 6)


def test_a_timed_run_resumes_to_the_same_bits(quick, tmp_path):
    """Clock, deadlines and profiles go on where they were."""
    system = fm.System(speed=fm.LogNormal(median=10), deadline=1.0, over_select=1.3, quorum=0.7)
    more = {"selection": fm.Uniform(m=10), "system": system, "availability": fm.RandomAvailability(0.8)}
    whole = quick(**more, rounds=8)
    for rounds in (1, 4, 8):
        parts = quick(**more, rounds=rounds, out=tmp_path / "run", resume=True)
    assert digest(parts) == digest(whole)
    columns = ("cohort", "late", "abandoned", "clock", "available", "short")
    assert [[getattr(r, c) for c in columns] for r in parts.history] == [
        [getattr(r, c) for c in columns] for r in whole.history
    ]
