"""Deadlines, quorum and over-selection."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
import torch

import fedmos as fm
from helpers.clocked import ITEM, PROFILES, B, D, K, client_seconds, digest, run
from helpers.problems import quadratic

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
        fm.FedNova(lr=0.05),
        fm.FedExP(lr=0.05),
        fm.ScaffoldM(lr=0.05),
        fm.FedSMOO(lr=0.05),
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


@dataclass(frozen=True, kw_only=True)
class SumOfWeights(fm.Algorithm):
    """Compares ctx.W with the sum of the weights that the uploads had."""

    lr: float = 0.05
    server_state = (("W", ()), ("sum", ()))
    up = ("delta", ("one", ()))
    reduce = {"A": ("delta", "w"), "sum": ("one", "w")}

    def finish(self, y, s, c, grad):
        return {"delta": y - c.x, "one": torch.ones_like(c.K)}, {}

    def server(self, x, state, agg, ctx):
        return x + agg["A"], {"W": torch.tensor(ctx.W), "sum": agg["sum"]}


@pytest.mark.parametrize("engine", ["loop", "batched"])
def test_the_server_s_sum_of_weights_is_that_of_the_scaled_weights(engine):
    how = {"system": fm.System(**LATE), "engine": engine, "rounds": 1}
    result = run(quadratic(), fm.FixedCohorts(ALL, WEIGHTS), SumOfWeights(), **how)
    assert result.history[0].late == [1]
    assert float(result.server_state["W"]) == pytest.approx(0.6)
    assert float(result.server_state["sum"]) == pytest.approx(0.6)


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
