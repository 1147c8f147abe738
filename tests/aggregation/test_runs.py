"""The option `aggregation` in runs: sums, engines, methods, bytes, resume, refusals."""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch

import fedmos as fm
from fedmos import aggregation
from helpers.conformance import CASES, EACH, LOGISTIC, LR, SENDING, close, train
from helpers.robust import RULES, oracle

EPOCHS = {"local_epochs": 1, "batch_size": 4}
SIX = fm.Uniform(m=6)
SOME = [case for case in EACH if case.name in ("FedAvg", "Scaffold", "FedDyn", "FedCM", "Mime", "Stem", "FedNova")]


def allowed(case, rule):
    """Whether the rule applies to everything that the method uploads."""
    algorithm = case.make()
    sums = [*algorithm.reduce.values(), *algorithm.prepare_reduce.values()]
    return rule.scale_free or all(upload == "delta" for upload, _ in sums)


@pytest.mark.parametrize("case", SOME, ids=str)
def test_the_mean_of_rows_is_the_sum(case):
    mean_is_sum(case)


@pytest.mark.extended
@pytest.mark.parametrize("case", CASES, ids=str)
def test_the_mean_of_rows_is_the_sum_for_every_algorithm(case):
    mean_is_sum(case)


def mean_is_sum(case):
    """Every rule of `reduce` in every method: with weights that do not sum to one, and unequal numbers of steps."""
    plain, rows = (
        train(LOGISTIC, case.make(), "batched", aggregation=rule, rounds=5, **EPOCHS)
        for rule in (None, aggregation.Mean())
    )
    close(rows.params, plain.params, 1e-11)
    for name, v in plain.server_state.items():
        close(rows.server_state[name], v, 1e-11, name)
    assert [(r.bytes_up, r.bytes_down) for r in rows.history] == [(r.bytes_up, r.bytes_down) for r in plain.history]


@dataclass(frozen=True, kw_only=True)
class EveryRule(fm.FedAvg):
    """FedAvg that notes every kind of sum, and the rows."""

    reduce = {
        "A": ("delta", "w"),
        "avg": ("delta", "avg"),
        "step": ("delta", "avg/K"),
        "P": ("delta", "p"),
        "sum": ("delta", "sum"),
        "rows": ("delta", "each"),
    }
    seen = []

    def server(self, x, state, agg, ctx):
        self.seen.append((dict(agg), ctx.W))
        return super().server(x, state, agg, ctx)


@pytest.mark.parametrize("engine", ["loop", "batched"])
@pytest.mark.parametrize("rule", RULES, ids=str)
def test_every_kind_of_sum(rule, engine):
    """Sums are Σ weights times what the rule takes for the mean."""
    EveryRule.seen.clear()
    ids, w = np.array([0, 1, 2, 4, 5]), np.array([0.5, 0.2, 0.4, 0.1, 0.3])
    selection = fm.FixedCohorts([ids.tolist()], [w.tolist()])
    train(LOGISTIC, EveryRule(lr=LR), engine, selection, aggregation=rule, rounds=2, **EPOCHS)
    tolerance = 1e-4 if isinstance(rule, aggregation.GeometricMedian) else 1e-10
    steps = np.ceil(np.array(LOGISTIC.n)[ids] / 4)
    assert len(set(steps)) > 1
    for agg, W in EveryRule.seen:
        rows, p = agg["rows"].numpy(), LOGISTIC.p[ids]
        assert pytest.approx(1.5) == W
        close(agg["A"], 1.5 * oracle(rule, rows, w), tolerance)
        close(agg["avg"], oracle(rule, rows, w), tolerance)
        close(agg["P"], p.sum() * oracle(rule, rows, p), tolerance)
        close(agg["sum"], 5 * oracle(rule, rows, np.ones(5)), tolerance)
        K = steps.mean()
        close(agg["step"], oracle(rule, rows * (K / steps)[:, None], w) / K, tolerance)


@pytest.mark.parametrize("rule", [aggregation.Median(), aggregation.Krum(1, keep=2)], ids=str)
@pytest.mark.parametrize("case", SOME, ids=str)
def test_engines_agree(case, rule):
    engines_agree(case, rule)


