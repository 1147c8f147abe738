"""The option `evaluate_clients`: every client on its own test samples."""

import math
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import pytest
import safetensors.torch
import torch
import torch.nn.functional as F
from fedmos.tracking import Tracker
from torch import nn
from torch.nn.utils import parameters_to_vector

import fedmos as fm
from fedmos.config import schema as config
from fedmos.rng import Purpose, stream
from fedmos.run.measurements import RoundMeasurements
from helpers.configs import RUN
from helpers.conformance import EACH

EVERYTHING = fm.EvaluateClients(every=2, finetune_steps=3)


@pytest.fixture(scope="module")
def tested():
    """Twenty clients with test samples, of whom four take no part."""
    digits = fm.datasets.load("digits")
    data = digits.partition(fm.partition.ByClass(classes=2, size=(6, 30)), clients=20, seed=0, holdout=0.3)
    return data.split_clients(0.2)[0]


@pytest.fixture
def run(tested):
    def call(**changes):
        arguments = {
            "model": fm.models.logistic(features=64),
            "data": tested,
            "algorithm": fm.Ditto(lr=0.1),
            "selection": fm.Uniform(m=4),
            "rounds": 5,
            "local_steps": 2,
            "batch_size": 4,
            "engine": "batched",
            "evaluate_clients": 2,
        }
        return fm.run(**arguments | changes)

    return call


@dataclass(frozen=True, kw_only=True)
class Sampled(fm.Algorithm):
    """Own models are drawn around the client's last one, from its own stream, or there are none."""

    lr: float = 0.1
    own: bool = True
    client_state = ("v",)

    def finish(self, y, s, c, grad):
        return {"delta": y - c.x}, {"v": y}

    def personal(self, c):
        v = c.own["v"]
        return v + 0.1 * fm.rng.normal(c.key, v.shape[-1]).to(v) if self.own else None


@pytest.mark.parametrize("engine", ["loop", "batched"])
def test_own_models_from_streams_of_the_clients(run, engine):
    result = run(algorithm=Sampled(), engine=engine, rounds=1)
    drawn = torch.stack([parameters_to_vector(result.personal_model(i).parameters()) for i in range(2)])
    state = torch.stack([result.client_state(i).get("v", torch.zeros(650)) for i in range(2)])
    key = stream(0, 1, torch.arange(2), Purpose.ALGORITHM)  # of the round after the last
    torch.testing.assert_close(drawn - state, 0.1 * fm.rng.normal(key, 650).float(), rtol=0, atol=1e-6)
    assert result.history[-1].personal_accuracy is not None


@pytest.mark.parametrize("engine", ["loop", "batched"])
def test_a_method_may_have_no_personal_models(run, engine):
    record = run(algorithm=Sampled(own=False), engine=engine, rounds=1).history[-1]
    assert (record.client_accuracy is None, record.personal_accuracy) == (False, None)


def accuracies(model, data):
    found = []
    for i in range(len(data)):
        x, y = data.tests[i]
        module = model(i) if not isinstance(model, nn.Module) else model
        with torch.no_grad():
            found.append((module(data.inputs(x)).argmax(1) == y).double().mean())
    return torch.stack(found)


def fine_tuned(model, data, lr, steps):
    """Full-batch gradient descent on each client's training samples."""

    def tune(i):
        x, y = data.client(i)
        own = fm.models.logistic(features=64)
        own.load_state_dict(model.state_dict())
        for _ in range(steps):
            loss = F.cross_entropy(own(data.inputs(x)), y)
            for p, g in zip(own.parameters(), torch.autograd.grad(loss, list(own.parameters())), strict=True):
                p.data -= lr * g
        return own

    return tune


EXTENDED = pytest.mark.extended


