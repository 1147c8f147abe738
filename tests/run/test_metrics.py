"""The option `metrics`: in records, targets, checkpoints and configurations."""

import pytest
import torch
from torch import nn

import fedmos as fm


def data(targets, test=True):
    generator = torch.Generator().manual_seed(5)
    pairs = []
    for n in (20, 30, 12):
        x = torch.randn(n, 5, generator=generator)
        pairs.append((x, targets(x)))
    return fm.FederatedData.from_arrays(pairs, test=pairs[0] if test else None)


KINDS = {
    "classes": (data(lambda x: (x[:, 0] > 0).long() + (x[:, 1] > 0).long()), 3, "cross_entropy", []),
    "two classes": (data(lambda x: (x[:, 0] > 0).long()), 2, "cross_entropy", ["auc"]),
    "one logit": (data(lambda x: (x[:, :1] > 0).float()), 1, "bce", ["auc"]),
    "labels": (data(lambda x: (x[:, :3] > 0).float()), 3, "bce", ["macro_f1", "auc"]),
    "regression": (data(lambda x: x[:, :2] * 2), 2, "mse", ["rmse", "r2"]),
    "survival": (
        data(lambda x: torch.stack([(-x[:, 0]).exp(), (x[:, 1] > -1).float()], 1)),
        1,
        fm.losses.Cox(),
        ["c_index"],
    ),
}


def train(kind="classes", **more):
    federation, outputs, loss, _ = KINDS[kind]
    torch.manual_seed(0)
    given = {"rounds": 3, "local_steps": 4, "batch_size": 8, "loss": loss} | more
    return fm.run(nn.Linear(5, outputs), given.pop("data", federation), fm.FedAvg(lr=0.2), fm.Full(), **given)


@pytest.mark.parametrize("kind", KINDS)
def test_default_metrics_suit_the_task(kind):
    result = train(kind)
    found = result.history[-1].metrics
    assert list(found or {}) == KINDS[kind][3]
    x, y = KINDS[kind][0].test
    for name, value in (found or {}).items():
        metric = next(m() for m in vars(fm.metrics).values() if getattr(m, "name", None) == name)
        assert value == pytest.approx(metric(result.model(x).detach(), y), rel=1e-5)


def test_metrics_of_the_user_are_those_of_the_returned_model():
    calls = []

    def hits(outputs, targets):
        calls.append(outputs.shape)
        return (outputs.argmax(1) == targets).sum()

    result = train(metrics={"hits": hits, "f1": fm.metrics.MacroF1()}, eval_every=2)
    assert [record.metrics is None for record in result.history] == [True, False, False]
    x, y = KINDS["classes"][0].test
    assert result.history[-1].metrics["hits"] == int((result.model(x).argmax(1) == y).sum())
    assert set(calls) == {(20, 3)}  # the whole test set at once
    assert result.history.to_dict()["metrics"][0] is None


@pytest.mark.parametrize("name", ["accuracy", "test_loss", "client_accuracy_worst"])
def test_metrics_have_names_of_their_own(name):
    """A target of that name would be the other value's."""
    with pytest.raises(ValueError, match=f"'metrics' must not be called '{name}' because records have another value"):
        train(metrics={name: lambda outputs, targets: 1.0})


def test_a_metric_that_changes_its_arguments_changes_nothing_else():
    def negated(outputs, targets):
        targets.add_(1)
        return outputs.mul_(-1).argmax(1).eq(targets - 1).double().mean()

    plain = train(metrics={"f1": fm.metrics.MacroF1()})
    result = train(metrics={"negated": negated, "f1": fm.metrics.MacroF1(), "again": negated})
    for record, expected in zip(result.history, plain.history, strict=True):
        assert record.metrics["f1"] == expected.metrics["f1"]
        assert record.metrics["negated"] == record.metrics["again"]
    assert torch.equal(KINDS["classes"][0].test[1], KINDS["classes"][0].client(0)[1])


