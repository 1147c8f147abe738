"""Numbers in tables come from committed results, from a command that the section names, or from a named publication."""

import json
import re
import runpy

import pytest

from fedmos.experiments.seed_statistics import spread
from helpers.documents import ROOT, commands, pages, tables

PAGES = pages()
DOCS = ROOT / "docs"
METHODS = {page for page in PAGES if page.startswith("docs/algorithms/")} | {"docs/choosing.md"}
FILLED = re.compile(
    r"<!-- (reproduce \S+|summary|\w+:begin|common|tuned|accuracy|curves|one-class|time|numbers: \S+|study: \S+.*) -->"
)
PUBLISHED = re.compile(r"(Table|Figure|Figures|Section|Tables) [IVX\d]+")
RUNS = re.compile(
    r"(python (benchmarks|examples|docs|tools)/|fedmos (demo|compare|run|exam|reproduce|privacy|data|deploy local)|make (bench|test|demo))"
)
DECLARED = {"Bytes and gradients", "Cost", "Hyper-parameters", "Settings"}
"""Sections of the methods' pages whose numbers are declarations, which the conformance suite checks."""


def unsupported(page, table):
    """Whether nothing in the section of a table of numbers says where they come from."""
    if not table.measured or (page in METHODS and table.heading in DECLARED):
        return False
    if FILLED.search(table.section) or PUBLISHED.search(table.section):
        return False
    return not any(RUNS.match(re.sub(r"^([A-Z_]+=\S+ )+", "", command)) for command in commands(table.section))


@pytest.mark.parametrize("page", [page for page, text in PAGES.items() if tables(text)])
def test_numbers_have_a_source(page):
    found = [f"{page}:{table.line} ({table.heading})" for table in tables(PAGES[page]) if unsupported(page, table)]
    assert not found, "name the command that measures these numbers, or fill them in from a committed file"


def test_a_table_without_a_source_is_found():
    (table,) = tables("# Speed\n\n| job | ms |\n|---|---:|\n| mlp | 1.2 |\n| cnn | 3.4 |\n")
    assert unsupported("page", table)
    (table,) = tables("# Speed\n\n`python benchmarks/engines.py`\n\n| job | ms |\n|---|---:|\n| mlp | 1.2 |\n")
    assert not unsupported("page", table)


MARKED = [(page, match) for page, text in PAGES.items() for match in re.findall(r"(?m)^<!-- numbers: (\S+) -->$", text)]


@pytest.mark.parametrize(("page", "path"), MARKED)
def test_marked_tables_have_the_numbers_of_their_file(page, path):
    text = PAGES[page]
    position = text[: text.index(f"<!-- numbers: {path} -->")].count("\n") + 2
    (table,) = [table for table in tables(text) if table.line == position]
    known = set(_numbers(json.loads((ROOT / path).read_text("utf-8"))))
    cells = [cell for row in table.rows[1:] for cell in row[1:]]
    wrong = [cell for cell in cells for word in re.findall(r"\d+(?:\.\d+)?", cell) if not _occurs(word, known)]
    assert known
    assert not wrong


def _numbers(value):
    """All numbers in a JSON value."""
    if isinstance(value, dict | list):
        for one in value.values() if isinstance(value, dict) else value:
            yield from _numbers(one)
    elif isinstance(value, int | float):
        yield float(value)


def _occurs(word, known):
    """Whether a printed number is one of the known numbers, rounded to its digits."""
    digits = len(word.partition(".")[2])
    return any(f"{value:.{digits}f}" == word for value in known)


def test_numbers_of_the_demo_in_the_readme():
    methods = json.loads((DOCS / "start" / "demo.json").read_text("utf-8"))["methods"]
    rounds = {method["method"]: spread(method["per_seed"]["rounds"]) for method in methods}
    text = " ".join((ROOT / "README.md").read_text("utf-8").split())
    assert f"(ACS) reaches 90 % after {rounds['FedMoS (ACS)']} rounds, FedAvg after {rounds['FedAvg']}." in text


def test_tables_of_the_comparison_are_those_of_its_numbers():
    folder = DOCS / "comparison"
    build = runpy.run_path(str(folder / "build.py"))
    methods = json.loads((folder / "table.json").read_text("utf-8"))["methods"]
    page = (folder / "README.md").read_text("utf-8")
    assert build["filled"](page, methods) == page
    methods[0]["per_seed"]["rounds"] = [1, 1, 1]
    assert build["filled"](page, methods) != page


