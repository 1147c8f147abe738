"""Training of studies: cut off, continued, tuned, recorded and merged."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

import fedmos as fm
from fedmos.experiments.reproduce import quadratic, study
from fedmos.experiments.reproduce.groups import Deadline
from fedmos.experiments.reproduce.record import StudyRecords, fingerprint, merge, run_folder
from fedmos.experiments.reproduce.results_table import ResultsTable
from fedmos.experiments.reproduce.train import ReproduceOptions, train
from fedmos.experiments.runner import PlannedRun

DOCS = Path(__file__).parents[3] / "docs" / "reproduction"


def silent(line: str) -> None:
    pass


TINY = {
    "paper": "none",
    "title": "A tiny one",
    "columns": {
        "to": {"heading": "rounds to loss 2.2", "kind": "rounds_to", "metric": "train_loss", "value": 2.2},
        "final": {"heading": "final accuracy, %", "kind": "last", "scale": 100.0, "digits": 1},
    },
    "base": {
        "rounds": 6,
        "local_steps": 2,
        "batch_size": 4,
        "seeds": [0, 1],
        "target": {"train_loss": 2.2},
        "data": {"name": "digits", "clients": 20, "partition": {"name": "ByClass", "classes": 2}},
        "model": {"name": "logistic", "features": 64},
        "engine": "batched",
        "methods": [
            {"label": "FedAvg", "algorithm": {"name": "FedAvg", "lr": 0.05}, "selection": {"name": "MD", "m": 4}},
            {"label": "faster", "algorithm": {"name": "FedAvg", "lr": 0.1}, "selection": {"name": "ACS", "m": 4}},
            {"label": "FedMoS", "algorithm": {"name": "FedMoS", "lr": 0.05}, "selection": {"name": "ACS", "m": 4}},
        ],
    },
    "parts": {
        "plain": {"title": "Plain", "source": "nowhere", "published": {"FedAvg": {"to": 12}}},
        "tuned": {
            "title": "Tuned",
            "source": "nowhere",
            "change": {"tune": {"lr": [0.001, 0.1], "seed": 9, "by": "final", "rounds": 3}},
        },
    },
}


@pytest.fixture
def tiny(monkeypatch):
    made = study.read("tiny", TINY)
    known = study.load
    monkeypatch.setattr(study, "load", lambda name: made if name == "tiny" else known(name))
    return made


class AfterRounds(Deadline):
    """Time that is up after so many calls."""

    def __init__(self, calls: int) -> None:
        super().__init__()
        self.left = calls

    @property
    def passed(self) -> bool:
        return self.left <= 0

    def on_round(self, record) -> None:
        self.left -= 1
        super().on_round(record)


def without_time(path: Path) -> list:
    table = json.loads(path.read_text())
    return [(part["tuned"], part["runs"]) for part in table["parts"].values()]


def test_a_study_that_is_cut_off_ends_like_one_that_is_not(tiny, tmp_path):
    part = tiny.part("plain")
    train(part, ReproduceOptions(), tmp_path / "a", StudyRecords(tmp_path / "a", "tiny"), Deadline(), silent)
    whole = without_time(tmp_path / "a" / "tiny.json")
    assert [run["ended"] for _, runs in whole for run in runs] == ["complete"] * 6

    for left in (9, 1000):
        train(part, ReproduceOptions(), tmp_path / "b", StudyRecords(tmp_path / "b", "tiny"), AfterRounds(left), silent)
        runs = StudyRecords(tmp_path / "b", "tiny").runs(part)
        assert all(run["ended"] == "complete" for run in runs) == (left == 1000)
    assert without_time(tmp_path / "b" / "tiny.json") == whole


def test_a_part_of_a_study_can_be_run_and_continued(tiny, tmp_path):
    part, said = tiny.part("plain"), []
    records = StudyRecords(tmp_path, "tiny")
    train(part, ReproduceOptions(rounds=2, seeds=1, methods="fed*"), tmp_path, records, Deadline(), said.append)
    assert [(r["method"], r["seed"], r["rounds"]) for r in records.runs(part)] == [("FedAvg", 0, 2), ("FedMoS", 0, 2)]
    before = len(said)
    train(part, ReproduceOptions(rounds=2, seeds=1, methods="FedAvg"), tmp_path, records, Deadline(), said.append)
    assert len(said) == before  # there was nothing to do
    train(part, ReproduceOptions(seeds=1, methods="FedAvg"), tmp_path, records, Deadline(), said.append)
    assert [(r["method"], r["rounds"]) for r in records.runs(part)] == [("FedAvg", 6), ("FedMoS", 2)]


def test_records_are_what_the_runs_measured(tiny, tmp_path):
    part = tiny.part("plain")
    records = StudyRecords(tmp_path, "tiny")
    train(part, ReproduceOptions(methods="faster"), tmp_path, records, Deadline(), silent)
    for run in records.runs(part):
        history = fm.Result.load(run_folder(PlannedRun("faster", (("lr", 0.1),), run["seed"]), tmp_path)).history
        assert run["last"]["accuracy"] == pytest.approx(history[-1].accuracy, rel=1e-5)
        hits = [r.round for r in history if r.train_loss <= 2.2]
        spent = sum(r.bytes_down + r.bytes_up for r in history if r.round <= hits[0]) / 1e6
        assert run["first"]["train_loss ≤ 2.2"] == pytest.approx([hits[0], spent], rel=1e-5)
        assert run["curve"]["round"] == [1, 2, 3, 4, 5, 6]
        assert run["curve"]["accuracy"] == pytest.approx([r.accuracy for r in history], rel=1e-5)


def test_tuning_takes_the_better_step_size(tiny, tmp_path):
    part = tiny.part("tuned")
    records = StudyRecords(tmp_path, "tiny")
    train(part, ReproduceOptions(seeds=1, methods="FedAvg"), tmp_path, records, Deadline(), silent)
    assert records.tuned(part) == {"FedAvg": 0.1}
    assert [(r["lr"], r["rounds"]) for r in records.runs(part, tuning=True)] == [(0.001, 3), (0.1, 3)]
    assert [(r["lr"], r["seed"], r["rounds"]) for r in records.runs(part)] == [(0.1, 0, 6)]
    assert ResultsTable.of(part, tmp_path).rows()[0][:4] == ["FedAvg", "0.1 (largest tried)", "1", "6"]


def test_a_trial_that_is_beaten_is_not_continued(tiny, tmp_path):
    """Judged by the rounds to a target, which one of two reached in fewer than the other has had without."""
    part, said = tiny.part("tuned"), []
    part = replace(part, table=part.table | {"tune": {"lr": [0.001, 0.3], "seed": 9, "by": "rounds"}})
    records = StudyRecords(tmp_path, "tiny")
    train(part, ReproduceOptions(rounds=4, seeds=1, methods="FedAvg"), tmp_path, records, Deadline(), said.append)
    before = [(r["lr"], r["rounds"]) for r in records.runs(part, tuning=True)]
    assert before[0] == (0.001, 4)
    assert before[1][1] < 4
    train(part, ReproduceOptions(seeds=1, methods="FedAvg"), tmp_path, records, Deadline(), said.append)
    assert [(r["lr"], r["rounds"]) for r in records.runs(part, tuning=True)] == before
    assert [(r["lr"], r["rounds"]) for r in records.runs(part)] == [(0.3, 6)]
    slower = replace(part, table=part.table | {"tune": {"lr": [0.001, 0.002], "seed": 9, "by": "rounds"}})
    for rounds in (4, None):  # neither gets there: both go on
        train(
            slower,
            ReproduceOptions(rounds=rounds, seeds=1, methods="FedAvg"),
            tmp_path,
            records,
            Deadline(),
            said.append,
        )
        trials = [(r["lr"], r["rounds"]) for r in records.runs(slower, tuning=True)]
        assert trials == [(0.001, rounds or 6), (0.002, rounds or 6)]


def test_methods_that_a_part_does_not_show_are_not_trained(tmp_path):
    some = TINY | {"parts": {"some": TINY["parts"]["plain"] | {"shows": ["faster"], "published": {}}}}
    part, said = study.read("tiny", some).part("some"), []
    records = StudyRecords(tmp_path, "tiny")
    for _ in range(2):
        train(part, ReproduceOptions(rounds=1, seeds=1), tmp_path, records, Deadline(), said.append)
    assert [run["method"] for _, run in records.all_runs()] == ["faster"]
    assert len(said) == 1


def test_runs_that_diverge_are_not_tried_again(tiny, tmp_path):
    part = tiny.part("plain")
    methods = [dict(TINY["base"]["methods"][0], algorithm={"name": "FedAvg", "lr": 3e38})]
    part = replace(part, table=part.table | {"methods": methods})
    records, said = StudyRecords(tmp_path, "tiny"), []
    for _ in range(2):
        train(part, ReproduceOptions(seeds=1), tmp_path, records, Deadline(), said.append)
    (run,) = records.runs(part)
    assert run["ended"] == "diverged"
    assert len(said) == 1


def test_a_record_of_another_configuration_does_not_count(tiny, tmp_path):
    part = tiny.part("plain")
    records = StudyRecords(tmp_path, "tiny")
    train(part, ReproduceOptions(rounds=1, seeds=1, methods="FedAvg"), tmp_path, records, Deadline(), silent)
    changed = replace(part, table=part.table | {"batch_size": 5})
    assert [len(records.runs(p)) for p in (part, changed)] == [1, 0]
    longer = replace(part, table=part.table | {"rounds": 100, "precision": "bf16"})
    assert len(records.runs(longer)) == 1


def test_a_record_of_another_step_size_does_not_count(tiny, tmp_path):
    """Not the method's own, nor of its grid; nor does a choice count where there is nothing to choose from."""
    part, records = tiny.part("plain"), StudyRecords(tmp_path, "tiny")
    train(part, ReproduceOptions(rounds=1, seeds=1, methods="FedAvg"), tmp_path, records, Deadline(), silent)
    method = dict(TINY["base"]["methods"][0], algorithm={"name": "FedAvg", "lr": 0.2})
    changed = replace(part, table=part.table | {"methods": [method]})
    assert [len(records.runs(p)) for p in (part, changed)] == [1, 0]
    records.tuned(part)["FedAvg"] = 0.3
    records.write()
    assert len(ResultsTable.of(part, tmp_path).runs["FedAvg"]) == 1

    tuned = tiny.part("tuned")
    train(tuned, ReproduceOptions(rounds=1, seeds=1, methods="FedAvg"), tmp_path, records, Deadline(), silent)
    changed = replace(tuned, table=tuned.table | {"tune": tuned.table["tune"] | {"lr": [0.1, 0.5]}})
    assert [[r["lr"] for r in records.runs(p, tuning=True)] for p in (tuned, changed)] == [[0.001, 0.1], [0.1]]


