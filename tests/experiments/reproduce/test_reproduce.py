"""Studies of papers: their configurations, their training, and that pages say what records hold."""

import json
import math
import re
import statistics
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

import fedmos as fm
from fedmos.cli.commands import app
from fedmos.config.schema import DataConfig, Training
from fedmos.data.federated import Normalize
from fedmos.experiments.reproduce import command, quadratic, study
from fedmos.experiments.reproduce.record import StudyRecords, fingerprint, merge, run_folder
from fedmos.experiments.reproduce.results_table import NOT_RUN, ResultsTable
from fedmos.experiments.reproduce.train import Deadline, PartTrainer, ReproduceOptions, train
from fedmos.experiments.runner import PlannedRun
from fedmos.experiments.tune import penalty
from fedmos.report import reproduction_pages as pages

DOCS = Path(__file__).parents[3] / "docs" / "reproduction"
PARTS = [part for name in study.names() for part in study.load(name).parts]
OWN = [part for part in PARTS if part.kind == "comparison" and part.runs_of is None]


def silent(line: str) -> None:
    pass


# ------------------------------------------------------------------------------------------------ configurations

SHAPES = {"mnist": (60_000, (1, 28, 28), 10), "fmnist": (60_000, (1, 28, 28), 10), "cifar10": (50_000, (3, 32, 32), 10)}
SHAPES["cifar100"] = (50_000, (3, 32, 32), 100)


@pytest.fixture(scope="module")
def blank():
    """Data sets of the right shapes, all black."""
    made = {}
    for name, (n, shape, classes) in SHAPES.items():
        x, y = np.zeros((n, *shape), np.uint8), np.arange(n) % classes
        made[name] = fm.Dataset(name, x, y, x[:10], y[:10], normalize=Normalize(mean=0.5, std=0.5))
    return made


@pytest.fixture
def blanks(blank, monkeypatch):
    load = fm.datasets.load
    monkeypatch.setattr(fm.datasets, "load", lambda name, root=None: blank.get(name) or load(name, root))


def test_every_configuration_builds(blanks, monkeypatch):
    """Data and models are made once where several parts have the same."""
    made = {}

    def once(kind, name, field):
        make = getattr(kind, name)

        def get(self, *arguments):
            key = repr(field(self))
            if key not in made:
                made[key] = make(self, *arguments)
            return made[key]

        monkeypatch.setattr(kind, name, get)

    once(DataConfig, "make", lambda data: data)
    once(Training, "make_model", lambda training: training.model)
    for part in OWN:
        part.comparison().check()


@pytest.mark.parametrize("part", PARTS, ids=lambda part: part.key)
def test_what_a_part_speaks_of_exists(part):
    assert part.labels
    assert part.columns
    assert part.source
    columns = {column.key for column in part.columns}
    assert set(part.published) <= set(part.labels)
    assert {key for row in part.published.values() for key in row} <= columns
    assert {label for pair in part.versus for label in pair} <= set(part.labels)
    assert {column.of for column in part.columns if column.of} <= set(part.labels)
    assert set(part.shows) <= set(part.labels)


def test_every_part_is_on_its_papers_page():
    for part in PARTS:
        shown = pages.blocks((DOCS / f"{part.paper}.md").read_text())
        assert part.key in shown or part.runs_of in shown


def test_parts_build_on_each_other():
    made = study.merged(
        {"a": {"b": 1, "c": 2}, "p": {"name": "x", "k": 1}, "l": [1], "gone": 3},
        {"a": {"b": 5}, "p": {"name": "y"}, "l": [2], "gone": {}},
    )
    assert made == {"a": {"b": 5, "c": 2}, "p": {"name": "y"}, "l": [2]}


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"paper": "p", "title": "t", "parts": {"a": {"chnage": {}}}}, "'chnage' is not a field"),
        (
            {"paper": "p", "title": "t", "parts": {"a": {"columns": {"x": {"heading": "h", "kind": "rounds"}}}}},
            "'kind' must be one of rounds_to",
        ),
        (
            {"paper": "p", "title": "t", "parts": {"a": {"columns": {"x": {"heading": "h", "kind": "rounds_to"}}}}},
            "'value' must be given",
        ),
    ],
)
def test_mistakes_in_studies_are_named(change, words):
    with pytest.raises(ValueError, match=words):
        study.read("mine", change)


# ------------------------------------------------------------------------------------------------------ training

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


# ------------------------------------------------------------------------------------------------ the command, pages


def test_the_command_runs_a_study(tmp_path):
    arguments = ["reproduce", "poc-synthetic", "--part", "m1", "--rounds", "2", "--seeds", "1", "--methods", "rand"]
    done = CliRunner().invoke(app, [*arguments, "--device", "cpu", "--out", str(tmp_path)])
    assert done.exit_code == 0, done.output
    assert "| rand | 0.05 | 1 | 2 | 1× | not reached |" in done.output
    assert f"| pow-d (d=2m) | – | – | – | about 2× sooner | {NOT_RUN} |" in done.output
    assert (tmp_path / "poc-synthetic" / "m1" / "report.html").exists()
    assert (tmp_path / "poc-synthetic.json").exists()


def test_methods_that_only_some_parts_have(tmp_path, monkeypatch):
    trained = []

    def train(part, options, *others):
        trained.append((part.name, study.fitting(options.methods, part.labels)))

    monkeypatch.setitem(command._TRAINERS, "quadratic", train)
    arguments = ["reproduce", "poc-quadratic", "--methods", "pow-d (d=6),pow-d (d=2*", "--out", str(tmp_path)]
    done = CliRunner().invoke(app, arguments)
    assert done.exit_code == 0, done.output
    assert trained == [("k30", ["pow-d (d=6)"]), ("k100", ["pow-d (d=20)"])]


