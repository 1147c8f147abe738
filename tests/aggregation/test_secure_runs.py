"""Secure aggregation in simulations: sums, engines, methods, privacy, bytes, resume, refusals."""

from __future__ import annotations

import logging
import math
from dataclasses import dataclass

import pytest
import torch

import fedmos as fm
from fedmos.aggregation import Secure
from fedmos.aggregation.ring import Quantizer
from fedmos.config import schema as config
from fedmos.secure import sizes
from fedmos.storage import toml
from helpers.conformance import CASES, EACH, LOGISTIC, LR, close, train
from helpers.private import gaussian, private

EPOCHS = {"local_epochs": 1, "batch_size": 4}
SIX = fm.Uniform(m=6)
SOME = [case for case in EACH if case.name in ("FedAvg", "Mime", "FedNova")]


@pytest.mark.parametrize("case", SOME, ids=str)
def test_sums_are_those_without_it(case):
    sums_are_equal(case)


@pytest.mark.extended
@pytest.mark.filterwarnings("ignore:FedHBM with beta")
@pytest.mark.parametrize("case", CASES, ids=str)
def test_sums_are_those_without_it_for_every_algorithm(case):
    sums_are_equal(case)


def sums_are_equal(case):
    """With 48 bits, every method is that without secure aggregation, on both engines."""
    plain = train(LOGISTIC, case.make(), "loop", SIX, rounds=4, **EPOCHS)
    for engine in ("loop", "batched"):
        secure = train(LOGISTIC, case.make(), engine, SIX, rounds=4, aggregation=Secure(48), **EPOCHS)
        close(secure.params, plain.params, 1e-8)
        for name, v in plain.server_state.items():
            close(secure.server_state[name], v, 1e-7, name)
        assert [r.saturated for r in secure.history] == [0 if case.make().up else None] * 4


@dataclass(frozen=True, kw_only=True)
class EveryRule(fm.FedAvg):
    """FedAvg that notes every kind of sum."""

    up = ("delta", ("few", 3))
    reduce = {
        "A": ("delta", "w"),
        "avg": ("delta", "avg"),
        "step": ("delta", "avg/K"),
        "P": ("delta", "p"),
        "sum": ("delta", "sum"),
        "few": ("few", "w"),
    }
    seen = []
    uploads = {}

    def finish(self, y, s, c, grad):
        uploads, own = super().finish(y, s, c, grad)
        self.uploads[float(c.p)] = uploads["delta"]
        return uploads | {"few": 1000 * uploads["delta"][:3]}, own

    def server(self, x, state, agg, ctx):
        self.seen.append(dict(agg))
        return super().server(x, state, agg, ctx)


def test_every_kind_of_sum_by_hand():
    """Sums are those of the integers of a second implementation, and keep their scale where clients are late."""
    EveryRule.seen.clear()
    ids, w, bits = [0, 1, 2, 4, 5], [0.5, 0.2, 0.4, 0.1, 0.3], 16
    late = fm.System(speed=fm.PerClient([1e6] * 5 + [0.01, 1e6]), deadline=5.0)
    for system in (None, late):
        how = {"aggregation": Secure(bits, bound=0.5), "rounds": 1, **EPOCHS}
        result = train(LOGISTIC, EveryRule(lr=LR), "loop", fm.FixedCohorts([ids], [w]), system=system, **how)
        assert result.history[0].late == ([] if system is None else [5])
    for agg, here in zip(EveryRule.seen, (ids, ids[:-1]), strict=True):
        rows = {i: EveryRule.uploads[float(LOGISTIC.p[i])].double() for i in ids}
        steps = {i: math.ceil(LOGISTIC.n[i] / 4) for i in ids}
        by_rule = {
            "A": dict(zip(ids, w, strict=True)),
            "step": {i: v / steps[i] for i, v in zip(ids, w, strict=True)},
            "P": {i: float(LOGISTIC.p[i]) for i in ids},
            "sum": dict.fromkeys(ids, 1.0),
        }
        left = sum(by_rule["A"][i] for i in here)
        scales = {"A": 1.5 / left, "step": 1 / left, "P": 1, "sum": 1}
        for name, factors in by_rule.items():
            step = 0.5 * sum(factors.values()) / (2 ** (bits - 1) - 2 - 3)
            total = sum((rows[i].clamp(-0.5, 0.5) * (factors[i] / step)).round() for i in here)
            close(agg[name], scales[name] * step * total, 1e-12, name)
        close(agg["avg"], agg["A"] / 1.5, 1e-12)
        close(agg["few"], 1000 * sum(by_rule["A"][i] * rows[i][:3] for i in here) * scales["A"], 1e-6)


