"""The best model of a run: `keep_best`."""

from dataclasses import dataclass, replace

import pytest
import torch

import fedmos as fm
from fedmos.config import schema as config
from helpers.command_line import command_line
from helpers.configs import RUN


@pytest.fixture
def given(run_arguments):
    """A run whose accuracy goes up and down."""
    changes = {"algorithm": fm.FedAvg(lr=1.0), "selection": fm.Uniform(m=1), "rounds": 8, "local_steps": 3}
    return run_arguments | changes | {"engine": "batched"}


def best_round(result, metric, sign=1):
    """The first round of the best value, and the parameters after it, computed by a run of that length."""
    values = [sign * record.value(metric) for record in result.history if record.value(metric) is not None]
    rounds = [record.round for record in result.history if record.value(metric) is not None]
    return rounds[values.index(max(values))]


@pytest.mark.parametrize(("metric", "sign"), [("accuracy", 1), ("test_loss", -1), ("top", 1), ("my_error", -1)])
def test_it_is_the_model_of_the_best_round(given, metric, sign):
    def top(outputs, targets):
        return (outputs.argmax(1) == targets).double().mean()

    given |= {"metrics": {"top": top, "my_error": lambda outputs, targets: 1 - top(outputs, targets)}}
    result = fm.run(**given, keep_best=metric)
    best = best_round(result, metric, sign)
    assert 1 < best < 8
    assert result.best_record is result.history[best - 1]
    expected = fm.run(**given | {"rounds": best})
    assert torch.equal(result.best.params, expected.params)
    assert torch.equal(torch.cat([p.flatten() for p in result.best_model.parameters()]), expected.params)
    assert not torch.equal(result.params, expected.params)
    x, y = given["data"].test
    at_best = result.at_best()
    assert (at_best.predict(x).argmax(1) == y).double().mean() == pytest.approx(result.best_record.accuracy)
    assert len(at_best.history) == best
    assert at_best.info.light
    assert torch.equal(at_best.at_best().params, at_best.params)
    assert at_best.best_record is result.best_record


@dataclass(frozen=True)
class Doubled(fm.FedAvg):
    """Evaluates another model than the one that it goes on with."""

    def evaluated(self, x, state, ctx):
        return 2 * x


def test_it_is_the_model_that_is_evaluated(given, tmp_path):
    seen = {}

    def watch(record, model):
        seen[record.round] = torch.cat([p.detach().flatten() for p in model.parameters()])

    given |= {"algorithm": Doubled(lr=1.0), "keep_best": "accuracy"}
    result = fm.run(**given, callbacks=[watch])
    assert torch.equal(result.best.params, seen[best_round(result, "accuracy")])
    fm.run(**given | {"rounds": 4}, out=tmp_path)
    resumed = fm.run(**given, out=tmp_path, resume=True)
    assert torch.equal(resumed.best.params, result.best.params)
    x, y = given["data"].test
    correct = (result.at_best().predict(x).argmax(1) == y).double().mean()
    assert correct == pytest.approx(result.best_record.accuracy)


def test_keeping_it_does_not_change_the_run(given):
    kept, plain = fm.run(**given, keep_best="accuracy"), fm.run(**given)
    assert torch.equal(kept.params, plain.params)
    assert plain.best is None


def test_rounds_without_evaluation_do_not_count(given):
    result = fm.run(**given, keep_best="accuracy", eval_every=3)
    assert result.best_record.round == best_round(result, "accuracy")
    assert result.best_record.round in (3, 6, 8)


@pytest.mark.parametrize("played", range(1, 8))
def test_it_survives_a_resume(given, tmp_path, played):
    expected = fm.run(**given, keep_best="accuracy")
    fm.run(**given | {"rounds": played}, keep_best="accuracy", out=tmp_path)
    result = fm.run(**given, keep_best="accuracy", out=tmp_path, resume=True)
    assert result.best.round == expected.best.round
    assert torch.equal(result.best.params, expected.best.params)
    stored = fm.Result.load(tmp_path, given["model"])
    assert stored.best_record.round == expected.best.round
    assert torch.equal(stored.at_best().params, expected.best.params)
    with pytest.raises(ValueError, match="its 'keep_best' is 'accuracy', got 'test_loss'"):
        fm.run(**given | {"rounds": 9}, keep_best="test_loss", out=tmp_path, resume=True)


