"""Estimates of compilation: from the program's size, and from past compilations on the machine."""

import json

import pytest

from fedmos.core.notices import display_messages
from fedmos.engine import compile_time, plan_cache
from fedmos.engine.compile_time import CompileClock


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def path(tmp_path):
    return tmp_path / "engines.json"


def compile_(clock: Clock, compilations: CompileClock, seconds: float, operations: int, key: str) -> list[str]:
    shown: list[str] = []
    with display_messages(shown.append), compilations.announced(operations, "cpu", key):
        clock.now += seconds
    return shown


def test_the_first_compilation_is_announced_with_the_usual_time(path):
    clock = Clock()
    compilations = CompileClock(lambda: path, clock)
    shown = compile_(clock, compilations, 60.0, 100, "a")
    assert shown == ["Compiling the training program (about 40 s) …", "Compiled in 60 s"]
    assert compilations.expected(100, "cpu", "other") == pytest.approx(15 * 1.5)  # the compiler is loaded
    assert CompileClock(lambda: path, clock).expected(100, "cpu", "other") == pytest.approx(40 * 1.5)
    assert CompileClock(lambda: path, clock).expected(100, "cuda", "other") == pytest.approx(40)


def test_a_program_that_was_compiled_before_takes_as_long_again(path):
    clock = Clock()
    compile_(clock, CompileClock(lambda: path, clock), 7.0, 100, "a")
    assert compile_(clock, CompileClock(lambda: path, clock), 6.0, 100, "a")[0].endswith("(about 7 s) …")


def test_a_run_compiles_two_programs(path):
    assert CompileClock(lambda: path).expected_of_run(20, "cpu") == pytest.approx(25 + 2 * (5 + 16))


def test_compilations_and_measurements_share_the_file(path):
    times = {"loop": 1.0, "batched": 2.0, "operations": 3.0}
    plan_cache.write_measurement(path, "job", times)
    for number in range(plan_cache._KEPT + 5):
        plan_cache.write_compilation(path, f"cpu {number}", {"operations": 1.0, "start": 0.0, "seconds": 1.0})
    plan_cache.write_measurement(path, "other", times)
    assert plan_cache.read_measurements(path) == {"job": times, "other": times}
    kept = plan_cache.read_compilations(path)
    assert len(kept) == plan_cache._KEPT
    assert list(kept)[-1] == f"cpu {plan_cache._KEPT + 4}"


@pytest.mark.parametrize("written", ["", "[]", '{"compilations": 3}', '{"compilations": {"cpu a": {"seconds": "x"}}}'])
def test_what_others_wrote_is_ignored(path, written):
    path.write_text(written)
    assert CompileClock(lambda: path).expected(100, "cpu", "a") == pytest.approx(40)
    plan_cache.write_compilation(path, "cpu a", {"operations": 1.0, "start": 1.0, "seconds": 2.0})
    assert json.loads(path.read_text())["compilations"].keys() == {"cpu a"}


def test_an_interrupted_compilation_is_not_recorded(path):
    compilations = CompileClock(lambda: path, Clock())
    with pytest.raises(KeyboardInterrupt), compilations.announced(10, "cpu", "a"):
        raise KeyboardInterrupt
    assert plan_cache.read_compilations(path) == {}


def test_the_clock_of_the_process_uses_the_cache_of_the_machine(tmp_path, monkeypatch):
    monkeypatch.setenv("FEDMOS_CACHE", str(tmp_path))
    assert compile_time.CLOCK._path() == tmp_path / "engines.json"
