"""Configurations of the studies, and pages of their records."""

import json
import math
import re
import statistics
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

import fedmos as fm
from fedmos.cli.commands import app
from fedmos.config import comparison
from fedmos.config.schema import DataConfig, Training
from fedmos.data.federated import Normalize
from fedmos.experiments.reproduce import command, study
from fedmos.experiments.reproduce.groups import Deadline, LocalGroups
from fedmos.experiments.reproduce.record import StudyRecords, fingerprint
from fedmos.experiments.reproduce.results_table import ResultsTable
from fedmos.experiments.reproduce.train import PartTrainer, ReproduceOptions
from fedmos.experiments.runner import PlannedRun
from fedmos.experiments.tune import penalty
from fedmos.report import reproduction_pages as pages

DOCS = Path(__file__).parents[3] / "docs" / "reproduction"

PARTS = [part for name in study.names() for part in study.load(name).parts]
OWN = [part for part in PARTS if part.kind == "comparison" and part.runs_of is None]


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
    """Data and models are made and checked once where several parts have the same."""
    made = {}

    def once(kind, name, field):
        make = getattr(kind, name)

        def get(self, *arguments):
            key = name, repr(field(self))
            if key not in made:
                made[key] = make(self, *arguments)
            return made[key]

        monkeypatch.setattr(kind, name, get)

    once(DataConfig, "make", lambda data: data)
    once(Training, "make_model", lambda training: training.model)
    check = comparison.check_model_and_target

    def check_once(spec, target):
        key = id(spec.model), spec.data.x.shape[1:], spec.loss, repr(target)
        if key not in made:
            made[key] = check(spec, target)

    monkeypatch.setattr(comparison, "check_model_and_target", check_once)
    for part in OWN:
        part.comparison().check()


@pytest.mark.parametrize("part", PARTS, ids=lambda part: part.key)
def test_names_that_a_part_refers_to_exist(part):
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


# ------------------------------------------------------------------------------------------------ the command, pages
def test_the_command_runs_a_study(tmp_path):
    arguments = ["reproduce", "poc-synthetic", "--part", "m1", "--rounds", "2", "--seeds", "1", "--methods", "rand"]
    done = CliRunner().invoke(app, [*arguments, "--device", "cpu", "--out", str(tmp_path)])
    assert done.exit_code == 0, done.output
    assert "| rand | 0.05 | 1 | 2 | 1× | not reached |" in done.output
    assert "| pow-d" not in done.output
    assert re.search(r"Not run: pow-d .*\. Published: pow-d \(d=2m\): about 2× sooner", done.output.replace("\n", " "))
    assert (tmp_path / "poc-synthetic" / "m1" / "report.html").exists()
    assert (tmp_path / "poc-synthetic.json").exists()


def test_methods_that_only_some_parts_have(tmp_path, monkeypatch):
    trained = []

    def train(part, options, *others):
        trained.append((part.name, study.fitting(options.methods, part.labels)))

    monkeypatch.setattr(command.quadratic, "train", train)
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
            for cells in (line for line in lines[2:] if line[0] in part.labels):
                tuned = (table or {"tuned": {}})["tuned"].get(cells[0])
                runs = [r for r in (table or {"runs": []})["runs"] if r["method"] == cells[0] and not r["tuning"]]
                chosen = [r for r in runs if tuned in (None, r["lr"])]
                assert chosen, f"{key}: {cells[0]} has a row without runs"
                checked += check(part, cells[4:], chosen)
    assert checked > 50


def check(part, cells, runs) -> int:
    """How many numbers stood in a row's cells."""
    checked = 0
    for column in part.columns:
        if any(column.key in row for row in part.published.values()):
            cells.pop(0)
        cell = cells.pop(0)
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
    runner = LocalGroups(config, tmp_path, Deadline())
    trainer = PartTrainer(part, config, StudyRecords(tmp_path, part.study), Deadline(), print, runner)
    run = {"first": {study.target_key(config.metric, config.level): [40, 1.0]}, "last": {config.metric: 0.97}}
    planned = PlannedRun("FedAvg", (("lr", 0.1),), 0, tuning=True)

    def cost(record):
        return penalty(config.tune, config.metric, trainer._trial(planned, record))

    assert cost(run | {"ended": "diverged"}) == (0.0, math.inf)
    assert cost(run | {"ended": "complete"}) == (0.0, -0.97)
    assert trainer._trial(planned, run | {"ended": "diverged"}).rounds == 40
