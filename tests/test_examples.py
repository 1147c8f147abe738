"""The examples that users copy: they run, learn, and give results per client."""

import ast
import importlib.util
from dataclasses import fields
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

import fedmos as fm
from fedmos.config import schema as config
from helpers.conformance import COHORTS, LOGISTIC, LR, close

EXAMPLES = Path(__file__).parent.parent / "examples"


def load(name):
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("name", ["adapters", "hospitals", "images_in_folders", "text_classifier"])
def test_examples_are_short(name):
    assert len((EXAMPLES / f"{name}.py").read_text().splitlines()) < 60


def test_class_weights_find_the_rare_class_in_every_hospital():
    example = load("hospitals")
    plain, data = example.train(rounds=15, class_weights=None)
    balanced, _ = example.train(rounds=15)
    assert plain.history[-1].metrics["balanced_accuracy"] < 0.6 < balanced.history[-1].metrics["balanced_accuracy"]
    found = example.recalls(balanced, data)
    assert len(found) >= 3
    assert all(found[name] > recall + 0.3 for name, recall in example.recalls(plain, data).items())


def test_images_in_folders(tmp_path):
    example = load("images_in_folders")
    example.write_folders(tmp_path)
    result, data = example.train(tmp_path, rounds=8)
    assert result.history[-1].accuracy > 0.6
    assert set(example.accuracy_by_writer(result, data)) == {f"writer-{i}" for i in range(10)}


def test_a_hugging_face_classifier_learns_from_text():
    result, data = load("text_classifier").train(rounds=5)
    assert data.names[0] == "DUKE VINCENTIO"
    assert result.history[-1].metrics["auc"] > 0.68
    assert result.history[-1].test_loss < result.history[0].test_loss
    assert result.predict(data.client(0)[0]).shape == (402, 2)


def test_adapters_learn_what_the_frozen_network_has_not_learnt():
    base, data, result = load("adapters").train(rounds=10)
    images, labels = data.test
    before = (base(data.inputs(images, torch.float32)).argmax(1) == labels).double().mean()
    assert float(before) < 0.3
    assert result.history[-1].accuracy > 0.5
    assert 5 * len(result.params) < sum(p.numel() for p in base.parameters())
    assert [type(layer) for layer in fm.models.merge_lora(result.model)] == [type(layer) for layer in base]


METHODS = sorted(path.stem for path in (EXAMPLES / "methods").glob("*.py"))


def method(name) -> type[fm.Algorithm]:
    """The one algorithm of an example."""
    module = load(f"methods/{name}")
    (kind,) = [v for v in vars(module).values() if isinstance(v, type) and v.__module__ == module.__name__]
    return kind


def test_methods_are_listed():
    page = (EXAMPLES / "methods" / "README.md").read_text("utf-8")
    assert len(METHODS) == 19
    assert all(f"[{name}.py]({name}.py)" in page for name in METHODS)


def run(algorithm, engine, **options) -> fm.Result:
    """A short run in float64 of clients with different numbers of steps."""
    work = {"rounds": 6, "local_epochs": 2, "batch_size": 4, "dtype": torch.float64, "engine": engine} | options
    return fm.run(LOGISTIC.model(), LOGISTIC.data(), algorithm, fm.FixedCohorts(COHORTS), **work)


@pytest.mark.parametrize("name", METHODS)
def test_methods_have_25_lines_learn_and_run_on_both_engines(name):
    (body,) = [n for n in ast.parse((EXAMPLES / f"methods/{name}.py").read_text()).body if isinstance(n, ast.ClassDef)]
    assert body.end_lineno - body.decorator_list[0].lineno < 25
    lr = 0.01 if name in ("diloco", "fedadamw") else LR  # steps of Adam are as long as η
    loop, batched = (run(method(name)(lr=lr), engine) for engine in ("loop", "batched"))
    close(loop.params, batched.params, 1e-10)
    assert loop.history[-1].train_loss < loop.history[0].train_loss


@pytest.mark.parametrize("name", [name for name in METHODS if hasattr(fm, method(name).__name__)])
@pytest.mark.extended
def test_methods_are_the_built_in_ones(name):
    example = method(name)(lr=LR)
    given = {f.name: getattr(example, f.name) for f in fields(example)} | (
        {"average": True} if name == "fedexp" else {}
    )
    built_in = getattr(fm, type(example).__name__)(**given)
    close(run(example, "batched").params, run(built_in, "batched").params, 1e-12)


def test_ditto_has_models_that_fit_the_clients_better():
    result = run(method("ditto")(lr=LR), "batched")
    for i in range(6):
        x, y = LOGISTIC.data().client(i)
        own, shared = (F.cross_entropy(model(x.double()), y) for model in (result.personal_model(i), result.model))
        assert own < shared


COMPOSITIONS = {
    "fedsam": (fm.FedAvg(lr=LR), fm.local.SAM(rho=0.05)),
    "mofedsam": (fm.FedCM(lr=LR), fm.local.SAM(rho=0.05)),
    "diloco": (
        fm.FedAvgM(lr=LR, server_lr=0.7, nesterov=True),
        fm.local.AdamW(weight_decay=0.01, keep=True),
    ),
}


@pytest.mark.parametrize("name", COMPOSITIONS)
def test_methods_are_the_compositions_of_the_recipes(name):
    algorithm, local = COMPOSITIONS[name]
    a, b = run(method(name)(lr=LR), "batched"), run(algorithm, "batched", local=local)
    close(a.params, b.params, 1e-12)


RECIPES = sorted(path.stem for path in (EXAMPLES / "recipes").glob("*.toml"))


@pytest.mark.parametrize("name", RECIPES)
def test_recipes_learn(name):
    rounds = 2 if name == "diloco" else 20  # it takes 50 local steps a round
    changes = [f"rounds={rounds}", f"eval_every={rounds}", "engine=batched"]
    settings = config.load(config.RunConfig, EXAMPLES / f"recipes/{name}.toml", changes)
    assert settings.run(settings.algorithm, settings.selection, settings.seed).history[-1].accuracy > 0.4


def test_attacks_and_rules():
    """Every attack and rule of the table runs; a backdoor is measured."""
    example = load("robust")
    data = fm.datasets.load("digits").partition(fm.partition.ByClass(classes=2), clients=20)
    small = {"rounds": 1, "local_steps": 1, "model": lambda seed: fm.models.logistic(features=64)}
    for attack in example.ATTACKS.values():
        result = example.train(data, fm.aggregation.Median(), attack, **small)
        assert 0 <= example.accuracy(result) <= 1
    assert 0 <= example.backdoor_success(result, data, attack) <= 1
    for rule in example.RULES.values():
        example.train(data, rule, None, **small)


def test_rules_in_a_configuration():
    settings = config.load(config.CompareConfig, EXAMPLES / "robust.toml")
    rules = [settings.own_options(method).get("aggregation") for method in settings.methods]
    assert set(rules) <= set(load("robust").RULES.values())
    assert settings.attack.name == "SignFlip"
