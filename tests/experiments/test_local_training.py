"""The row of local training alone that comparisons add where clients have test samples of their own."""

from __future__ import annotations

import pytest

import fedmos as fm
from fedmos.config import schema as config
from fedmos.config.comparison import ALONE
from fedmos.experiments.comparison import run_folder
from fedmos.experiments.object_plan import plan
from fedmos.experiments.runner import ConfiguredRuns, PlannedRun

TABLE = {
    "title": "demo",
    "rounds": 2,
    "local_steps": 1,
    "batch_size": 4,
    "seeds": [0],
    "target": {"accuracy": 0.5},
    "device": "cpu",
    "data": {"name": "digits", "clients": 6, "holdout": 0.3},
    "model": {"name": "logistic", "features": 64},
    "methods": [
        {
            "label": "FedAvg",
            "algorithm": {"name": "FedAvg", "lr": 0.1},
            "selection": {"name": "PowerOfChoice", "m": 2, "d": 4},
            "personal": {"patterns": ["*.bias"]},
        },
    ],
    "privacy": {"name": "Gaussian", "clip": 1.0, "noise_multiplier": 1.0, "delta": 1e-5},
}


def parsed(**changes) -> config.CompareConfig:
    return config.parse(config.CompareConfig, {k: v for k, v in (TABLE | changes).items() if v is not None}, "demo")


def test_a_configuration():
    """The row has the first method's step size and as many clients, and none of the options for what is sent."""
    settings = parsed()
    assert [method.label for method in settings.methods] == ["FedAvg", ALONE]
    arguments = ConfiguredRuns(settings).arguments(PlannedRun(ALONE, (("lr", 0.1),), 0), {})
    assert arguments["algorithm"] == fm.LocalOnly(lr=0.1)
    assert arguments["selection"] == fm.Uniform(m=2)
    assert arguments["privacy"] is arguments["personal"] is None
    assert arguments["evaluate_clients"] == fm.EvaluateClients(every=2) or arguments["evaluate_clients"] == 2
    again = config.parse(config.CompareConfig, settings.kept(), "demo")
    assert [method.label for method in again.methods] == ["FedAvg", ALONE]
    assert settings.reference == "FedAvg"


@pytest.mark.parametrize(
    "changes",
    [
        {"local_training": False},
        {"data": {"name": "digits", "clients": 6}},
        {"methods": [{"label": "own", "algorithm": {"name": "LocalOnly", "lr": 0.1}, "selection": {"name": "Full"}}]},
    ],
    ids=["switched off", "no tests of clients", "given"],
)
def test_configurations_without_the_row(changes):
    assert ALONE not in [method.label for method in parsed(privacy=None, **changes).methods]


OWN_DATA = """
import fedmos as fm

def make():
    return fm.datasets.load("digits").partition(fm.partition.IID(), clients=6, holdout={holdout})
"""


@pytest.mark.parametrize("holdout", [0.3, None])
def test_data_that_come_with_tests_of_clients(tmp_path, holdout):
    (tmp_path / "mine.py").write_text(OWN_DATA.format(holdout=holdout))
    settings = parsed(data={"name": f"{tmp_path / 'mine.py'}:make"})
    assert [method.label for method in settings.methods] == ["FedAvg"]
    made = settings.completed()
    assert [method.label for method in made.methods] == (["FedAvg"] if holdout is None else ["FedAvg", ALONE])
    assert made.evaluate_clients == (None if holdout is None else 2)
    assert made.completed() is made
    assert [method.label for method in settings.methods] == ["FedAvg"]
    again = config.parse(config.CompareConfig, made.kept(), "demo")
    assert [method.label for method in again.methods] == [method.label for method in made.methods]
    off = parsed(data=settings.data.model_dump(exclude_none=True), local_training=False)
    assert off.completed() is off


def test_the_label_of_the_row_is_refused_for_another_method(tmp_path):
    (tmp_path / "mine.py").write_text(OWN_DATA.format(holdout=0.3))
    methods = [TABLE["methods"][0] | {"label": ALONE}]
    settings = parsed(data={"name": f"{tmp_path / 'mine.py'}:make"}, methods=methods)
    with pytest.raises(config.ConfigError, match=f"must not be '{ALONE}', which the row of local training is called"):
        settings.completed()


def test_folders_do_not_depend_on_the_number_of_methods(tmp_path):
    """A method that is appended later does not take the folder of the row."""
    run = PlannedRun(ALONE, (("lr", 0.1),), 0)
    more = [*TABLE["methods"], TABLE["methods"][0] | {"label": "second"}]
    assert run_folder(parsed(), run, tmp_path) == run_folder(parsed(methods=more), run, tmp_path)


def test_python_objects(digits):
    made = fm.datasets.load("digits").partition(fm.partition.ByClass(classes=2), clients=6, seed=0, holdout=0.3)
    common = {"model": fm.models.logistic(features=64), "selection": fm.Uniform(m=3), "seeds": 1, "rounds": 3}
    common |= {"local_steps": 2, "batch_size": 4, "engine": "loop"}
    methods = {"FedAvg": {"algorithm": fm.FedAvg(lr=0.001), "uplink": fm.codecs.TopK(0.5)}}
    compared = fm.compare(methods, data=made, tune={"lr": [0.001, 0.5]}, **common)
    assert [row.label for row in compared.table.results] == ["FedAvg", ALONE]
    alone = compared.results[ALONE][0]
    assert alone.info["algorithm"] == "LocalOnly(lr=0.5)"  # by the accuracy of the clients' own models
    assert sum(r.bytes_up + r.bytes_down for r in alone.history) == 0
    assert alone.history[-1].personal_accuracy > alone.history[-1].client_accuracy
    assert compared.results["FedAvg"][0].history[-1].client_accuracy is not None
    named = {"mine": {"algorithm": fm.LocalOnly(lr=0.001)}}
    mine = fm.compare(named, data=made, tune={"lr": [0.001, 0.5]}, **common, evaluate_clients=3)
    assert mine.results["mine"][0].info["algorithm"] == "LocalOnly(lr=0.5)"  # also with a label of the user's
    with pytest.raises(ValueError, match=f"must not have '{ALONE}', which the row of local training is called"):
        fm.compare({ALONE: fm.FedAvg(lr=0.1)}, data=made, **common)
    options = {"model": common["model"], "rounds": 1, "local_steps": 1}
    for data, wanted in ((digits, False), (made, False)):
        without = plan(methods, options | {"data": data}, selection=fm.Full(), local_training=data is digits)
        assert any(method.label == ALONE for method in without.methods) == wanted