def test_merging_leaves_out_what_does_not_count(tiny, tmp_path):
    part = tiny.part("tuned")
    for folder in ("mine", "old"):
        records = StudyRecords(tmp_path / folder, "tiny")
        train(
            part, ReproduceOptions(rounds=1, seeds=1, methods="FedAvg"), tmp_path / folder, records, Deadline(), silent
        )
    path = tmp_path / "old" / "tiny.json"
    path.write_text(path.read_text().replace(fingerprint(part, "FedAvg", 0.1), "another").replace("0.1}", "0.4}"))
    mine = StudyRecords(tmp_path / "mine", "tiny")
    before = mine.runs(part), mine.runs(part, tuning=True), dict(mine.tuned(part))
    mine.absorb(StudyRecords(tmp_path / "old", "tiny"))
    assert (mine.runs(part), mine.runs(part, tuning=True), mine.tuned(part)) == before


@pytest.mark.parametrize(
    "parts",
    [None, 3, {"m1": {}}, {"m1": {"tuned": {}, "sessions": [], "runs": [{"method": "rand"}]}}, {"m1": [1]}],
    ids=repr,
)
def test_damaged_records_are_named(tmp_path, parts):
    (tmp_path / "poc-synthetic.json").write_text(json.dumps({"study": "poc-synthetic", "parts": parts}))
    with pytest.raises(ValueError, match="because it is not a record of poc-synthetic"):
        merge(tmp_path, tmp_path / "other")