@pytest.mark.extended
@pytest.mark.parametrize("rule", RULES, ids=str)
@pytest.mark.parametrize("case", SENDING, ids=str)
def test_engines_agree_for_every_algorithm_and_rule(case, rule):
    if allowed(case, rule):
        engines_agree(case, rule)
    else:
        with pytest.raises(ValueError, match=f"Cannot use aggregation=.* with {case.name} because it applies to delta"):
            train(LOGISTIC, case.make(), "loop", SIX, aggregation=rule, **EPOCHS)


def engines_agree(case, rule):
    loop, batched = (
        train(LOGISTIC, case.make(), engine, SIX, aggregation=rule, rounds=4, **EPOCHS)
        for engine in ("loop", "batched")
    )
    close(batched.params, loop.params, 1e-8)
    plain = train(LOGISTIC, case.make(), "batched", SIX, rounds=4, **EPOCHS)
    assert isinstance(rule, aggregation.Mean) or not torch.allclose(plain.params, batched.params, rtol=1e-6)
    assert [r.bytes_up for r in plain.history] == [r.bytes_up for r in batched.history]


def test_chunks_and_merged_runs_give_the_same(digits, quick):
    arguments = {"selection": fm.Uniform(m=6), "engine": "batched", "aggregation": aggregation.TrimmedMean(0.2)}
    alone = [quick(seed=seed, **arguments) for seed in (0, 1)]
    common = {"model": fm.models.logistic(features=64), "data": digits, "algorithm": fm.FedAvg(lr=0.1)}
    common |= {"rounds": 3, "local_steps": 2, "batch_size": 4} | arguments
    merged = fm.run_many([common | {"seed": seed} for seed in (0, 1)])
    for a, b in zip(alone, merged, strict=True):
        torch.testing.assert_close(a.params, b.params, rtol=1e-5, atol=1e-7)


def test_late_clients_count_as_not_sampled():
    """The rule sees the rows that arrived, and the sum keeps its scale."""
    EveryRule.seen.clear()
    system = fm.System(speed=fm.PerClient([1e6, 1e6, 1e6, 1e6, 1e6, 0.01, 1e6]), deadline=5.0)
    selection = fm.FixedCohorts([[0, 1, 2, 3, 4, 5]], [[0.2] * 6])
    result = train(
        LOGISTIC,
        EveryRule(lr=LR),
        "batched",
        selection,
        aggregation=aggregation.Median(),
        system=system,
        rounds=1,
        **EPOCHS,
    )
    assert result.history[0].late == [5]
    ((agg, W),) = EveryRule.seen
    assert agg["rows"].shape[0] == 5
    assert pytest.approx(1.2) == W
    close(agg["A"], 1.2 * np.median(agg["rows"].numpy(), axis=0))


def test_a_round_of_too_few_clients_is_abandoned():
    cohorts = fm.FixedCohorts([[0, 1, 2, 3, 4], [0, 1, 2, 3]], [[0.2] * 5, [0.25] * 4])
    for algorithm in (fm.FedAvg(lr=LR), fm.Mime(lr=LR, beta=0.5)):
        result = train(LOGISTIC, algorithm, "batched", cohorts, aggregation=aggregation.Krum(1), rounds=3, **EPOCHS)
        assert [record.abandoned for record in result.history] == [False, True, False]
        assert bool(result.params.isfinite().all())


def test_updates_that_are_not_finite_are_dropped(digits, quick):
    x = digits.x.to(torch.float32)
    x[digits.index[: int(digits.offsets[1])]] = 1e38
    given = {
        "data": replace(digits, x=x, normalize=None, test=None),
        "selection": fm.Full(),
        "aggregation": aggregation.Median(),
    }
    with pytest.raises(fm.DivergenceError, match="The update of client 0 in round 1 is not finite"):
        quick(**given)
    assert bool(quick(**given, on_bad_update="drop").params.isfinite().all())


def test_codecs_give_the_rule_what_is_decoded():
    EveryRule.seen.clear()
    train(
        LOGISTIC,
        EveryRule(lr=LR),
        "batched",
        SIX,
        aggregation=aggregation.Median(),
        uplink=fm.codecs.TopK(0.2),
        rounds=1,
        **EPOCHS,
    )
    ((agg, _),) = EveryRule.seen
    assert int((agg["rows"] != 0).sum(1).max()) == 3  # of 15
    assert int((agg["A"] != 0).sum()) <= 3


