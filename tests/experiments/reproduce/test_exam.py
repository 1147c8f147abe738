"""Exams: verdicts, the command, and the page of the records."""

import json
import re
import statistics
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

import fedmos as fm
from fedmos.cli.commands import app
from fedmos.data.natural import NATURAL
from fedmos.experiments.reproduce import exam, study
from fedmos.experiments.reproduce.record import StudyRecords, fingerprint
from fedmos.experiments.reproduce.results_table import ResultsTable
from fedmos.experiments.reproduce.verdict import Agreement
from fedmos.report import reproduction_pages as pages

PAGE = Path(__file__).parents[3] / "docs" / "exam.md"
DATA = PAGE.with_suffix("")
EXAMS = [study.load(name) for name in study.names("exams")]
PARTS = [part for one in EXAMS for part in one.parts]


# ------------------------------------------------------------------------------------------------ verdicts
def test_the_rule():
    rule = Agreement(seeds=4, tolerance=0.01)
    assert rule.judge(0.5, [0.509], 3).agrees
    far = rule.judge(0.5, [0.52], 3)
    assert not far.agrees
    assert str(far) == "differs by +0.020"
    assert rule.judge("0.50 ± 0.03", [0.52], 3).margin == pytest.approx(0.03)  # 2 · 0.03 / √4
    both = rule.judge("0.50 ± 0.03", [0.4, 0.6], 3).margin
    assert both == pytest.approx(2 * (0.03**2 / 4 + statistics.variance([0.4, 0.6]) / 2) ** 0.5)
    with pytest.raises(ValueError, match="a number or 'mean ± deviation', got 'about 3'"):
        rule.judge("about 3", [1.0], 1)


@pytest.mark.parametrize("part", PARTS, ids=lambda part: part.key)
def test_names_and_published_values_of_a_part(part):
    assert part.agreement is not None
    assert set(part.published) == set(part.labels)
    assert {key for row in part.published.values() for key in row} <= {column.key for column in part.columns}
    assert set(part.why) <= set(part.labels)
    for row in part.published.values():
        for value in row.values():
            part.agreement.judge(value, [0.0], 1)


def test_exams_are_not_among_the_papers_studies():
    assert not set(study.names("exams")) & set(study.names())
    assert set(study.all_names()) == {*study.names("exams"), *study.names()}


SHAPES = {"cifar10": (3, 32, 32), "fmnist": (1, 28, 28)}


@pytest.fixture
def blanks(monkeypatch):
    """Data sets of the right shapes with few samples."""

    def load(name, root=None):
        x, y = np.zeros((4_000, *SHAPES[name]), np.uint8), np.arange(4_000) % 10
        return fm.Dataset(name, x, y, x[:10], y[:10], normalize=fm.Normalize(mean=0.5, std=0.5))

    monkeypatch.setattr(fm.datasets, "load", load)


@pytest.mark.parametrize(
    "key",
    [
        "niid-bench/two-labels",
        "niid-bench/dirichlet",
        "niid-bench/quantity",
        pytest.param("fl-simulator/dirichlet-0_6", marks=pytest.mark.extended),
        pytest.param("fl-simulator/momentum-0_1", marks=pytest.mark.extended),
        "pfllib/pathological",
        "pfllib/practical",
    ],
)
def test_configurations_for_a_gpu_build(key, blanks):
    part = study.by_key(key)
    config = part.comparison(device="cpu")
    assert [method.label for method in config.methods] == part.labels
    config.check()


# ------------------------------------------------------------------------------------------------ the page
def test_the_page_is_as_the_records_make_it():
    text = PAGE.read_text("utf-8")
    assert pages.exam_page(text, DATA) == text
    assert sorted(pages.blocks(text)) == sorted(part.key for part in PARTS)


def test_records_are_of_the_configurations_that_are_here():
    for path in sorted(DATA.glob("*.json")):
        for name, run in StudyRecords(DATA, path.stem).all_runs():
            part = study.by_key(f"{path.stem}/{name}")
            assert run["configuration"] == fingerprint(part, run["method"], run["lr"]), (part.key, run["method"])


def test_a_value_that_differs_is_explained():
    found = 0
    for part in PARTS:
        for (label, column), verdict in ResultsTable.of(part, DATA).verdicts().items():
            found += 1
            assert verdict.agrees or label in part.why, f"{part.key}: {label}, {column} {verdict}"
    assert found > 20


def test_printed_numbers_are_the_recorded_ones():
    """By other means than the library's: every measured mean of the page, from the JSON files."""
    checked = 0
    for key, block in re.findall(r"<!-- reproduce ([\w./-]+) -->\n(.*?)<!-- end -->", PAGE.read_text(), re.S):
        part, (name, own) = study.by_key(key), key.split("/")
        path = DATA / f"{name}.json"
        runs = json.loads(path.read_text())["parts"].get(own, {"runs": []})["runs"] if path.exists() else []
        rows = [line.strip("| ").split(" | ") for line in block.splitlines() if line.startswith("| ")][2:]
        assert [cells[0] for cells in rows] == [one for one in part.labels if any(run["method"] == one for run in runs)]
        assert ("\nNot run" in block) == (len(rows) < len(part.labels))
        for cells in rows:
            mine, cells = [run for run in runs if run["method"] == cells[0]], cells[4:]
            for column in part.columns:
                judged = any(column.key in row for row in part.published.values())
                cell = cells[1 if judged else 0]
                cells = cells[3 if judged else 1 :]
                values = [run[column.kind][column.metric] * column.scale for run in mine]
                printed = float(re.match(r"-?[\d.]+", cell)[0])
                assert printed == pytest.approx(statistics.mean(values), abs=0.5001 * 10.0**-column.digits)
                checked += 1
    assert checked > 20