def test_chunks_merged_runs_and_the_order_of_clients_give_the_same_bits(digits, quick, monkeypatch):
    """Training rounds by the width of a chunk here; the sums of given uploads do not."""
    given = {"selection": fm.Uniform(m=6), "engine": "batched", "aggregation": Secure(20, bound=1.0)}
    alone = [quick(seed=seed, **given) for seed in (0, 1)]
    common = {"model": fm.models.logistic(features=64), "data": digits, "algorithm": fm.FedAvg(lr=0.1)}
    common |= {"rounds": 3, "local_steps": 2, "batch_size": 4} | given
    for a, b in zip(alone, fm.run_many([common | {"seed": seed} for seed in (0, 1)]), strict=True):
        torch.testing.assert_close(a.params, b.params, rtol=1e-4, atol=1e-5)
        assert [r.saturated for r in a.history] == [r.saturated for r in b.history] == [0, 0, 0]
    monkeypatch.setattr("fedmos.engine.execution_plan._max_parallel_clients", lambda task: 2)
    assert torch.equal(quick(seed=0, **given).params, alone[0].params)


def test_values_above_the_bound_are_recorded_and_logged(quick, caplog):
    given = {"selection": fm.Uniform(m=6), "aggregation": Secure(bound=1e-3)}
    with caplog.at_level(logging.WARNING):
        result = quick(**given)
    assert all(record.saturated > 0 for record in result.history)
    (line,) = [r.getMessage() for r in caplog.records if "clamped" in r.getMessage()]
    assert line.startswith(f"Secure aggregation clamped {result.history[0].saturated} values of uploads")
    assert quick(**given, engine="loop").history[0].saturated == result.history[0].saturated


def test_a_bound_by_upload():
    given = {"rounds": 2, **EPOCHS}
    wide = train(LOGISTIC, fm.Scaffold(lr=LR), "batched", SIX, aggregation=Secure(48), **given)
    bound = {"delta": 1e-4}
    narrow = train(LOGISTIC, fm.Scaffold(lr=LR), "batched", SIX, aggregation=Secure(48, bound), **given)
    assert wide.history[0].saturated == 0 < narrow.history[0].saturated <= 6 * 15


def test_under_privacy_clipping_comes_first():
    """Sums are as without it, but for a rounding toward zero; ε is the same, and nothing is counted."""
    for case in SOME:
        plain, secure = (private(case.make(), aggregation=rule) for rule in (None, Secure(48)))
        close(secure.params, plain.params, 1e-8)
        assert [r.epsilon for r in secure.history] == [r.epsilon for r in plain.history]
        assert all(r.saturated is None for r in secure.history)
        assert any(len(r.cohort) < 2 for r in secure.history)  # rounds of few clients count, with their noise


def test_under_privacy_no_norm_grows():
    rows = torch.randn(50, 40, dtype=torch.float64)
    rows /= rows.norm(dim=1, keepdim=True)
    quantizer = Quantizer.of(12, bound=1.0, total=50, clients=50, toward_zero=True)
    norms = (quantizer.encode(rows, torch.ones(50)).double() * quantizer.step).norm(dim=1)
    assert bool((norms <= 1 + 1e-12).all())
    assert not bool((norms > 0.999).any())  # 12 bits for 50 clients are coarse


def test_a_round_below_the_threshold_is_abandoned(quick):
    system = fm.System(speed=fm.PerClient([1e6] * 5 + [0.01] * 2), deadline=5.0)
    cohorts = fm.FixedCohorts([[0, 1, 5, 6], [0, 1, 2, 5], [3]], [[0.25] * 4, [0.25] * 4, [1.0]])
    how = {"aggregation": Secure(), "system": system, "rounds": 3, **EPOCHS}
    for algorithm in (fm.FedAvg(lr=LR), fm.Mime(lr=LR, beta=0.5)):
        result = train(LOGISTIC, algorithm, "batched", cohorts, **how)
        assert [record.abandoned for record in result.history] == [True, False, True]


def test_bytes_are_those_of_the_integers_keys_and_shares():
    D, n = 15, 6
    for case in SOME:
        bits = 20
        first, *_ = train(LOGISTIC, case.make(), "loop", SIX, rounds=1, aggregation=Secure(bits), **EPOCHS).history
        algorithm = case.make()
        phases = 2 if algorithm.prepares(0) else 1
        sums = {
            (u, "w" if r == "avg" else r) for u, r in (*algorithm.reduce.values(), *algorithm.prepare_reduce.values())
        }
        numbers = {f[0] for f in algorithm.up if not isinstance(f, str)}
        values = sum(6 if upload in numbers else 3 * D for upload, _ in sums) + 6 * phases
        assert first.bytes_up == n * (values + phases * sizes.sent_up(n))
        assert first.bytes_down == n * (8 * D * case.wire[0] + phases * sizes.sent_down(n))