@pytest.mark.parametrize("engine", [pytest.param("loop", marks=EXTENDED), "batched"])
def test_scores_are_those_of_each_clients_model(run, tested, engine):
    result = run(engine=engine, batch_size=None, rounds=3, lr_decay=0.5, evaluate_clients=EVERYTHING)
    tuned = fine_tuned(result.model, tested, 0.1 * 0.5**2, 3)
    expected = {
        "client_accuracy": accuracies(result.model, tested),
        "personal_accuracy": accuracies(result.personal_model, tested),
        "finetuned_accuracy": accuracies(tuned, tested),
        "unseen_accuracy": accuracies(result.model, tested.unseen),
        "unseen_finetuned_accuracy": accuracies(fine_tuned(result.model, tested.unseen, 0.025, 3), tested.unseen),
    }
    for name, values in expected.items():
        assert torch.equal(result.client_score(name), values)
    assert torch.equal(result.client_accuracy, expected["client_accuracy"])
    record = result.history[-1]
    assert record.client_accuracy == pytest.approx(float(expected["client_accuracy"].mean()))
    assert record.client_accuracy_worst == pytest.approx(float(expected["client_accuracy"].sort().values[:2].mean()))
    assert record.personal_accuracy == pytest.approx(float(expected["personal_accuracy"].mean()))
    ninth = np.quantile(expected["personal_accuracy"].numpy(), 0.9)
    assert record.client_metrics["personal_accuracy_p90"] == pytest.approx(ninth)
    weights = tested.tests.sizes / tested.tests.sizes.sum()
    weighted = float((weights * expected["client_accuracy"]).sum())
    assert record.client_metrics["client_accuracy_weighted"] == pytest.approx(weighted)
    losses = result.client_score("client_loss").sort(descending=True).values
    assert record.client_metrics["client_loss_worst"] == pytest.approx(float(losses[:2].mean()))


def test_it_measures_every_n_rounds_and_after_the_last(run):
    result = run(evaluate_clients=2)
    assert [record.client_accuracy is not None for record in result.history] == [False, True, False, True, True]
    assert result.client_evaluation.round == 5
    assert "finetuned_accuracy" not in result.history[-1].client_metrics


def test_it_does_not_change_the_run(run):
    assert torch.equal(run(evaluate_clients=EVERYTHING, rounds=3).params, run(evaluate_clients=None, rounds=3).params)


@pytest.mark.parametrize(
    "more",
    [
        pytest.param({"local": fm.local.Adam(keep=True)}, id="adam", marks=EXTENDED),
        pytest.param({"local": [fm.local.SAM(), fm.local.SGD(momentum=0.9, average=True)]}, id="chain", marks=EXTENDED),
        pytest.param({"algorithm": fm.APFL(lr=0.1), "clip": 1.0, "weight_decay": 0.1}, id="apfl", marks=EXTENDED),
        pytest.param({"algorithm": fm.FedCM(lr=0.05), "batchnorm": "local-affine", "model": "bn"}, id="batch norm"),
    ],
)
def test_engines_agree(run, more):
    if more.get("model") == "bn":
        torch.manual_seed(0)
        more = more | {
            "model": nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.BatchNorm1d(8), nn.Dropout(0.3), nn.Linear(8, 10))
        }
    more = {"algorithm": fm.FedAvg(lr=0.05), "rounds": 3, "dtype": torch.float64, "evaluate_clients": EVERYTHING} | more
    loop, batched = (run(engine=e, **more) for e in ("loop", "batched"))
    assert loop.client_evaluation.values.keys() == batched.client_evaluation.values.keys()
    for name, values in loop.client_evaluation.values.items():
        assert torch.allclose(values, batched.client_score(name), atol=1e-10, equal_nan=True)


@pytest.mark.extended
@pytest.mark.parametrize("case", EACH, ids=str)
def test_engines_agree_for_every_algorithm(run, case):
    more = {"algorithm": case.make(), "dtype": torch.float64, "rounds": 3, "evaluate_clients": EVERYTHING}
    loop, batched = (run(engine=e, **more) for e in ("loop", "batched"))
    personal = type(case.make()).personal is not fm.Algorithm.personal
    assert ("personal_accuracy" in loop.client_evaluation.values) == personal
    for name, values in loop.client_evaluation.values.items():
        assert torch.allclose(values, batched.client_score(name), atol=1e-9, equal_nan=True)


def test_merged_runs_measure_what_they_measure_alone(run, tested):
    seeds = [0, 1]
    arguments = {"data": tested, "algorithm": fm.Ditto(lr=0.1), "selection": fm.Uniform(m=4), "rounds": 3}
    arguments |= {"local_steps": 2, "batch_size": 4, "engine": "batched", "evaluate_clients": 2}
    model = fm.models.logistic(features=64)
    many = fm.run_many([{"model": model, "seed": seed, **arguments} for seed in seeds])
    for seed, merged in zip(seeds, many, strict=True):
        alone = run(seed=seed, rounds=3)
        assert merged.history[-1].client_metrics == pytest.approx(alone.history[-1].client_metrics, abs=1e-5)
        assert torch.equal(merged.client_accuracy, alone.client_accuracy)