def test_an_interruption_after_any_round(given, tmp_path):
    expected = fm.run(**given, keep_best="accuracy")

    def interrupt(record):
        raise KeyboardInterrupt

    for _ in range(8):
        fm.run(**given, keep_best="accuracy", out=tmp_path, resume=True, callbacks=[interrupt])
    result = fm.run(**given, keep_best="accuracy", out=tmp_path, resume=True)
    assert torch.equal(result.best.params, expected.best.params)


def test_runs_side_by_side_keep_their_own(given):
    runs = [{"seed": seed} for seed in range(3)]
    for run, result in zip(runs, fm.run_many(runs, **given, keep_best="accuracy"), strict=True):
        alone = fm.run(**given, **run, keep_best="accuracy")
        assert result.best.round == alone.best.round
        torch.testing.assert_close(result.best.params, alone.best.params, rtol=1e-4, atol=1e-5)


def test_saving_keeps_it(given, tmp_path):
    result = fm.run(**given, keep_best="accuracy")
    result.save(tmp_path / "all")
    assert torch.equal(fm.Result.load(tmp_path / "all").best.params, result.best.params)
    result.at_best().save(tmp_path / "best")
    loaded = fm.Result.load(tmp_path / "best", given["model"])
    assert torch.equal(loaded.params, result.best.params)
    assert len(loaded.history) == result.best.round


def test_errors(given):
    with pytest.raises(ValueError, match="Cannot give the best model because the run did not keep it; use keep_best"):
        fm.run(**given | {"rounds": 1}).best_model  # noqa: B018
    with pytest.raises(ValueError, match=r"run: 'keep_best' must be one of .*got 'acuracy' \(did you mean 'accuracy'"):
        fm.run(**given, keep_best="acuracy")
    given["data"] = replace(given["data"], test=None)
    with pytest.raises(ValueError, match=r"got 'accuracy' \(this federation cannot measure it\)"):
        fm.run(**given, keep_best="accuracy")


def test_a_configuration_keeps_and_exports_it(tmp_path):
    (tmp_path / "run.toml").write_text('keep_best = "accuracy"\n' + RUN)
    changes = ["--set", "algorithm.lr=2.0", "--set", "selection.m=1", "--set", "rounds=6"]
    done = command_line("run", "run.toml", "--out", "run", *changes, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    result = fm.Result.load(tmp_path / "run")
    best = best_round(result, "accuracy")
    assert best < 6
    assert f"{result.history[best - 1].accuracy:.4f}, round {best}" in done.stdout
    exported = command_line("export", "run", "--best", cwd=tmp_path)
    assert f"Model after round {best}: run/best.safetensors" in exported.stdout
    refused = command_line("run", "run.toml", "--set", "keep_best=acc", cwd=tmp_path)
    assert "'keep_best' must be one of" in refused.stderr


def test_a_configuration_without_such_a_metric_is_refused_by_the_check():
    table = {
        "rounds": 1,
        "local_steps": 1,
        "keep_best": "auc",
        "data": {"name": "digits", "clients": 4},
        "model": {"name": "logistic", "features": 64},
        "algorithm": {"name": "FedAvg", "lr": 0.1},
        "selection": {"name": "Full"},
    }
    with pytest.raises(config.ConfigError, match=r"^keep_best: must be one of"):
        config.parse(config.RunConfig, table).check()


def test_the_accuracy_of_clients_is_that_of_the_last_model(given, tmp_path):
    result = fm.run(**given, keep_best="accuracy", out=tmp_path)
    assert result.info.client_accuracy is not None
    assert result.best_record.round < len(result.history)
    assert result.at_best().info.client_accuracy is None