def test_tables_of_fl_simulator_s_setting_are_those_of_its_numbers():
    folder = DOCS / "comparison"
    build = runpy.run_path(str(folder / "build_fl_simulator.py"))
    numbers = json.loads((folder / "data" / "fl-simulator.json").read_text("utf-8"))
    page = (folder / "fl-simulator.md").read_text("utf-8")
    assert build["filled"](page, numbers) == page
    run = {"split": "dirichlet-0.6", "method": "FedMoS", "rounds": 300, "accuracy": {"40": 0.5, "300": 0.25}}
    build["add"](numbers, run | {"rounds": 219})
    assert build["filled"](page, numbers) == page  # too short
    build["add"](numbers, run | {"split": "one-class", "rounds": 59, "diverged": "client 3"})
    assert "| FedMoS | 50.00 | diverged in round 60 |" in build["filled"](page, numbers)
    build["add"](numbers, run | {"method": "FedAvg", "rounds": 250, "accuracy": {"220": 0.1234}})
    assert "| FedAvg | 80.65 | 12.34 | ended after 250 |" in build["filled"](page, numbers)


def test_tables_of_pfllib_are_those_of_its_numbers():
    build = runpy.run_path(str(DOCS / "comparison" / "build_pfllib.py"))
    text = (DOCS / "comparison" / "data" / "pfllib.json").read_text("utf-8")
    numbers = json.loads(text)
    assert build["written"](numbers) == text
    page = (DOCS / "reproduction" / "pfllib.md").read_text("utf-8")
    assert build["filled"](page, numbers) == page
    numbers["runs"] = {}
    run = {
        "split": "pathological",
        "method": "FedAvg",
        "images": 70_000,
        "rounds": 60,
        "accuracy": {"20": 0.5, "60": 0.4},
    }
    build["add"](numbers, run | {"images": 2000, "rounds": 99})
    assert not numbers["runs"]
    build["add"](numbers, run)
    build["add"](numbers, run | {"rounds": 40})
    table = build["filled"](page, numbers)
    assert "| FedAvg | 80.41 ± 0.08 | 50.00 | 60 | -30.41 | 85.85 ± 0.19 | not run | – | – |" in table
    assert "| FedAvg, Pathological | 50.00 | 50.00 | – |" in table
    for code, seconds in (("PFLlib", 8.0), ("PFLlib", 6.0), ("fedmos", 0.5)):
        key = {"code": code, "method": "Ditto", "split": "dirichlet", "device": "H200"}
        build["add_time"](numbers, key | {"seconds": seconds, "evaluated": 2 * seconds})
    row = "| Ditto, Dirichlet 0.1 | H200 | 6.00 | 12.00 | 0.50 | 1.00 | 12.0 | 12.0 |"
    assert row in build["filled"](page, numbers)


def test_tables_of_studies_are_those_of_their_numbers():
    build = runpy.run_path(str(DOCS / "comparison" / "build_studies.py"))
    numbers = json.loads((DOCS / "comparison" / "data" / "studies.json").read_text("utf-8"))
    filled = [text for page in DOCS.glob("*.md") if "<!-- study: " in (text := page.read_text("utf-8"))]
    assert len(filled) >= 3
    for page in filled:
        assert build["filled"](page, numbers) == page
    numbers["robust"]["none"]["runs"][0]["accuracy"] = 0.0
    assert any(build["filled"](page, numbers) != page for page in filled)


def test_tables_of_studies_with_cifar10():
    build = runpy.run_path(str(DOCS / "comparison" / "build_studies.py"))
    numbers = {}
    for name in ("asynchronous-cifar10", "private-cifar10", "codecs-cifar10"):
        assert build["written"](name, numbers) == "Not run."
        assert build["setting"](name, numbers) == ""
    tried = [{"lr": 0.1, "clip": 0.3}, {"lr": 0.3, "clip": 1.0}]
    point = {"round": 20, "accuracy": 0.7, "mb": 4.0, "seconds": 2.5}
    job = {"method": "FedMoS", "rounds": 30, "tried": tried, "tuned": tried[0]}
    job["runs"] = [{"seed": 0, "curve": [point], "accuracy": 0.7, "reached": point}]
    build["add"](numbers, job | {"study": "asynchronous-cifar10", "variant": "buffered", "target": 0.65})
    noisy = {"variant": "8", "target": None, "noise_multiplier": 0.51}
    build["add"](numbers, job | {"study": "private-cifar10"} | noisy)
    table = build["written"]("asynchronous-cifar10", numbers)
    assert "| simulated seconds to 65 % | server steps to 65 % | MB to 65 % |" in table
    assert "| FedMoS, buffered | 0.1 (smallest tried) | 2.5 | 20 | 4 |" in table
    assert build["setting"]("asynchronous-cifar10", numbers) == "At most 30 rounds a run, 1 seed."
    assert "| FedMoS | not run | not run | 70.0 | 0.1*, 0.3* |" in build["written"]("private-cifar10", numbers)
    assert build["setting"]("private-cifar10", numbers) == "30 rounds a run, 1 seed. z is 0.510 for ε = 8."


