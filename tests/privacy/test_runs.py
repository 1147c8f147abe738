"""Private runs: engines, merged runs, resume, budgets, configurations, and what is refused."""

from __future__ import annotations

import logging
from dataclasses import dataclass

import pytest
import torch

import fedmos as fm
from fedmos.codecs import ErrorFeedback, Quantize
from fedmos.config import schema as config
from fedmos.run.callbacks import PlainProgress
from fedmos.storage import toml
from helpers.configs import TABLE
from helpers.conformance import EACH_SENDING, LOGISTIC, LR, SENDING, close
from helpers.private import arguments, gaussian, private

SOME = [case for case in EACH_SENDING if case.name in ("FedAvg", "Scaffold", "Stem", "FedExP")]
COMMON = TABLE | {
    "rounds": 2,
    "data": {"name": "digits", "clients": 20},
    "algorithm": {"name": "Scaffold", "lr": 0.01},
    "selection": {"name": "Bernoulli", "rate": 0.2},
}


def assert_close(one: fm.Result, other: fm.Result) -> None:
    close(one.params, other.params, 1e-9)
    for name, v in one.server_state.items():
        close(v, other.server_state[name], 1e-9, name)
    assert [r.cohort for r in one.history] == [r.cohort for r in other.history]
    assert [r.epsilon for r in one.history] == [r.epsilon for r in other.history]


@pytest.mark.parametrize("case", SOME, ids=str)
def test_engines_agree(case):
    assert_close(*(private(case.make(), engine) for engine in ("loop", "batched")))


@pytest.mark.extended
@pytest.mark.filterwarnings("ignore:FedHBM with beta")
@pytest.mark.parametrize("selection", [fm.Bernoulli(rate=0.35), fm.Uniform(m=3), fm.Full()], ids=str)
@pytest.mark.parametrize("case", SENDING, ids=str)
def test_engines_agree_for_every_algorithm(case, selection):
    assert_close(*(private(case.make(), engine, selection=selection) for engine in ("loop", "batched")))


@pytest.mark.extended
@pytest.mark.parametrize("case", EACH_SENDING, ids=str)
def test_codecs_and_bounds_by_upload(case):
    algorithm = case.make()
    names = [f if isinstance(f, str) else f[0] for f in (*algorithm.up, *algorithm.prepare_up)]
    how = {"uplink": ErrorFeedback(Quantize(4)), "privacy": gaussian(dict.fromkeys(names, 0.1))}
    assert_close(*(private(algorithm, engine, **how) for engine in ("loop", "batched")))


def test_merged_runs_are_the_runs_alone():
    runs = [{"seed": seed, "algorithm": fm.Scaffold(lr=lr)} for seed, lr in ((1, LR), (2, LR / 2))]
    given = arguments(fm.FedAvg(lr=LR), rounds=3)
    given = {name: v for name, v in given.items() if name not in ("seed", "algorithm")}
    for result, changes in zip(fm.run_many(runs, **given), runs, strict=True):
        assert_close(result, fm.run(**given | changes))


@pytest.mark.parametrize("algorithm", [fm.Scaffold(lr=LR), fm.Mime(lr=LR)], ids=str)
def test_a_resumed_run_is_the_run(algorithm, tmp_path):
    whole = private(algorithm, "loop", rounds=5)
    for rounds in (2, 5):
        parts = private(algorithm, "loop", rounds=rounds, out=tmp_path / "run", resume=True)
    assert torch.equal(parts.params, whole.params)
    assert [r.epsilon for r in parts.history] == [r.epsilon for r in whole.history]
    assert [r.epsilon for r in fm.Result.load(tmp_path / "run").history] == [r.epsilon for r in whole.history]
    with pytest.raises(ValueError, match=r"Cannot resume the run in .* because its 'privacy' is .Gaussian"):
        private(algorithm, "loop", out=tmp_path / "run", resume=True, privacy=gaussian(0.05, 0.5))


