"""Ctrl-C on the command line: an answer at once, how to continue, exit code 130, no traceback."""

import os
import signal
import subprocess
import sys

import pytest
from typer.testing import CliRunner

from fedmos.cli import commands, interrupts
from fedmos.cli.interrupts import CtrlC, command_line, continue_with
from helpers import comparisons
from helpers.configs import RUN
from helpers.processes import descendants, running, wait_until


@pytest.fixture(autouse=True)
def forget(monkeypatch):
    """Start without a hint, and with Ctrl-C as in the foreground: shells ignore it for jobs in the background."""
    monkeypatch.setattr(interrupts, "_continue_with", None)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def test_the_first_answers_and_the_second_ends(capsys):
    ended = []
    ctrl_c = CtrlC(ended.append)
    continue_with(lambda: "fedmos resume runs/mos")
    with pytest.raises(KeyboardInterrupt), ctrl_c.handling():
        signal.raise_signal(signal.SIGINT)
    answer = "Stopping … (Ctrl-C again ends at once). Continue with: fedmos resume runs/mos\n"
    assert capsys.readouterr().err == answer
    assert ended == []
    with pytest.raises(KeyboardInterrupt):
        ctrl_c.handle()
    assert ended == [130]


def test_commands_are_quoted_for_the_shell(tmp_path):
    typed = command_line("compare", "my methods.toml", overrides=["rounds=3"], out=tmp_path / "a b")
    assert typed == f"fedmos compare 'my methods.toml' --set rounds=3 --out '{tmp_path / 'a b'}'"


@pytest.mark.parametrize(
    ("command", "work", "continued"),
    [
        (["run", "mos.toml"], "fedmos.config.training.Run", "fedmos run mos.toml --resume --out runs/mos"),
        (["compare", "c.toml"], "fedmos.experiments.compare.compare", "fedmos compare c.toml --out runs/c"),
        (["demo"], "fedmos.experiments.compare.compare", "fedmos demo --out runs/demo"),
        (["sweep", "s.toml"], "fedmos.experiments.sweep.sweep", "fedmos sweep s.toml --out runs/s"),
        (["reproduce", "x"], "fedmos.experiments.reproduce.command.reproduce", "the same command"),
    ],
)
def test_every_command_names_how_to_continue(command, work, continued, tmp_path, monkeypatch):
    from fedmos.storage import toml

    def press(*arguments, **options):
        CtrlC().handle()

    (tmp_path / "mos.toml").write_text(RUN)
    (tmp_path / "s.toml").write_text(RUN + '\n[sweep]\ntrials = 1\nspace = { "algorithm.lr" = [0.1] }\n')
    kept = comparisons.settings(seeds=[0]).model_dump(mode="json", exclude_none=True)
    (tmp_path / "c.toml").write_text(toml.dumps(kept))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(work, press)
    done = CliRunner().invoke(commands.app, command)
    assert done.exit_code == 130
    assert f"Continue with: {continued}\n" in done.output
    assert "Traceback" not in done.output
    assert "Aborted" not in done.output


@pytest.mark.skipif(sys.platform != "linux", reason="processes are listed in /proc")
@pytest.mark.extended
def test_ctrl_c_ends_a_comparison_and_its_workers_without_a_traceback(tmp_path):
    from fedmos.storage import toml

    kept = comparisons.settings(seeds=[0], rounds=10**6, methods=comparisons.METHODS[:1])
    (tmp_path / "long.toml").write_text(toml.dumps(kept.model_dump(mode="json", exclude_none=True)))
    metrics = tmp_path / "out" / "runs" / "0-lr0.05-seed0" / "metrics.jsonl"
    process = subprocess.Popen(
        [sys.executable, "-m", "fedmos", "compare", "long.toml", "--out", "out"],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    wait_until(lambda: process.poll() is not None or (metrics.exists() and metrics.stat().st_size > 0))
    workers = descendants(process.pid)
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does
    printed, _ = process.communicate()
    assert process.returncode == 130, printed
    assert "Continue with: fedmos compare long.toml --out out" in printed
    assert "Traceback" not in printed
    assert workers
    wait_until(lambda: not any(map(running, workers)))
    assert list((tmp_path / "out" / "runs" / "0-lr0.05-seed0" / "checkpoints").iterdir())  # the run was saved