def test_the_table_of_a_comparison_of_codecs(tmp_path):
    build = runpy.run_path(str(DOCS / "comparison" / "build_studies.py"))
    row = {"step_size": 0.05, "seeds": [0], "ended_early": []}
    rows = [
        row | {"method": f"FedAvg, {codec}", "per_seed": {"rounds": [20], "megabytes": [mb], "final": [0.71]}}
        for codec, mb in (("plain", 80.0), ("4 bits", 16.0))
    ]
    lost = {"rounds": [None], "megabytes": [None], "final": [0.1]}
    rows.append(row | {"method": "FedAvg, 8 bits", "per_seed": lost, "ended_early": [0]})
    (tmp_path / "table.json").write_text(json.dumps({"target": 0.7, "methods": rows}), "utf-8")

    def table():
        return build["written"]("codecs-cifar10", {"codecs-cifar10": build["compared"](tmp_path / "table.json")})

    assert (
        "| FedAvg, 8 bits | 0.05 | 0 of 1 runs reach it | 0 of 1 runs reach it | – | – | – | 10.0 (1 of 1 div"
        in table()
    )
    assert "| FedAvg, 4 bits | 0.05 | 20 | 16 | 5.0 | – | – | 71.0 |" in table()
    folder = tmp_path / "runs" / "1-lr0.05-seed0"
    folder.mkdir(parents=True)
    records = [{"bytes_up": 8e6, "bytes_down": 8e6, "accuracy": value} for value in (None, 0.75, 0.71)]
    (folder / "metrics.jsonl").write_text("".join(f"{json.dumps(record)}\n" for record in records), "utf-8")
    assert "| FedAvg, 4 bits | 0.05 | 20 | 16 | 5.0 | 48 | 75.0 | 71.0 |" in table()
    (tmp_path / "comparison.toml").write_text("rounds = 30", "utf-8")
    numbers = {"codecs-cifar10": build["compared"](tmp_path / "table.json")}
    assert build["setting"]("codecs-cifar10", numbers) == "30 rounds a run, 1 seed."


def test_rows_of_pfl_s_private_benchmark():
    build = runpy.run_path(str(DOCS / "comparison" / "build_studies.py"))
    numbers = {}
    run = {
        "study": "private-pfl",
        "code": "fedmos",
        "split": "iid",
        "method": "FedAvg",
        "epsilon": 2.0,
        "seed": 0,
        "timed": False,
        "images": 50_000,
        "planned": 3000,
        "rounds": 3000,
        "seconds_per_round": 0.5,
        "last": 0.6,
        "accuracy": {},
    }
    for change in (
        {},
        {"last": 0.1, "rounds": 2000},  # shorter than the run of this seed
        {"last": 0.1, "images": 500},
        {"last": 0.1, "planned": 3100},
        {"seed": 1, "last": 0.7},
        {"timed": True, "rounds": 110, "planned": 110, "seconds_per_round": 0.0123},
        {"code": "pfl", "rounds": 1250},
        {"split": "dirichlet", "epsilon": None},
    ):
        build["add"](numbers, run | change)
    iid = ["IID, FedAvg", "2", "60.0 (1) ended after 1,250", "65.0 ± 7.1 (2)", "not run", "0.0123"]
    others = ["Dirichlet 0.1, FedAvg", "none", "not run", "60.0 (1)", "not run", "not run"]
    assert build["private_pfl"](numbers)[1] == [iid, others]
    assert build["markdown"](*build["private_pfl"]({})) == "Not run."


def test_the_report_of_the_comparison_has_its_numbers():
    folder = DOCS / "comparison"
    report = (folder / "report.html").read_text("utf-8")
    assert len(report) < 5_000_000
    for method in json.loads((folder / "table.json").read_text("utf-8"))["methods"]:
        assert spread(method["per_seed"]["rounds"]) in report
        assert spread(method["per_seed"]["final"], 3) in report
