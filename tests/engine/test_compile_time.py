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


def compile_(
    clock: Clock,
    compilations: CompileClock,
    seconds: float,
    operations: int,
    key: str,
    *,
    cached: bool = False,
    kept: bool = False,
) -> list[str]:
    shown: list[str] = []
    with display_messages(shown.append), compilations.announced(operations, "cpu", key) as compilation:
        clock.now += seconds
        compilation.cached, compilation.kept = cached, kept
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


def test_a_program_on_the_disk_takes_a_part_of_that_until_it_is_measured(path, tmp_path, monkeypatch):
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    clock = Clock()
    compile_(clock, CompileClock(lambda: path, clock), 20.0, 100, "a", kept=True)
    assert CompileClock(lambda: path).expected(100, "cpu", "a") == pytest.approx(6)
    compile_(clock, CompileClock(lambda: path, clock), 2.0, 100, "a", cached=True, kept=True)
    assert CompileClock(lambda: path).expected(100, "cpu", "a") == 2
    assert CompileClock(lambda: path).expected_of_job({"a": 100.0}, "cpu") == 2
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "removed"))
    assert CompileClock(lambda: path).expected(100, "cpu", "a") == 20
    assert CompileClock(lambda: path).expected(100, "cpu", "other") == pytest.approx(20)  # of the same size


def test_the_compiler_is_loaded_once_for_all_programs_of_a_job(path):
    clock = Clock()
    compilations = CompileClock(lambda: path, clock)
    compile_(clock, compilations, 40.0, 100, "a")
    compile_(clock, compilations, 15.0, 100, "b")
    anew = CompileClock(lambda: path)
    assert anew.expected_of_job({"a": 100.0, "b": 100.0}, "cpu") == 55
    assert anew.expected_of_job({"b": 100.0, "a": 100.0}, "cpu") == pytest.approx(15 + 25 + 15)


def test_small_programs_and_those_on_the_disk_do_not_lower_the_estimate(path):
    """Where tests had compiled programs of a few operations in a second, one of 15 s was estimated to take 6."""
    clock = Clock()
    for number in range(20):
        compile_(clock, CompileClock(lambda: path, clock), 1.0, 10, f"small {number}")
        compile_(clock, CompileClock(lambda: path, clock), 1.0, 200, f"cached {number}", cached=True)
    assert CompileClock(lambda: path).expected(200, "cpu", "new") == 50
    assert CompileClock(lambda: path).expected(10, "cpu", "new") == pytest.approx(1)
    compile_(clock, CompileClock(lambda: path, clock), 25.0, 300, "similar")
    assert CompileClock(lambda: path).expected(200, "cpu", "new") == pytest.approx(50 * 25 / 60)


def test_the_preparation_of_a_program_counts(path):
    with CompileClock(lambda: path, Clock()).announced(100, "cpu", "a", spent=3.0):
        pass
    assert CompileClock(lambda: path).expected(100, "cpu", "a") == 3


def test_a_run_compiles_two_programs(path):
    assert CompileClock(lambda: path).expected_of_run(20, "cpu") == pytest.approx(25 + 2 * (5 + 16))
    assert CompileClock(lambda: path).expected_of_run(20, "cpu", programs=1) == pytest.approx(25 + 5 + 16)


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
