"""Device profiles and the simulated clock."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy.special import chdtrc, ndtri

import fedmos as fm
from fedmos.engine.simulated_clock import Clock
from fedmos.rng import Purpose, stream
from helpers.clocked import PROFILES, RARE, SIGMA, B, D, K, client_seconds, digest, run
from helpers.problems import quadratic


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
    path.write_text("value,speed\n1,10\n2,20.5\n", encoding="utf-8-sig")
    assert fm.PerClient(path).numbers == (1.0, 2.0)  # without the mark that spreadsheets put in front
    assert fm.Table([4, 5.5]).values(2, key).tolist() == [4.0, 5.5]
    assert fm.PerClient(torch.tensor([4, 5])).numbers == (4.0, 5.0)
    assert fm.Table(path, column="speed").values(2, key).tolist() == [10.0, 20.5]
    for make, sentence in (
        (lambda: fm.Table(path, column="pace"), "must have numbers in a column 'pace'"),
        (
            lambda: fm.Table({1: 10.0, 2: 20.0}),
            "PerClient: 'numbers' must be a list of numbers or a file, got {1: 10.0",
        ),
        (lambda: fm.Table([]), "PerClient: 'numbers' must hold at least one number, got none"),
        (lambda: fm.Table([1, 0]), "PerClient: 'numbers' must be > 0, got 0"),
        (lambda: fm.Table([1, 2]).values(3, key), "PerClient: 'numbers' must hold one for each of 3 clients, got 2"),
        (lambda: fm.Constant(0), "Constant: 'value' must be > 0, got 0"),
        (lambda: fm.System(speed="fast"), "System: 'speed' must be > 0 or a profile, got 'fast'"),
        (lambda: fm.System(speed={0: 10.0}), "System: 'speed' must be > 0 or a profile, got {0: 10.0}"),
        (lambda: fm.System(over_select=0.9), "System: 'over_select' must be ≥ 1, got 0.9"),
        (lambda: fm.System(quorum=1.1), "System: 'quorum' must be in [0, 1], got 1.1"),
    ):
        with pytest.raises(ValueError) as error:
            make()
        assert sentence in str(error.value)


class Measured:
    """A profile of the user's."""

    def __init__(self, numbers):
        self.numbers = numbers

    def values(self, N, key):
        return self.numbers


def test_an_own_profile_returns_a_positive_number_for_each_client():
    assert Clock(fm.System(speed=Measured([1, 2, 4])), 3, seed=0)._speed.tolist() == [1.0, 2.0, 4.0]
    assert Clock(fm.System(speed=np.float32(2)), 2, seed=0)._speed.tolist() == [2.0, 2.0]
    for numbers, sentence in (
        (torch.ones(4), "a number for each of 3 clients, got a tensor of shape (4,)"),
        (torch.tensor([1.0, 0.0, 2.0]), "numbers > 0, got 0.0"),
        (torch.tensor([1.0, torch.nan, 2.0]), "numbers > 0, got nan"),
        ("fast", "a tensor of 3 numbers, got 'fast'"),
    ):
        with pytest.raises(ValueError) as error:
            Clock(fm.System(speed=Measured(numbers)), 3, seed=0)
        assert str(error.value) == f"Measured: 'values' must return {sentence}"


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


COHORTS = [[0, 1, 4], [3], [2, 5, 6]]

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


def test_the_record_of_a_system_without_dropouts_is_that_of_older_run_folders():
    """A run is resumed only if its system has the same text."""
    system = fm.System(deadline=60.0)
    assert repr(system) == (
        "System(speed=1000.0, down=1000000.0, up=1000000.0, deadline=60.0, over_select=1.0, quorum=0.0)"
    )
    assert repr(replace(system, dropout=0.1)) == repr(system)[:-1] + ", dropout=0.1)"