def test_a_resumed_run_gives_the_same_bits(tmp_path, quick):
    given = {"algorithm": fm.Scaffold(lr=0.1), "selection": SIX, "aggregation": aggregation.GeometricMedian()}
    whole = quick(rounds=4, **given)
    quick(rounds=2, out=tmp_path, **given)
    assert torch.equal(quick(rounds=4, out=tmp_path, resume=True, **given).params, whole.params)
    with pytest.raises(ValueError, match="aggregation"):
        quick(rounds=5, out=tmp_path, resume=True, **given | {"aggregation": aggregation.Median()})


def test_the_rule_is_recorded(tmp_path, quick):
    result = quick(aggregation=aggregation.Median(), out=tmp_path)
    assert result.info["aggregation"] == "Median()"
    assert fm.Result.load(tmp_path).info["aggregation"] == "Median()"


@pytest.mark.parametrize(
    ("given", "text"),
    [
        (
            {"aggregation": aggregation.Krum(1)},
            r"Cannot use aggregation=Krum\(faulty=1, keep=1\) with rounds of 4 clients",
        ),
        (
            {"aggregation": aggregation.ClippedMean(1.0), "algorithm": fm.Scaffold(lr=0.1)},
            r"Cannot use aggregation=ClippedMean\(bound=1.0\) with Scaffold because .* also upload change",
        ),
        (
            {"aggregation": aggregation.ClippedMean(1.0), "local": fm.local.Adam(average=True)},
            r"with FedAvg because it applies to delta only, and clients also upload local\.",
        ),
        (
            {"aggregation": aggregation.Median(), "privacy": fm.privacy.Gaussian(1.0, 1.0, 1e-5)},
            r"Cannot use aggregation=Median\(\) with 'privacy' because its noise is that of a sum",
        ),
        (
            {"attack": fm.attacks.SignFlip(share=0.2), "privacy": fm.privacy.Gaussian(1.0, 1.0, 1e-5)},
            r"Cannot use attack=SignFlip\(.* with 'privacy' because hostile clients would not clip",
        ),
        ({"aggregation": "median"}, "run: 'aggregation' must be a fedmos.aggregation.Aggregation or None, got str"),
        ({"aggregation": aggregation.Median}, "got the class Median itself"),
    ],
)
def test_combinations_that_make_no_sense_are_refused(quick, given, text):
    with pytest.raises(ValueError, match=text):
        quick(**given)


def test_methods_that_aggregate_rows_themselves_are_refused(quick):
    class Own(fm.FedAvg):
        reduce = {"rows": ("delta", "each")}

        def server(self, x, state, agg, ctx):
            return x + agg["rows"].mean(0), {}

    with pytest.raises(ValueError, match=r"Cannot use aggregation=Median\(\) with Own because its server receives"):
        quick(algorithm=Own(lr=0.1), aggregation=aggregation.Median())


def test_a_rule_that_removes_nobody_is_said(quick, caplog):
    with caplog.at_level(logging.WARNING, "fedmos"):
        quick(aggregation=aggregation.TrimmedMean(0.1))
    assert "TrimmedMean(fraction=0.1) is the weighted mean in rounds of 4 clients" in caplog.text


@dataclass(frozen=True)
class Broken(aggregation.Aggregation):
    mistake: str

    def aggregate(self, rows, weights):
        if self.mistake == "in place":
            rows *= 2
        return {"shape": rows, "none": None}.get(self.mistake, weights @ rows)


@pytest.mark.parametrize(
    ("mistake", "text"),
    [
        ("shape", r"Broken: 'aggregate' must return a vector of shape \(650,\), got a tensor of shape \(4, 650\)"),
        ("none", r"Broken: 'aggregate' must return a vector of shape \(650,\), got NoneType"),
        ("in place", "Broken: 'aggregate' must not change the rows in place"),
    ],
)
def test_mistakes_of_an_own_rule_are_named(quick, mistake, text):
    with pytest.raises(ValueError, match=text):
        quick(aggregation=Broken(mistake))


def test_an_own_rule_must_be_hashable(quick):
    class Loose(aggregation.Median):
        __hash__ = None

    with pytest.raises(ValueError, match=r"Cannot use aggregation=.*may change during the run"):
        quick(aggregation=Loose())