def test_the_budget_ends_the_run_before_it_is_exceeded(tmp_path):
    spent = [record.epsilon for record in private(fm.FedAvg(lr=LR), "loop", rounds=6).history]
    assert spent == sorted(set(spent))
    how = {"rounds": 6, "eval_every": 4, "privacy": gaussian(budget=spent[2])}
    result = private(fm.FedAvg(lr=LR), "loop", out=tmp_path / "run", **how)
    assert [record.epsilon for record in result.history] == spent[:3]
    assert result.history[-1].train_loss is not None  # the last round is evaluated
    assert result.info["stopped"] == "privacy budget"
    again = private(fm.FedAvg(lr=LR), "loop", out=tmp_path / "run", resume=True, **how)
    assert len(again.history) == 3
    with pytest.raises(ValueError, match=r"Cannot keep the privacy budget of ε = 0.01 because the first round spends"):
        private(fm.FedAvg(lr=LR), privacy=gaussian(budget=0.01))
    assert len(private(fm.FedAvg(lr=LR), "loop", privacy=gaussian(budget=1e6)).history) == 4


def test_noise_of_zero_is_no_privacy():
    result = private(fm.FedAvg(lr=LR), "loop", privacy=gaussian(0.05, 0.0), rounds=1)
    assert result.history[0].epsilon == float("inf")


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        (
            {"selection": fm.PowerOfChoice(m=2, d=4)},
            "PowerOfChoice because it asks clients for losses or gradients with",
        ),
        ({"selection": fm.ActiveFL(m=2)}, "Cannot use privacy= with ActiveFL because its clients report start_loss"),
        (
            {"local": fm.local.Adam(average=True)},
            "Cannot use privacy= with an averaged Adam or AdamW because noise makes",
        ),
        (
            {"local": [fm.local.SAM(rho=0.1), fm.local.AdamW(average=True)]},
            "averaged Adam or AdamW because noise makes",
        ),
        ({"update_norms": True}, "Cannot use privacy= with update_norms because the norms of single updates"),
        ({"system": fm.System(quorum=0.5)}, "Cannot use privacy= with a quorum because an abandoned round reveals"),
        (
            {"batchnorm": "local"},
            "Cannot use privacy= with batchnorm='local' because clients upload running statistics",
        ),
        ({"class_weights": "balanced", "loss": "cross_entropy"}, "Cannot use privacy= with class_weights='balanced'"),
        ({"privacy": gaussian({"delta": 1.0})}, "must have a bound for each upload of Scaffold, got none for 'change'"),
        ({"privacy": gaussian({"dleta": 1.0})}, "must name uploads of Scaffold (delta, change), got 'dleta' (did you"),
        ({"algorithm": fm.FedCM(lr=LR), "local_steps": None, "local_epochs": 1}, "its sum 'step' divides by K_i"),
        ({"privacy": 1.0}, "run: 'privacy' must be a mechanism of fedmos.privacy or None, got float"),
    ],
    ids=lambda v: "" if isinstance(v, str) else str(next(iter(v))),
)
def test_what_reveals_more_is_refused(changes, sentence):
    with pytest.raises(ValueError) as error:
        private(**{"algorithm": fm.Scaffold(lr=LR)} | changes)
    assert sentence in str(error.value)


def test_rows_are_refused():
    @dataclass(frozen=True, kw_only=True)
    class Median(fm.Algorithm):
        lr: float
        reduce = {"rows": ("delta", "each")}

        def server(self, x, state, agg, ctx):
            return x + agg["rows"].median(0).values, {}

    with pytest.raises(ValueError, match="Median because its server needs the uploads 'rows' of single clients"):
        private(Median(lr=LR))


def test_errors_name_the_sums_of_the_algorithm():
    class Mistaken(fm.FedAvg):
        def server(self, x, state, agg, ctx):
            return x + agg["B"], {}

    with pytest.raises(ValueError, match=r"Mistaken: there is no agg\['B'\]; 'reduce' declares A"):
        private(Mistaken(lr=LR), "loop")


