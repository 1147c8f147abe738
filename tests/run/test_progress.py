"""The display of progress, messages on it, and Ctrl-C in Python."""

import io
import logging
import signal
import sys

import pytest

import fedmos as fm
from fedmos.core.interrupts import message_on_interrupt
from fedmos.core.notices import display_messages, notify, show_message
from fedmos.run import callbacks
from fedmos.run.callbacks import PlainProgress, Progress, progress_display


@pytest.fixture(autouse=True)
def plain_ctrl_c():
    """A shell that starts the tests in the background ignores Ctrl-C for them."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


class Clock:
    """A clock that a test sets."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


def record(round_: int, **values) -> fm.Record:
    return fm.Record(round=round_, cohort=[0], weights=[1.0], seconds=0.0, bytes_down=0, bytes_up=0, **values)


@pytest.mark.parametrize("width", [10, 20, 40, 60, 80, 200])
@pytest.mark.parametrize("label", ["FedAvg", "a label of rather many words that fills a line", "联邦学习" * 10])
def test_the_bar_fits_the_terminal(quick, width, label):
    out = io.StringIO()
    quick(callbacks=[Progress(label, out, width=lambda: width)])
    lines = out.getvalue().replace("\x1b[K", "").replace("\n", "").split("\r")
    assert max(map(callbacks._cells, lines)) < width
    assert "3/3" in lines[-1]
    if width == 200:
        assert "█" in lines[-1]
        assert "accuracy 0." in lines[-1]


def test_the_bar_follows_a_terminal_that_is_resized():
    out, clock, widths = io.StringIO(), Clock(), iter([100, 30])
    bar = Progress("FedAvg", out, clock, lambda: next(widths))
    bar.on_start(10, 0)
    clock.now = 20.0
    bar.on_round(record(1, train_loss=1.0, accuracy=0.5))
    wide, narrow = out.getvalue().replace("\x1b[K", "").split("\r")[1:]
    assert wide == f"FedAvg {'░' * 24} 0/10"
    assert narrow == "FedAvg 1/10  3:00 left"


def test_fast_rounds_do_not_flood_the_terminal():
    out, clock = io.StringIO(), Clock()
    bar = Progress("FedAvg", out, clock, lambda: 80)
    bar.on_start(1000, 0)
    for t in range(1, 1001):
        clock.now = t / 1000
        bar.on_round(record(t))
    assert out.getvalue().count("\r") < 15
    assert "1000/1000" in out.getvalue().split("\r")[-1]


def test_a_message_stands_on_its_own_line_above_the_bar():
    out = io.StringIO()
    bar = Progress("FedAvg", out, Clock(), lambda: 80)
    bar.say("Compiling the training program (about 40 s) …")
    bar.on_start(10, 0)
    bar.say("Compiled in 38 s")
    assert out.getvalue().startswith("Compiling the training program (about 40 s) …\n\rFedAvg")
    assert out.getvalue().endswith("\r\x1b[KCompiled in 38 s\n")


def test_plain_lines_come_every_few_seconds():
    lines, clock = [], Clock()
    plain = PlainProgress("FedAvg", lines.append, clock)
    plain.on_start(100, 0)
    for t in range(1, 101):
        clock.now = t / 5  # 20 s in all
        plain.on_round(record(t, train_loss=0.5))
    assert lines == [f"FedAvg: round {t} of 100  loss 0.5000" for t in (25, 50, 75, 100)]


def test_progress_is_shown_on_a_terminal_or_where_it_is_asked_for(monkeypatch, caplog):
    monkeypatch.setattr(Progress, "is_enabled", lambda: True)
    assert isinstance(progress_display(None, "a"), Progress)
    assert isinstance(progress_display(True, "a"), Progress)
    assert progress_display(False, "a") is None
    monkeypatch.setattr(Progress, "is_enabled", lambda: False)
    assert isinstance(progress_display(True, "a"), PlainProgress)
    assert progress_display(None, "a") is None
    with caplog.at_level(logging.INFO, "fedmos"):
        assert isinstance(progress_display(None, "a"), PlainProgress)
        assert progress_display(False, "a") is None