def test_parts_and_methods_without_runs_are_a_sentence(tmp_path):
    part = study.by_key("pfllib/practical")
    empty = ResultsTable.of(part, tmp_path)
    sentence = "Published: FedAvg 85.85 (global model, %); Ditto 97.47 (clients' own models, %)."
    assert empty.markdown() == f"Not run. {sentence}\n"
    run = {"lr": 0.005, "seed": 0, "rounds": 2000, "ended": "finished", "best": {}, "clients": {}}
    some = ResultsTable(part, {"FedAvg": [run], "Ditto": []}, [])
    assert [row[0] for row in some.rows()] == ["FedAvg"]
    assert some.not_run() == "Not run: Ditto. Published: Ditto 97.47 (clients' own models, %)."
    assert exam.summary([study.load("pfllib")], tmp_path) == "Not run: pfllib (pathological, practical).\n"


# ------------------------------------------------------------------------------------------------ the command
@pytest.fixture
def home(tmp_path, monkeypatch):
    """A folder of data with a small table of the shape of heart_disease."""
    monkeypatch.setenv("FEDMOS_DATA", str(tmp_path))
    rng = np.random.default_rng(0)
    x, owner = rng.normal(size=(80, 13)).astype(np.float32), np.arange(80) % 4
    held = (np.arange(80) // 4 % 3 == 0).astype(np.uint8)
    y = (x[:, :1] > 0).astype(np.float32)
    np.savez(tmp_path / "heart_disease.npz", x=x, y=y, owner=owner, owners=list("abcd"), held_out=held)
    return tmp_path


def test_the_command_runs_an_exam_and_continues(home):
    arguments = ["exam", "flamby-heart", "--part", "strategies,cyclic", "--methods", "FedAvg,Cyclic", "--seeds", "2"]
    arguments += ["--out", str(home / "runs"), "--quiet", "--rounds", "1"]
    done = CliRunner().invoke(app, arguments)
    assert done.exit_code == 0, (done.output, done.exception)
    assert re.search(r"\| FedAvg \| 0.001 \| 2 \| 1 \| 0.748 ± 0.027 \| \d\.\d{3} ± ", done.output)
    assert "| – | 0.685 ± 0.028 |" in done.output  # a run that is too short has no verdict
    assert re.search(r"\| flamby-heart \| cyclic \| – \| – \|", done.output)
    whole = CliRunner().invoke(app, [*arguments[:-2], "--part", "cyclic", "--methods", "Cyclic"])
    assert re.search(r"\| flamby-heart \| cyclic \| 2 \| \d \|", whole.output), whole.output
    again = CliRunner().invoke(app, arguments)
    assert "side by side" in done.output
    assert "side by side" not in again.output  # the records have the runs
    run = StudyRecords(home / "runs", "flamby-heart").runs(study.by_key("flamby-heart/strategies"), "FedAvg")[0]
    data = fm.datasets.load("heart_disease").partition(fm.partition.Natural())
    assert 0 <= run["last"]["client_accuracy"] <= 1
    assert len(data.tests) == len(NATURAL["heart_disease"].sources[0].addresses) == 4


def test_exams_without_data_or_gpu_are_left_out_with_a_sentence(tmp_path, monkeypatch):
    monkeypatch.setenv("FEDMOS_DATA", str(tmp_path))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    lines = []
    exam.take([], tmp_path / "runs", options=fm_options(device="cpu"), echo=lines.append)
    said = "\n".join(lines)
    assert "flamby-heart: left out. Cannot load 'heart_disease'" in said
    assert "To get it, run fedmos data get heart_disease" in said
    assert lines[-1] == "No exam was run; fedmos exam NAME runs one, and fedmos exam --list shows all."
    with pytest.raises(FileNotFoundError, match="fedmos data get tcga_brca"):
        exam.take(["flamby-brca"], tmp_path / "runs", echo=lines.append)
    for one in EXAMS:
        if one.needs == "gpu":
            assert f"{one.name}: left out because it is meant for a GPU" in said


def fm_options(**given):
    from fedmos.experiments.reproduce.train import ReproduceOptions

    return ReproduceOptions(**given)


def test_the_command_lists_exams_and_names_mistakes(tmp_path):
    listed = CliRunner().invoke(app, ["exam", "--list"])
    for part in PARTS:
        assert part.title in listed.output
    assert "did you mean 'flamby-heart'" in str(CliRunner().invoke(app, ["exam", "flamby-hart"]).exception)
    assert "use fedmos reproduce ghbm-tau" in str(CliRunner().invoke(app, ["exam", "ghbm-tau"]).exception)
    page = tmp_path / "mine.md"
    page.write_text("no block")
    assert "has no block for an exam" in str(CliRunner().invoke(app, ["exam", "--page", str(page)]).exception)