def test_resumed_runs_have_the_same_bits(run, tmp_path):
    run = partial(run, evaluate_clients=EVERYTHING)
    whole = run(out=tmp_path / "whole")
    run(out=tmp_path / "cut", rounds=3)
    (tmp_path / "cut" / "clients" / "000009.safetensors").write_bytes(b"of a round that is played again")
    (tmp_path / "cut" / "clients" / ".000004.safetensors.partial").write_bytes(b"half")
    resumed = run(out=tmp_path / "cut", resume=True)
    assert resumed.history[-1].client_metrics == whole.history[-1].client_metrics
    files = sorted(path.name for path in (tmp_path / "cut" / "clients").iterdir())
    assert files == ["000002.safetensors", "000003.safetensors", "000004.safetensors", "000005.safetensors"]
    loaded = fm.Result.load(tmp_path / "cut")
    stored = safetensors.torch.load_file(tmp_path / "cut" / "clients" / "000005.safetensors")
    assert stored.keys() == whole.client_evaluation.values.keys()
    for name, values in whole.client_evaluation.values.items():
        for other in (resumed.client_score(name), loaded.client_score(name), stored[name]):
            assert torch.equal(values, other)
    finished = run(out=tmp_path / "cut", resume=True)
    assert torch.equal(finished.client_accuracy, whole.client_accuracy)


def test_an_interrupted_evaluation_is_made_up_for(run, tmp_path, monkeypatch):
    whole, measure = run(keep_best="personal_accuracy"), RoundMeasurements.evaluate_clients

    def interrupt(self, record):
        if record.round == 4:
            raise KeyboardInterrupt
        return measure(self, record)

    monkeypatch.setattr(RoundMeasurements, "evaluate_clients", interrupt)
    cut = run(out=tmp_path / "run", keep_best="personal_accuracy")
    assert cut.interrupted
    assert cut.history[-1].client_metrics is None
    monkeypatch.undo()
    resumed = run(out=tmp_path / "run", keep_best="personal_accuracy", resume=True)
    assert [r.client_metrics for r in resumed.history] == [r.client_metrics for r in whole.history]
    assert torch.equal(resumed.best.params, whole.best.params)


def test_targets_best_models_and_early_stopping(run):
    reached = run(evaluate_clients=1, target={"personal_accuracy": 0.05}, keep_best="client_loss_worst")
    assert len(reached.history) == 1
    stopping = fm.EarlyStopping("client_accuracy_p10", patience=2, min_delta=1.0)
    stopped = run(evaluate_clients=1, callbacks=[stopping], rounds=9)
    assert len(stopped.history) == 3
    assert stopped.rounds_to("client_accuracy_weighted", 0.0) == 1
    losses = run(evaluate_clients=1, target={"client_loss": 100.0})
    assert len(losses.history) == 1  # from above
    best = run(evaluate_clients=1, keep_best="client_loss")
    values = [record.client_metrics["client_loss"] for record in best.history]
    assert best.best_record.round == 1 + values.index(min(values))
    if best.best_record.round < 5:
        assert best.at_best().client_evaluation is None


def test_a_sample_of_clients(run, tested):
    sampled, every = (run(evaluate_clients=fm.EvaluateClients(sample=n)) for n in (5, None))
    known = ~sampled.client_accuracy.isnan()
    assert int(known.sum()) == 5
    assert torch.equal(sampled.client_accuracy[known], every.client_accuracy[known])
    other = run(evaluate_clients=fm.EvaluateClients(sample=5), seed=1)
    assert not torch.equal(~other.client_accuracy.isnan(), known)
    assert int((~sampled.client_score("unseen_accuracy").isnan()).sum()) == 4


def test_clients_without_test_samples_do_not_count(run, tested):
    part = tested.subset(range(4))
    pairs, tests = [part.client(i) for i in range(4)], [part.tests[0], None, part.tests[2], ([], [])]
    data = replace(fm.FederatedData.from_arrays(pairs, tests=tests), normalize=tested.normalize)
    result = run(data=data, selection=fm.Full())
    assert result.client_accuracy.isnan().tolist() == [False, True, False, True]
    assert result.history[-1].client_accuracy == pytest.approx(float(result.client_accuracy.nanmean()))