def test_progress_is_an_option_that_is_not_recorded(quick, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(Progress, "is_enabled", lambda: True)
    result = quick(progress=False, out=tmp_path / "run")
    assert capsys.readouterr().err == ""
    assert "progress" not in result.info
    assert len(quick(progress=True, out=tmp_path / "run", resume=True, rounds=4).history) == 4
    assert "4/4" in capsys.readouterr().err
    with pytest.raises(ValueError, match="run: 'progress' must be"):
        quick(progress="no")


def test_runs_side_by_side_share_a_bar(digits, monkeypatch, capsys):
    monkeypatch.setattr(Progress, "is_enabled", lambda: True)
    shared = {"model": fm.models.logistic(features=64), "data": digits, "selection": fm.Uniform(m=4)}
    shared |= {"rounds": 3, "local_steps": 2, "batch_size": 4, "algorithm": fm.FedAvg(lr=0.1), "engine": "batched"}
    fm.run_many([{"seed": 0}, {"seed": 1}, {"seed": 2}], **shared)
    shown = capsys.readouterr().err
    assert "FedAvg and 2 more" in shown
    assert "3/3" in shown.split("\r")[-1]


def test_messages_reach_the_display_or_else_the_standard_error(capsys):
    shown = []
    with display_messages(shown.append):
        notify("a")
        show_message("b")
    notify("c")
    show_message("d")
    assert shown == ["a", "b"]
    assert capsys.readouterr().err == "d\n"


def test_ctrl_c_is_answered_with_how_to_continue(quick, tmp_path, capsys):
    def press(record):
        if record.round == 2:
            signal.raise_signal(signal.SIGINT)

    out = str(tmp_path / "run")
    result = quick(callbacks=[press], out=out, rounds=5)
    assert result.interrupted
    assert len(result.history) == 2
    answer = f"Stopping … Continue with: fm.run(..., out={out!r}, resume=True)"
    assert capsys.readouterr().err.strip() == answer
    assert len(quick(out=out, rounds=5, resume=True).history) == 5
    assert quick(callbacks=[press], rounds=5).interrupted
    assert "The result so far is returned" in capsys.readouterr().err
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_ctrl_c_while_the_plan_is_chosen_ends_before_round_one_and_resumes(quick, tmp_path, monkeypatch, capsys):
    """The plan is chosen by measuring and compiling, which can take minutes."""
    module = sys.modules["fedmos.run.plan"]
    choose = module.choose_plan

    def press(*arguments):
        signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(module, "choose_plan", press)
    stopped = quick(out=tmp_path / "run")
    assert stopped.interrupted
    assert len(stopped.history) == 0
    assert "engine" not in stopped.info
    assert "Stopping … Continue with: fm.run" in capsys.readouterr().err
    with pytest.raises(KeyboardInterrupt):
        fm.run_many([{"seed": 0}], **_arguments(quick))
    monkeypatch.setattr(module, "choose_plan", choose)
    resumed = quick(out=tmp_path / "run", resume=True)
    assert resumed.params.equal(quick().params)
    assert resumed.info["engine"] in ("loop", "batched")


def _arguments(quick) -> dict:
    data = fm.datasets.load("digits").partition(fm.partition.IID(), clients=4)
    return {
        "model": fm.models.logistic(features=64),
        "data": data,
        "algorithm": fm.FedAvg(lr=0.1),
        "selection": fm.Uniform(m=2),
        "rounds": 1,
        "local_steps": 1,
    }


def test_the_handler_of_an_application_is_left_alone(quick):
    pressed = []
    before = signal.signal(signal.SIGINT, lambda number, frame: pressed.append(number))
    try:
        with message_on_interrupt("never shown"):
            signal.raise_signal(signal.SIGINT)
    finally:
        signal.signal(signal.SIGINT, before)
    assert pressed == [signal.SIGINT]
