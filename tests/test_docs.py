"""The documentation's code works as printed, and its numbers are those of the files beside it."""

import json
import re
import runpy
from pathlib import Path

import pytest

from fedmos.config import schema as config
from fedmos.experiments.seed_statistics import spread

ROOT = Path(__file__).parent.parent


def blocks(page: str, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", (ROOT / page).read_text(), re.S)


DOCUMENTED = ("asynchronous", "codecs", "contract", "data", "local", "models", "results", "comparing")


@pytest.mark.parametrize("page", ["README.md", *(f"docs/{name}.md" for name in DOCUMENTED)])
def test_python_blocks_run(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code = "\n".join(blocks(page, "python"))
    assert "import fedmos as fm" in code
    exec(compile(code, page, "exec"), {"__name__": page})


def test_configuration_page_is_a_valid_run(tmp_path):
    (text,) = blocks("docs/configuration.md", "toml")
    (tmp_path / "mos.toml").write_text(text)
    settings = config.load(config.RunConfig, tmp_path / "mos.toml", ["rounds=2", "eval_every=1"])
    result = settings.run(settings.algorithm, settings.selection, settings.seed)
    assert len(result.history) == 2


def test_tables_of_the_comparison_are_those_of_its_numbers():
    folder = ROOT / "docs" / "comparison"
    build = runpy.run_path(str(folder / "build.py"))
    methods = json.loads((folder / "table.json").read_text("utf-8"))["methods"]
    page = (folder / "README.md").read_text("utf-8")
    assert build["filled"](page, methods) == page
    methods[0]["per_seed"]["rounds"] = [1, 1, 1]
    assert build["filled"](page, methods) != page


def test_tables_of_fl_simulator_s_setting_are_those_of_its_numbers():
    folder = ROOT / "docs" / "comparison"
    build = runpy.run_path(str(folder / "build_fl_simulator.py"))
    numbers = json.loads((folder / "data" / "fl-simulator.json").read_text("utf-8"))
    page = (folder / "fl-simulator.md").read_text("utf-8")
    assert build["filled"](page, numbers) == page
    run = {"split": "dirichlet-0.6", "method": "FedMoS", "rounds": 300, "accuracy": {"60": 0.5, "300": 0.25}}
    build["add"](numbers, run | {"rounds": 299})
    assert build["filled"](page, numbers) == page  # not complete
    build["add"](numbers, run | {"split": "one-class", "rounds": 119, "diverged": "client 3"})
    assert "| FedMoS | 50.00 | diverged in round 120 |" in build["filled"](page, numbers)
    numbers["runs"]["dirichlet-0.6"]["FedAvg"]["accuracy"]["300"] = 0.1234
    assert "| FedAvg | 80.65 | 12.34 |" in build["filled"](page, numbers)


def test_the_report_of_the_comparison_has_its_numbers():
    folder = ROOT / "docs" / "comparison"
    report = (folder / "report.html").read_text("utf-8")
    assert len(report) < 5_000_000
    for method in json.loads((folder / "table.json").read_text("utf-8"))["methods"]:
        assert spread(method["per_seed"]["rounds"]) in report
        assert spread(method["per_seed"]["final"], 3) in report


PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]


def anchor(heading: str) -> str:
    """The anchor that GitHub gives to a heading."""
    return re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_links_between_pages_exist(page):
    for link in re.findall(r"\]\(([^)\s]+)\)", page.read_text("utf-8")):
        if link.startswith("http"):
            continue
        path, _, place = link.partition("#")
        target = page.parent / path if path else page
        assert target.exists(), link
        if place:
            assert place in map(anchor, re.findall(r"^#+ (.*)$", target.read_text("utf-8"), re.M)), link


@pytest.mark.parametrize("page", ["CONTRIBUTING.md", "docs/engine.md"])
def test_modules_that_the_developer_pages_name_exist(page):
    paths = set(re.findall(r"[`>]((?:\w+/)+\w+\.py)\b", (ROOT / page).read_text("utf-8")))
    assert len(paths) > 5
    assert [path for path in paths if not ((ROOT / path).exists() or (ROOT / "src/fedmos" / path).exists())] == []


def test_functions_that_the_engine_page_names_exist():
    text = (ROOT / "docs/engine.md").read_text("utf-8")
    sources = "\n".join(path.read_text("utf-8") for path in (ROOT / "src/fedmos").rglob("*.py"))
    named = re.findall(r"^\| \d+ \| `([\w.]+)` \(`([\w/]+\.py)`\)", text, re.M)
    assert len(named) == 8, "from fm.run to the server's step, naming at most eight functions"
    for name, path in named:
        assert re.search(rf"def {name.split('.')[-1]}\(", (ROOT / "src/fedmos" / path).read_text("utf-8")), name
    for name in set(re.findall(r"`([A-Z]\w+)(?:\.\w+)?`", text)) - {"N", "S", "M", "R", "D"}:
        assert re.search(rf"^(class {name}\b|{name}\b)", sources, re.M), name