def test_a_target_can_name_a_metric():
    reached = train("regression", rounds=50, target={"rmse": 0.5})
    assert len(reached.history) < 50
    assert reached.history[-1].metrics["rmse"] <= 0.5 < reached.history[-2].metrics["rmse"]
    assert reached.rounds_to("rmse", 0.5) == len(reached.history)
    with pytest.raises(ValueError, match=r"^rounds_to: 'metric' must be one of .*rmse, r2, got 'rms'"):
        reached.rounds_to("rms", 0.5)
    with pytest.raises(ValueError, match=r"^rounds_to: 'target' must be a number, got nan"):
        reached.rounds_to("rmse", float("nan"))


def test_metrics_survive_a_checkpoint(tmp_path):
    train("labels", out=tmp_path / "run", rounds=2)
    resumed = train("labels", out=tmp_path / "run", rounds=3, resume=True)
    whole = train("labels", rounds=3)
    assert [r.metrics for r in resumed.history] == [r.metrics for r in whole.history]
    assert fm.Result.load(tmp_path / "run").history[0].metrics == whole.history[0].metrics


def test_metrics_of_merged_runs():
    federation, outputs, loss, _ = KINDS["labels"]
    torch.manual_seed(0)
    shared = {"data": federation, "algorithm": fm.FedAvg(lr=0.2), "selection": fm.Full(), "loss": loss}
    shared |= {"rounds": 2, "local_steps": 4, "batch_size": 8, "model": nn.Linear(5, outputs), "engine": "batched"}
    for merged, seed in zip(fm.run_many([{"seed": 0}, {"seed": 1}], **shared), (0, 1), strict=True):
        alone = fm.run(**shared, seed=seed)
        assert merged.history[-1].metrics == pytest.approx(alone.history[-1].metrics, rel=1e-5)


@pytest.mark.parametrize(
    ("metrics", "sentence"),
    [
        ({"f 1": fm.metrics.AUC()}, "must map names such as 'f1'"),
        ({"f1": fm.metrics.AUC}, "must map names such as 'f1'"),
        ([fm.metrics.AUC(), fm.metrics.AUC()], "different names"),
        (
            {"accuracy": fm.metrics.BalancedAccuracy()},
            "must not be called 'accuracy' because records have another value",
        ),
        ([max], "a list of fm.metrics"),
        (5, "must be a mapping of names to functions"),
        ({"vector": lambda o, t: o}, "'vector' must return a number"),
        ({"broken": lambda o, t: o @ t}, "Cannot compute the metric 'broken' because it fails on outputs"),
    ],
    ids=[
        "a name with a space",
        "a class",
        "the same twice",
        "a known name",
        "no metric",
        "a number",
        "a vector",
        "an error",
    ],
)
def test_metrics_that_are_refused(metrics, sentence):
    with pytest.raises(ValueError, match=sentence):
        train(metrics=metrics)


def test_metrics_need_a_test_set():
    without = data(lambda x: (x[:, 0] > 0).long(), test=False)
    assert train("two classes", data=without).history[-1].metrics is None
    with pytest.raises(ValueError, match="no test set"):
        train("two classes", data=without, metrics=[fm.metrics.AUC()])


def test_metrics_in_a_configuration():
    from fedmos.config import RunConfig, parse

    table = {
        "data": {"name": "digits", "clients": 5},
        "model": {"name": "logistic", "features": 64},
        "algorithm": {"name": "FedAvg", "lr": 0.1},
        "selection": {"name": "Full"},
        "rounds": 1,
        "local_steps": 1,
        "metrics": ["MacroF1", "BalancedAccuracy"],
        "class_weights": "balanced",
        "target": {"macro_f1": 0.99},
    }
    config = parse(RunConfig, table)
    config.check()
    result = config.run(config.algorithm, config.selection, config.seed)
    assert set(result.history[-1].metrics) == {"macro_f1", "balanced_accuracy"}
    with pytest.raises(ValueError, match=r"metrics\.0: must be one of"):
        parse(RunConfig, table | {"metrics": ["F1"]})
    with pytest.raises(ValueError, match="class_weights: must be 'balanced'"):
        parse(RunConfig, table | {"class_weights": "fair"})