def test_a_resumed_run_gives_the_same_bits(tmp_path, quick):
    given = {"algorithm": fm.Scaffold(lr=0.1), "selection": SIX, "aggregation": Secure(24, {"delta": 1.0})}
    whole = quick(rounds=4, **given)
    quick(rounds=2, out=tmp_path, **given)
    resumed = quick(rounds=4, out=tmp_path, resume=True, **given)
    assert torch.equal(resumed.params, whole.params)
    assert [r.saturated for r in fm.Result.load(tmp_path).history] == [r.saturated for r in whole.history]
    with pytest.raises(ValueError, match="aggregation"):
        quick(rounds=5, out=tmp_path, resume=True, **given | {"aggregation": Secure(25, {"delta": 1.0})})


MANY = fm.FederatedData.from_arrays([(torch.zeros(1, 64), torch.zeros(1, dtype=torch.int64))] * 100)


def test_configurations(tmp_path):
    common = {"rounds": 2, "local_steps": 2, "batch_size": 4, "engine": "loop", "device": "cpu"}
    common |= {"data": {"name": "digits", "clients": 20}, "model": {"name": "logistic", "features": 64}}
    common |= {"algorithm": {"name": "FedAvg", "lr": 0.1}, "selection": {"name": "Uniform", "m": 4}}
    for table, rule in (({"bits": 20}, Secure(20)), ({"bound": {"delta": 0.5}}, Secure(bound={"delta": 0.5}))):
        path = tmp_path / "run.toml"
        path.write_text(toml.dumps(common | {"aggregation": {"name": "Secure", **table}}))
        settings = config.load(config.RunConfig, path)
        given = settings.arguments(settings.algorithm, settings.selection, 0)
        assert given["aggregation"] == rule
        assert fm.run(**given).history[-1].saturated is not None


class Own(fm.FedAvg):
    reduce = {"rows": ("delta", "each")}


@dataclass(frozen=True)
class ByNorm(fm.Selector):
    reports = ("update_norm",)

    def select(self, view):
        return torch.arange(3), torch.full((3,), 1 / 3)


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"algorithm": Own(lr=0.1)}, "with Own because its server needs the uploads 'rows' of single clients"),
        ({"selection": fm.OCS(m=3, d=6)}, "with OCS because it chooses who uploads by what single clients report"),
        ({"selection": fm.DELTA(m=3)}, "with DELTA because it needs the updates of single clients"),
        ({"selection": ByNorm()}, "with ByNorm because single clients would report update_norm"),
        (
            {"selection": fm.CACS(m=3, warmup=1)},
            "secure aggregation with CACS because it asks single clients for their",
        ),
        ({"uplink": fm.codecs.TopK(0.1)}, r"Cannot use uplink=TopK\(fraction=0.1\) with aggregation=Secure\("),
        (
            {"buffer": fm.Buffer(2, 4), "system": fm.System(speed=fm.Constant(100.0))},
            r"Cannot use buffer=Buffer\(.* because masks",
        ),
        ({"update_norms": True}, "Cannot use update_norms with aggregation=Secure"),
        ({"attack": fm.attacks.SignFlip(share=0.5)}, "Cannot use attack=SignFlip"),
        ({"selection": fm.Uniform(m=1)}, "with rounds of 1 clients because it needs 2"),
        ({"aggregation": Secure(8), "selection": fm.Full(), "data": MANY}, "Cannot sum 100 clients in 8 bits"),
        (
            {"aggregation": Secure(bound={"deltas": 1.0})},
            r"Secure: 'bound' must name uploads of FedAvg \(delta\), got 'del",
        ),
        (
            {"privacy": gaussian(0.5, adaptive=True), "selection": fm.Bernoulli(rate=0.2)},
            "with adaptive clipping because",
        ),
        ({"privacy": gaussian(0.5), "aggregation": Secure(bound=0.1)}, "Cannot clamp 'delta' to 0.1 because 'privacy'"),
    ],
)
def test_what_needs_single_uploads_is_refused(quick, given, text):
    with pytest.raises(ValueError, match=text):
        quick(**{"aggregation": Secure(), "selection": fm.Uniform(m=4)} | given)


def test_an_attack_on_data_and_a_downlink_are_allowed(quick):
    given = {"attack": fm.attacks.LabelFlip(share=0.5), "downlink": fm.codecs.TopK(0.5), "selection": SIX}
    secure, plain = (quick(aggregation=rule, **given) for rule in (Secure(), None))
    torch.testing.assert_close(secure.params, plain.params, rtol=1e-5, atol=1e-6)
