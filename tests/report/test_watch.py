"""Reports of comparisons and runs that are still running."""

import json
import re
import shutil

import pytest
from typer.testing import CliRunner

from fedmos.cli.commands import app
from fedmos.report import page
from fedmos.report import watch as watching
from fedmos.report.running import running_study
from fedmos.report.watch import watch
from helpers import browser, comparisons


@pytest.fixture
def running(comparison, tmp_path):
    """A comparison at its fifth round, and a function that completes it."""
    folder = tmp_path / "running"
    shutil.copytree(comparison, folder)
    full = {path: path.read_bytes() for path in folder.glob("runs/*/metrics.jsonl")}
    table = (folder / "table.json").read_bytes()
    (folder / "table.json").unlink()
    for path, content in full.items():
        lines = content.splitlines(keepends=True)
        path.write_bytes(b"".join(lines[:5]) + lines[5][:20])  # the sixth line is being written
        (path.parent / "lock").write_text("{}")

    def complete():
        for path, content in full.items():
            path.write_bytes(content)
            (path.parent / "lock").write_text("")
        (folder / "table.json").write_bytes(table)

    return folder, complete


def data_of(text):
    return json.loads(re.search(r'id="data">(.*?)</script>', text, re.S)[1])


def test_a_report_follows_its_comparison_and_ends_with_it(running, comparison, tmp_path):
    folder, complete = running
    out, pages, waits, lines = tmp_path / "live.html", [], [], []

    def sleep(seconds):
        waits.append(seconds)
        pages.append(out.read_text("utf-8"))
        if len(waits) == 2:  # nothing has changed at the first look again
            complete()

    watch(folder, out, every=7.0, sleep=sleep, echo=lines.append)
    assert waits == [7.0, 7.0]
    live = data_of(pages[0])
    assert live["live"] == {"every": 7.0}
    assert live["methods"] == [method["label"] for method in comparisons.METHODS]
    assert [c["rounds"] for c in live["metrics"][0]["curves"]] == [[1, 2, 3, 4, 5]] * 3
    assert "Running: 0 of 9 runs complete, 45 of 72 rounds." in pages[0]
    assert "reloads itself every 7 s" in pages[0]
    final = out.read_text("utf-8")
    assert data_of(final)["live"] is None
    assert final.replace(str(folder), "F") == page.html(watching.read_study([comparison])).replace(str(comparison), "F")
    assert lines == [f"Report: {out}, written again whenever a round ends; Ctrl-C stops.", f"Complete. Report: {out}"]


def test_nothing_is_written_before_the_first_round(running, tmp_path):
    folder, _ = running
    for path in folder.glob("runs/*/metrics.jsonl"):
        path.unlink()
    out = tmp_path / "live.html"

    def sleep(seconds):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        watch(folder, out, sleep=sleep)
    assert not out.exists()


def test_methods_are_shown_while_they_are_tuned(tmp_path):
    folder = tmp_path / "tuned"
    change = {"methods": comparisons.METHODS[:1], "seeds": [0], "rounds": 2}
    comparisons.run(folder, **change, tune={"lr": [0.1, 0.2], "seed": 9})
    (folder / "table.json").unlink()
    study = running_study(folder, 3.0)
    assert [result.label for result in study.results] == ["FedAvg"]
    assert (study.progress.complete, study.progress.runs) == (3, 3)
    shutil.rmtree(folder / "runs")
    study = running_study(folder, 3.0)
    assert [result.label for result in study.results] == ["FedAvg, tuning, lr 0.1", "FedAvg, tuning, lr 0.2"]
    assert (study.progress.complete, study.progress.runs, study.progress.planned) == (2, 3, 6)
    assert "tuning, lr 0.2" in page.html(study)


def test_a_run_is_followed_too(quick, tmp_path):
    folder = tmp_path / "run"
    quick(out=folder, rounds=3)
    (folder / "lock").write_text("{}")
    study = running_study(folder, 3.0)
    assert (study.progress.complete, study.progress.rounds, study.progress.planned) == (0, 3, 3)
    assert str(study.progress).startswith("Running: 3 of 3 rounds.")
    assert page.html(study)
    (folder / "lock").write_text("")
    lines = []
    watch(folder, tmp_path / "r.html", sleep=None, echo=lines.append)
    assert lines == [f"Complete. Report: {tmp_path / 'r.html'}"]


def test_on_the_command_line(running, tmp_path, monkeypatch):
    folder, _ = running
    out = tmp_path / "live.html"

    def interrupted(seconds):
        raise KeyboardInterrupt

    monkeypatch.setattr(watching.watch, "__kwdefaults__", watching.watch.__kwdefaults__ | {"sleep": interrupted})
    done = CliRunner().invoke(app, ["report", "--watch", str(folder), "--out", str(out)])
    assert done.exit_code == 0
    assert "Stopped. The report so far:" in done.stdout
    with pytest.raises(ValueError, match="Cannot watch 2 folders at once; use --watch with one"):
        CliRunner().invoke(app, ["report", "--watch", "a", "b"], catch_exceptions=False)
    with pytest.raises(FileNotFoundError, match="it is the folder of neither a run nor a comparison"):
        CliRunner().invoke(app, ["report", "--watch", str(tmp_path)], catch_exceptions=False)


@pytest.mark.browser
@browser.needs_browser
def test_a_page_that_reloads_keeps_what_was_chosen(running, tmp_path):
    folder, _ = running
    file = tmp_path / "live.html"
    file.write_text(page.html(running_study(folder, 1000.0)), "utf-8")
    browser.ask(
        file,
        """
        for (const selector of ["input[name=logY]", "input[value=megabytes]", "input[name=method]"]) {
          document.querySelector(selector).click(); await settled();
        }
        """,
    )
    found = browser.ask(
        file,
        """
        answer.kept = [document.querySelector("input[name=logY]").checked,
          document.querySelector("input[name=axis]:checked").value, document.getElementById("picked").textContent];
        answer.status = document.querySelector("header [role=status]").textContent;
        """,
    )
    assert found["faults"] == []
    assert found["kept"] == [True, "megabytes", "2 of 3"]
    assert found["status"].startswith("Running: ")