def test_clients_that_are_not_finite_contribute_nothing():
    """With on_bad_update='drop', as if they were not there."""

    class Overflow(fm.FedAvg):
        def finish(self, y, s, c, grad):
            return {"delta": (y - c.x) / (c.p > 0.12)}, {}

    result = private(Overflow(lr=LR), "loop", selection=fm.Full(), on_bad_update="drop")
    assert result.params.isfinite().all()
    with pytest.raises(fm.DivergenceError):
        private(Overflow(lr=LR), "loop", selection=fm.Full())


def test_a_run_without_amplification_says_so(caplog):
    with caplog.at_level(logging.WARNING, "fedmos"):
        private(fm.FedAvg(lr=LR), "loop", rounds=1, selection=fm.MD(m=3))
    assert "Privacy is not amplified by sampling because the cohorts of MD depend on the clients' sizes" in caplog.text


def test_a_run_that_is_decided_by_training_data_says_so(caplog):
    for option in ({"target": {"train_loss": 1e-9}}, {"keep_best": "train_loss"}):
        caplog.clear()
        private(fm.FedAvg(lr=LR), "loop", rounds=1, **option)
        assert "ε does not count that train_loss, computed from the clients' data, decides on a model" in caplog.text
    caplog.clear()
    private(fm.FedAvg(lr=LR), "loop", rounds=1, callbacks=[fm.EarlyStopping("train_loss")])
    assert "ε does not count that train_loss" in caplog.text
    caplog.clear()
    private(fm.FedAvg(lr=LR), "loop", rounds=1)
    assert "does not count" not in caplog.text


def test_a_configuration_trains_as_the_call(tmp_path):
    privacy = {"name": "Gaussian", "clip": {"delta": 1.0, "change": 0.1}, "noise_multiplier": 1.0, "delta": 1e-3}
    path = tmp_path / "run.toml"
    path.write_text(toml.dumps(COMMON | {"privacy": privacy}))
    settings = config.load(config.RunConfig, path, ["privacy.noise_multiplier=2.0"])
    given = settings.arguments(settings.algorithm, settings.selection, settings.seed)
    assert given["privacy"] == gaussian({"delta": 1.0, "change": 0.1}, 2.0)
    result = settings.run(settings.algorithm, settings.selection, settings.seed)
    assert result.params.equal(fm.run(**given).params)
    assert result.history[-1].epsilon > 0


def test_tables_and_progress_show_epsilon(capsys):
    shared = {name: v for name, v in arguments(fm.FedAvg(lr=LR)).items() if name not in ("algorithm", "seed", "model")}
    found = fm.compare({"private": fm.FedAvg(lr=LR)}, model=LOGISTIC.model(), **shared | {"seeds": 1})
    result = private(fm.FedAvg(lr=LR), callbacks=[PlainProgress("run", print, clock=iter(range(0, 1000, 10)).__next__)])
    epsilon = result.history[-1].epsilon
    assert "| ε |" in str(found)
    assert f"| {epsilon:.3f} |" in str(found)
    assert f"ε {epsilon:.3g}" in capsys.readouterr().out


@pytest.mark.parametrize("engine", ["loop", "batched"])
def test_the_rule_sum_has_no_weights(engine):
    """Σ u_i, whatever the weights, and whoever is late."""

    class Counted(fm.FedAvg):
        up = ("delta", ("one", ()))
        reduce = {"A": ("delta", "w"), "count": ("one", "sum"), "mean": ("one", "avg")}
        seen: list = []

        def finish(self, y, s, c, grad):
            return {"delta": y - c.x, "one": torch.ones_like(c.p)}, {}

        def server(self, x, state, agg, ctx):
            self.seen.append((float(agg["count"]), float(agg["mean"])))
            return super().server(x, state, agg, ctx)

    slow = fm.System(speed=fm.PerClient([1.0, *[1e6] * 6]), down=1e12, up=1e12, deadline=1.0)
    private(Counted(lr=LR), engine, selection=fm.Full(), rounds=1, privacy=None)
    private(Counted(lr=LR), engine, selection=fm.Full(), rounds=1, privacy=None, system=slow)
    assert Counted.seen == [(7.0, pytest.approx(1.0)), (6.0, pytest.approx(1.0))]