def test_regression_and_metrics_of_the_user():
    rng = np.random.default_rng(0)
    pairs = [(rng.random((8, 3)).astype("float32"), rng.random((8, 1)).astype("float32")) for _ in range(6)]
    data = fm.FederatedData.from_arrays(pairs, tests=pairs)
    more = {"rounds": 1, "local_steps": 2, "batch_size": 4, "loss": "mse", "evaluate_clients": 1}
    result = fm.run(nn.Linear(3, 1), data, fm.FedAvg(lr=0.1), fm.Full(), **more)
    found = result.history[-1].client_metrics
    assert found["client_rmse"] == pytest.approx(float(result.client_score("client_loss").sqrt().mean()), rel=1e-5)
    assert found["client_rmse_worst"] > found["client_rmse"]  # the largest errors
    assert result.history[-1].metrics is None  # there is no common test set
    with pytest.raises(ValueError, match="must be one of client_loss"):
        _ = result.client_accuracy
    own = {"top": lambda outputs, targets: float(outputs.max())}
    result = fm.run(nn.Linear(3, 1), data, fm.FedAvg(lr=0.1), fm.Full(), **more, metrics=own)
    assert "client_top_worst" in result.history[-1].client_metrics
    for name in ("loss", "client_loss"):
        with pytest.raises(ValueError, match=f"must not be called '{name}'"):
            fm.run(nn.Linear(3, 1), data, fm.FedAvg(lr=0.1), fm.Full(), **more, metrics={name: own["top"]})


def test_trackers_and_the_record_of_the_folder_get_the_summaries(run, tmp_path):
    class Kept(Tracker):
        def __init__(self):
            self.logged = {}

        def log(self, values, step):
            self.logged[step] = dict(values)

        def describe(self, info):
            self.info = info

        def close(self):
            pass

    kept = Kept()
    result = run(callbacks=[kept], out=tmp_path / "run")
    record = result.history[-1]
    assert kept.logged[5]["client_accuracy_worst"] == record.client_accuracy_worst
    assert kept.logged[5]["unseen_accuracy_p25"] == record.client_metrics["unseen_accuracy_p25"]
    described = result.info["client_accuracy"]
    assert described["mean"] == pytest.approx(record.personal_accuracy)
    assert (described["samples"], described["model"]) == ("test", "personal")
    assert described["each"]["accuracies"] == result.client_score("personal_accuracy").tolist()
    assert "personal_accuracy" in repr(result)
    assert "client_accuracy_p10" not in repr(result)


def test_what_cannot_be_measured_is_refused(run, digits, tested):
    with pytest.raises(ValueError, match=r"no test samples of their own; use partition\(..., holdout=0.2\)"):
        run(data=digits)
    with pytest.raises(ValueError, match="got 'client_accuracy'; use evaluate_clients=1"):
        run(evaluate_clients=None, target={"client_accuracy": 0.5})
    with pytest.raises(ValueError, match="'keep_best' must be one of"):
        run(algorithm=fm.FedAvg(lr=0.1), keep_best="personal_accuracy")
    with pytest.raises(ValueError, match=r"target\['client_accuracy'\]' must be"):
        run(target={"client_accuracy": 1.5})
    for names in ({"accuracy_p10"}, {"accuracy_worst"}, {"f", "f_worst"}):
        with pytest.raises(ValueError, match="must have names whose summaries over clients differ"):
            run(metrics={name: lambda outputs, targets: 0.0 for name in names})
    for wrong in (0, -1, 1.5, True, "2"):
        with pytest.raises(ValueError, match="'evaluate_clients' must be"):
            run(evaluate_clients=wrong)
    with pytest.raises(ValueError, match="'sample' must be"):
        fm.EvaluateClients(sample=0)
    with pytest.raises(ValueError, match="did not evaluate them"):
        _ = run(evaluate_clients=None).client_accuracy
    seen, unseen = tested, tested.unseen
    with pytest.raises(ValueError, match="the unseen clients because they have no test samples"):
        run(data=replace(seen, unseen=replace(unseen, tests=None)))


def parse(text):
    import tomllib

    return config.parse(config.RunConfig, tomllib.loads(text))


def test_configurations():
    text = RUN.replace("target = { accuracy = 0.9 }", "target = { client_accuracy_p10 = 0.99 }")
    with pytest.raises(ValueError, match="target"):
        parse(text)
    text = text.replace("[data]", "evaluate_clients = { every = 2, finetune_steps = 1 }\n[data]\nholdout = 0.4")
    settings = parse(text.replace("[data]", "[data]\nunseen = 0.1"))
    assert "unseen_finetuned_accuracy_worst" in settings.check()
    result = settings.run(settings.algorithm, settings.selection, settings.seed, target=settings.target)
    assert math.isfinite(result.history[-1].client_metrics["unseen_finetuned_accuracy"])
    assert len(result.client_accuracy) == 18
    with pytest.raises(config.ConfigError, match="evaluate_clients"):
        parse(text.replace("every = 2", "every = 0"))
    with pytest.raises(config.ConfigError, match="holdout"):
        parse(text.replace("holdout = 0.4", "holdout = 1.5"))
