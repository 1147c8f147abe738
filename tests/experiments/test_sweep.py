"""Searching over a run's fields."""

import contextlib
import csv
import json
from pathlib import Path

import pytest

from fedmos.config import schema as config
from fedmos.experiments.sweep import sweep
from fedmos.experiments.sweep_trial import describe_trial, train_trial

RUN = {
    "rounds": 4,
    "local_steps": 2,
    "batch_size": 4,
    "data": {"name": "digits", "clients": 20, "partition": {"name": "ByClass", "classes": 2}},
    "model": {"name": "logistic", "features": 64},
    "algorithm": {"name": "FedAvg", "lr": 0.05},
    "selection": {"name": "Uniform", "m": 5},
    "sweep": {
        "trials": 4,
        "metric": "train_loss",
        "warmup": 0,
        "space": {
            "algorithm.lr": {"low": 0.001, "high": 0.5, "log": True},
            "local_steps": {"low": 1, "high": 4},
            "selection.name": ["Uniform", "MD"],
        },
    },
}


def settings(**changes):
    return config.parse(config.SweepConfig, RUN | {"sweep": RUN["sweep"] | changes})


def trials(out):
    with (out / "trials.csv").open() as file:
        return list(csv.DictReader(file))


def test_it_searches_keeps_and_goes_on(tmp_path):
    said = []
    best = sweep(settings(), tmp_path, said.append)
    done = trials(tmp_path)
    assert len(done) == 4
    assert len(said) == 5
    complete = [t for t in done if t["state"] == "complete"]
    winner = min(complete, key=lambda t: float(t["train_loss"]))
    assert float(winner["algorithm.lr"]) == best["algorithm.lr"]
    kept = config.load(config.RunConfig, tmp_path / "best.toml")
    assert kept.algorithm.fields["lr"] == best["algorithm.lr"]
    assert kept.local_steps == best["local_steps"]
    assert {t["selection.name"] for t in done} <= {"Uniform", "MD"}

    sweep(settings(trials=6), tmp_path)
    assert trials(tmp_path)[:4] == done
    assert len(trials(tmp_path)) == 6


def test_the_same_seed_searches_the_same(tmp_path):
    for name in ("a", "b"):
        sweep(settings(trials=3), tmp_path / name)
    assert trials(tmp_path / "a") == trials(tmp_path / "b")


def test_a_trial_whose_worker_was_lost_continues_to_the_same_values(tmp_path):
    values = {"algorithm.lr": 0.1, "local_steps": 2, "selection.name": "MD"}

    def train(folder: str, rounds: int, finished=()):
        given = describe_trial(settings().model_copy(update={"rounds": rounds}), values, list(finished), False)
        return train_trial(given, [tmp_path / folder])

    value, reports = train("whole", 4)
    assert [step for step, _ in reports] == [1, 2, 3, 4]
    assert value == reports[-1][1]
    assert len(train("begun", 2)[1]) == 2
    assert train("begun", 4) == (value, reports)
    better = [(0.0, [(step, 0.0) for step in range(1, 5)])] * 5
    assert train("stopped", 4, better) == (None, reports[:1])


@pytest.mark.extended
def test_a_search_on_ray(tmp_path):
    sweep(settings(parallel=2, trials=5), tmp_path / "processes")
    sweep(settings(parallel=2, trials=5), tmp_path / "ray", on="ray")
    assert trials(tmp_path / "ray") == trials(tmp_path / "processes")
    assert (tmp_path / "ray/best.toml").read_text() == (tmp_path / "processes/best.toml").read_text()


