"""Own classes in the commands: run, resume, compare, sweep, report, export."""

import pytest
import torch

import fedmos as fm
from fedmos.storage import toml
from helpers.command_line import command_line
from helpers.own_classes import MINE, RUN

MORE = {
    "title": "Own classes",
    "seeds": [0, 1],
    "light": True,
    "target": {"top2": 0.6},
    "methods": [
        {"label": name, "algorithm": {"name": f"mine.py:{name}", "lr": 0.1}, "selection": {"name": "Uniform", "m": 2}}
        for name in ("Half", "Same")
    ],
}


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "mine.py").write_text(MINE)
    (tmp_path / "run.toml").write_text(toml.dumps(RUN))
    return tmp_path


def done(*arguments, cwd):
    result = command_line(*arguments, cwd=cwd)
    assert result.returncode == 0, result.stderr
    return result.stdout


def test_a_run_resumes_and_predicts_from_elsewhere(folder, tmp_path_factory):
    other = tmp_path_factory.mktemp("other")
    batched = ("--set", "engine=batched")  # measured times could choose another engine for the second run
    done("run", str(folder / "run.toml"), "--out", "first", "-q", *batched, cwd=other)
    done("run", str(folder / "run.toml"), "--out", "all", "-q", *batched, "--set", "rounds=4", cwd=other)
    done("resume", "first", "--set", "rounds=4", "-q", cwd=other)
    result, expected = (fm.Result.load(other / name) for name in ("first", "all"))
    assert len(result.history) == 4
    assert torch.equal(result.params, expected.params)
    assert result.predict(torch.zeros(2, 6)).shape == (2, 3)
    done("export", "first", "--out", "model.safetensors", cwd=other)
    done("report", "first", "--out", "report.html", cwd=other)
    assert "Half" in (other / "report.html").read_text()


def test_a_changed_file_is_named(folder):
    done("run", "run.toml", "--out", "run", "-q", cwd=folder)
    (folder / "mine.py").write_text(MINE + "\n# changed\n")
    for arguments in (("resume", "run"), ("run", "run.toml", "--out", "run", "--resume")):
        refused = command_line(*arguments, "--set", "rounds=4", cwd=folder)
        assert refused.returncode == 2
        assert f"because {folder / 'mine.py'}, which defines its own classes, has changed" in refused.stderr
    (folder / "mine.py").unlink()
    refused = command_line("resume", "run", cwd=folder)
    assert f"there is no file {folder / 'mine.py'}" in refused.stderr


@pytest.mark.extended
def test_a_comparison_and_its_report(folder):
    (folder / "mine.py").write_text(MINE + "\n\nclass Same(Half):\n    share = 1.0\n")
    shared = {name: v for name, v in RUN.items() if name not in ("algorithm", "selection", "target")}
    (folder / "compare.toml").write_text(toml.dumps(shared | MORE))
    out = done("compare", "compare.toml", "--out", "both", "-q", cwd=folder)
    assert "Same" in out
    again = done("compare", "compare.toml", "--out", "both", "-q", cwd=folder)
    assert "nothing was trained" in again
    done("report", "both", "--out", "report.html", cwd=folder)
    (folder / "mine.py").write_text((folder / "mine.py").read_text() + "\n# changed\n")
    refused = command_line("compare", "compare.toml", "--out", "both", "-q", cwd=folder)
    assert "mine.py, which defines its own classes, has changed" in refused.stderr


def test_a_sweep_over_own_classes(folder):
    pytest.importorskip("optuna")
    space = {"algorithm.name": ["mine.py:Half", "FedAvg"], "algorithm.lr": {"low": 0.05, "high": 0.2}}
    fixed = {"algorithm": {"name": "FedAvg", "lr": 0.1}, "target": {"top2": 1.5}}
    search = {"trials": 3, "metric": "top2", "space": space}
    (folder / "sweep.toml").write_text(toml.dumps(RUN | fixed | {"sweep": search}))
    out = done("sweep", "sweep.toml", "--out", "search", "-q", cwd=folder)
    assert "top2" in out
    (folder / "mine.py").write_text(MINE + "\n# changed\n")
    refused = command_line("sweep", "sweep.toml", "--out", "search", "--set", "sweep.trials=4", cwd=folder)
    assert "mine.py, which defines its own classes, has changed" in refused.stderr