def test_records_merge(tiny, tmp_path):
    part = tiny.part("plain")
    for folder, rounds, methods in (("a", 2, "FedAvg"), ("b", 1, "FedAvg,FedMoS")):
        records = StudyRecords(tmp_path / folder, "tiny")
        options = ReproduceOptions(rounds=rounds, seeds=1, methods=methods)
        train(part, options, tmp_path / folder, records, Deadline(), silent)
    mine = StudyRecords(tmp_path / "a", "tiny")
    mine.absorb(StudyRecords(tmp_path / "b", "tiny"))
    assert [(r["method"], r["rounds"]) for r in mine.runs(part)] == [("FedAvg", 2), ("FedMoS", 1)]
    assert len(mine.sessions(part)) == 3
    with pytest.raises(ValueError, match="holds no records"):
        merge(tmp_path / "nothing", tmp_path / "a")


def test_the_quadratic_study_finds_what_is_published_of_it(tmp_path):
    part = study.by_key("poc-quadratic/k30")
    records = StudyRecords(tmp_path, "poc-quadratic")
    quadratic.train(part, ReproduceOptions(rounds=50, methods="rand"), tmp_path, records, Deadline(), silent)
    (run,) = records.runs(part)
    (kept,) = (r for r in StudyRecords(DOCS / "data", "poc-quadratic").runs(part) if r["method"] == "rand")
    assert run["given"]["rho"] == kept["given"]["rho"]
    assert run["curve"]["excess"] == pytest.approx(kept["curve"]["excess"][:1], rel=1e-5)


def test_ctrl_c_ends_the_quadratic_study(tmp_path):
    class Pressed(Deadline):
        def on_round(self, record) -> None:
            raise KeyboardInterrupt

    part, records = study.by_key("poc-quadratic/k30"), StudyRecords(tmp_path, "poc-quadratic")
    with pytest.raises(KeyboardInterrupt):
        quadratic.train(part, ReproduceOptions(rounds=5), tmp_path, records, Pressed(), silent)
    assert [(run["method"], run["ended"]) for run in records.runs(part)] == [("rand", "cut off")]