@pytest.mark.parametrize("parallel", [1, 2])
def test_a_search_that_was_interrupted_goes_on_to_the_same_trials(tmp_path, monkeypatch, parallel):
    from fedmos.experiments import sweep as module

    space = {"algorithm.lr": RUN["sweep"]["space"]["algorithm.lr"]}
    given = settings(trials=14, parallel=parallel, space=space)

    def train(trial, folders):
        calls.append(trial)
        if len(calls) in cuts:
            raise KeyboardInterrupt
        return (json.loads(trial)["values"]["algorithm.lr"] - 0.2) ** 2, []

    monkeypatch.setattr(module, "_executor", lambda *_: module.SameProcess())
    monkeypatch.setattr(module, "train_trial", train)
    found = {}
    for name, cuts in (("whole", ()), ("cut", (3, 8, 13))):
        calls = []
        for _ in range(1 + len(cuts)):
            with contextlib.suppress(KeyboardInterrupt):
                best = sweep(given, tmp_path / name)
        complete = [t for t in trials(tmp_path / name) if t["state"] != "fail"]
        found[name] = best, [(t["algorithm.lr"], t["train_loss"]) for t in complete]
    assert len(found["whole"][1]) == 14
    assert found["cut"] == found["whole"]


def test_a_trial_that_was_cut_off_is_played_again(tmp_path):
    class Cut(Exception):
        pass

    def say(line):
        if line.startswith("trial 2"):
            raise Cut

    with pytest.raises(Cut):
        sweep(settings(), tmp_path, say)
    import optuna

    study = optuna.load_study(study_name="sweep", storage=f"sqlite:///{tmp_path / 'sweep.db'}")
    running = study.ask()
    lr = running.suggest_float("algorithm.lr", 0.001, 0.5, log=True)
    sweep(settings(), tmp_path)
    done = trials(tmp_path)
    assert done[2]["state"] == "fail"
    assert float(done[3]["algorithm.lr"]) == lr
    assert sum(t["state"] != "fail" for t in done) == 4


@pytest.mark.parametrize(
    ("change", "field"),
    [({"sweep": RUN["sweep"] | {"metric": "accuracy"}}, "sweep.metric"), ({"rounds": 2}, "rounds")],
)
def test_other_trials_do_not_go_into_the_same_folder(tmp_path, change, field):
    sweep(settings(trials=1), tmp_path)
    before = (tmp_path / "sweep.toml").read_bytes()
    with pytest.raises(ValueError, match=f"Cannot continue the search in .* because its '{field}' is"):
        sweep(config.parse(config.SweepConfig, RUN | change), tmp_path)
    assert (tmp_path / "sweep.toml").read_bytes() == before


def test_the_search_is_in_its_folder_whatever_that_is_called(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for count in (1, 2):
        sweep(settings(trials=count), Path("50%25 of {#1}?"))
    assert {path.name for path in tmp_path.iterdir()} == {"50%25 of {#1}?"}
    assert len(trials(tmp_path / "50%25 of {#1}?")) == 2


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"space": {}}, "sweep.space: must name 1 to 100 fields, got 0"),
        ({"space": {"algorithm.lr": {"low": 1.0, "high": 0.1}}}, "high: must be > low (1.0), got 0.1"),
        ({"space": {"algorithm.lr": {"low": 0.0, "high": 0.1, "log": True}}}, "low: must be > 0 where log is true"),
        ({"space": {"algorithm.lr": 0.1}}, "must be a list of values, or a table with low and high, got 0.1"),
        ({"space": {"algorithm.lr": [[1]]}}, "must be a list of numbers, texts or truth values"),
        ({"space": {"algorithm.rl": [0.1]}}, "algorithm.rl: FedAvg has no such field"),
        ({"space": {"algorithm.lr": [0.1, -1.0]}}, "algorithm.lr: must be > 0, got -1"),
        ({"space": {"selection.name": ["Uniform", "Unform", "MD"]}}, "selection.name: must be one of"),
        ({"space": {"rounds.x": [1, 2]}}, "sweep.space: 'rounds.x' is no field because 'rounds' is not a table"),
        ({"metric": "acc"}, "sweep.metric: must be one of"),
    ],
)
def test_mistakes_are_found_before_the_first_trial(tmp_path, change, sentence):
    with pytest.raises(ValueError) as error:
        sweep(settings(**change), tmp_path / "out")
    assert sentence in str(error.value)
    assert not (tmp_path / "out").exists()