def test_a_label_with_a_comma_is_a_name():
    labels = ["a = 1, b = 2", "a = 1", "c"]
    assert study.matching("A = 1, b = *", labels, "--methods") == ["a = 1, b = 2"]
    assert study.matching("a = 1, c", labels, "--methods") == ["a = 1", "c"]


def test_the_command_lists_what_there_is_and_names_mistakes():
    done = CliRunner().invoke(app, ["reproduce", "--list"])
    assert done.exit_code == 0
    for part in PARTS:
        assert part.study in done.output
        assert part.title in done.output
    for arguments, words in (
        (["poc-fmist"], "did you mean 'poc-fmnist'"),
        (["poc-fmnist", "--part", "beta"], "--part must name some of"),
        (["poc-fmnist", "--methods", "rand,pow"], "--methods must name some of"),
        (["poc-synthetic", "--budget", "-1"], "'budget' must be > 0, got -1.0"),
        (["poc-synthetic", "--budget", "nan"], "'budget' must be > 0, got nan"),
        ([], "NAME must be given"),
    ):
        assert words in str(CliRunner().invoke(app, ["reproduce", *arguments]).exception)


@pytest.mark.parametrize("page", sorted(DOCS.glob("*.md")), ids=lambda page: page.name)
def test_pages_are_as_the_records_make_them(page):
    text = page.read_text("utf-8")
    assert pages.filled(text, DOCS / "data") == text
    for key in pages.blocks(text):
        table = ResultsTable.of(study.by_key(key), DOCS / "data")
        drawing = pages.chart(table)
        if drawing is not None:
            assert (DOCS / pages.image(table.part)).read_text("utf-8") == drawing


def test_records_are_of_the_configurations_that_are_here():
    for path in sorted((DOCS / "data").glob("*.json")):
        records = StudyRecords(DOCS / "data", path.stem)
        for name, run in records.all_runs():
            part = study.by_key(f"{path.stem}/{name}")
            assert run["configuration"] == fingerprint(part, run["method"], run["lr"]), (part.key, run["method"])


def test_printed_numbers_are_the_recorded_ones():
    """By other means than the library's: the cells of every printed table, from the JSON files."""
    checked = 0
    for page in sorted(DOCS.glob("*.md")):
        for key, block in re.findall(r"<!-- reproduce ([\w./-]+) -->\n(.*?)<!-- end -->", page.read_text(), re.S):
            part = study.by_key(key)
            source = (part.runs_of or key).split("/")
            path = DOCS / "data" / f"{source[0]}.json"
            table = json.loads(path.read_text())["parts"].get(source[1]) if path.exists() else None
            lines = [line.strip("| ").split(" | ") for line in block.splitlines() if line.startswith("| ")]
            for cells in lines[2 : 2 + len(part.labels)]:
                tuned = (table or {"tuned": {}})["tuned"].get(cells[0])
                runs = [r for r in (table or {"runs": []})["runs"] if r["method"] == cells[0] and not r["tuning"]]
                checked += check(part, cells[4:], [r for r in runs if tuned in (None, r["lr"])])
    assert checked > 50


def check(part, cells, runs) -> int:
    """How many numbers stood in a row's cells."""
    checked = 0
    for column in part.columns:
        if any(column.key in row for row in part.published.values()):
            cells.pop(0)
        cell = cells.pop(0)
        if not runs:
            assert cell == NOT_RUN
            continue
        if column.kind.endswith("_to_final"):
            continue
        match column.kind:
            case "given":
                values = [r["given"][column.key] for r in runs]
            case "last" | "mean_last":
                values = [r[column.kind].get(column.metric) for r in runs]
            case "mean_quarter":
                curves = [(r["curve"]["round"], r["curve"][column.metric], r["rounds"]) for r in runs]
                late = [
                    [v for at, v in zip(rounds, curve, strict=True) if at > 0.75 * length]
                    for rounds, curve, length in curves
                ]
                values = [statistics.mean(last) if last else None for last in late]
            case kind:
                sign = "≤" if column.metric.endswith("loss") else "≥"
                found = [r["first"][f"{column.metric} {sign} {column.value:g}"] for r in runs]
                values = [None if f is None else f[1 if kind == "megabytes_to" else 0] for f in found]
        known = [v * column.scale for v in values if v is not None]
        if not known:
            assert cell in ("not reached", "–")
            continue
        numbers = [float(v) for v in re.findall(r"-?\d+(?:\.\d+)?", cell.split(" (")[0])]
        expected = [statistics.mean(known), *([statistics.stdev(known)] if len(known) > 1 else [])]
        assert numbers == pytest.approx(expected, abs=0.5001 * 10.0**-column.digits)
        checked += 1
    return checked


def test_a_step_size_that_diverged_is_no_choice_even_if_it_reached_the_target(tmp_path):
    part = study.by_key("fedmos-table1/mnist-tuned")
    config = ReproduceOptions().configuration(part)
    config = config.model_copy(update={"tune": config.tune.model_copy(update={"by": "final"})})
    trainer = PartTrainer(part, config, tmp_path, StudyRecords(tmp_path, part.study), Deadline(), print)
    run = {"first": {study.target_key(config.metric, config.level): [40, 1.0]}, "last": {config.metric: 0.97}}
    planned = PlannedRun("FedAvg", (("lr", 0.1),), 0, tuning=True)

    def cost(record):
        return penalty(config.tune, config.metric, trainer._trial(planned, record))

    assert cost(run | {"ended": "diverged"}) == (0.0, math.inf)
    assert cost(run | {"ended": "complete"}) == (0.0, -0.97)
    assert trainer._trial(planned, run | {"ended": "diverged"}).rounds == 40
