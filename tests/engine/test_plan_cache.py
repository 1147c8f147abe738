"""The file with measurements: several samples, merged, forgotten after a while, and shared by processes."""

import threading

import pytest

from fedmos.engine import plan_cache
from fedmos.engine.plan_cache import JobMeasurements

DAY = 86400.0


@pytest.fixture
def path(tmp_path, monkeypatch):
    monkeypatch.setattr(plan_cache, "now", lambda: 100 * DAY)
    return tmp_path / "engines.json"


def job(programs: dict[str, float] | None = None, **samples: list[tuple[float, float]]) -> JobMeasurements:
    kinds = {kind.replace("_", " "): taken for kind, taken in samples.items()}
    return JobMeasurements(samples=kinds, operations=3.0, programs=programs or {})


def test_compilations_and_measurements_share_the_file(path):
    times = job(loop=[(99 * DAY, 1.0)], batched=[(99 * DAY, 2.0)])
    plan_cache.write_measurement(path, "job", times)
    for number in range(plan_cache._KEPT + 5):
        plan_cache.write_compilation(path, f"cpu {number}", {"operations": 1.0, "start": 0.0, "seconds": 1.0})
    plan_cache.write_measurement(path, "other", times)
    assert plan_cache.read_measurements(path) == {"job": times, "other": times}
    kept = plan_cache.read_compilations(path)
    assert len(kept) == plan_cache._KEPT
    assert list(kept)[-1] == f"cpu {plan_cache._KEPT + 4}"


def test_new_samples_are_added_to_the_stored_ones(path):
    early, late = (99 * DAY, 1.0), (99.5 * DAY, 0.5)
    plan_cache.write_measurement(path, "job", job(loop=[late], batched=[late], programs={"a": 5.0}))
    plan_cache.write_measurement(path, "job", job(loop=[early], run_loop=[early]))
    found = plan_cache.read_measurements(path)["job"]
    assert found == job(loop=[early, late], batched=[late], run_loop=[early], programs={"a": 5.0})
    assert found.best("loop") == 0.5
    assert found.best("compiled") is None


def test_only_the_newest_samples_are_kept(path):
    for number in range(50):
        plan_cache.write_measurement(path, "job", job(loop=[(99 * DAY + number, 1.0)]))
    (found,) = plan_cache.read_measurements(path).values()
    assert [when - 99 * DAY for when, _ in found.samples["loop"]] == list(range(50 - plan_cache._SAMPLES, 50))


def test_old_samples_and_those_of_the_future_are_forgotten(path, monkeypatch):
    taken = [(69 * DAY, 1.0), (71 * DAY, 2.0), (102 * DAY, 3.0)]
    plan_cache.write_measurement(path, "job", job(loop=taken))
    plan_cache.write_compilation(path, "cpu a", {"operations": 1.0, "start": 0.0, "seconds": 1.0})
    assert plan_cache.read_measurements(path) == {"job": job(loop=[(71 * DAY, 2.0)])}
    monkeypatch.setattr(plan_cache, "now", lambda: 131 * DAY)
    assert plan_cache.read_compilations(path) == {}
    assert plan_cache.read_measurements(path) == {}


def test_contradicted_trials_are_dropped_and_rounds_are_kept(path):
    old, new = (98 * DAY, 1.0), (99 * DAY, 2.0)
    plan_cache.write_measurement(path, "job", job(loop=[old], batched=[old], run_loop=[old]))
    plan_cache.write_measurement(path, "job", job(loop=[new]), since=98.5 * DAY)
    assert plan_cache.read_measurements(path)["job"] == job(loop=[new], run_loop=[old])


def test_an_engine_that_fails_is_stored(path):
    plan_cache.write_measurement(path, "job", job(compiled=[(99 * DAY, float("inf"))]))
    assert plan_cache.read_measurements(path)["job"].best("compiled") == float("inf")


@pytest.mark.parametrize(
    "entry",
    [
        "7",
        '{"operations": "x", "samples": {}}',
        '{"operations": 3.0}',
        '{"operations": 3.0, "samples": [], "programs": {}}',
        '{"operations": 3.0, "samples": {}, "programs": {"a": "x"}}',
        '{"loop": 1.0, "batched": 2.0, "operations": 3.0, "cost": 40.0}',  # of an earlier version
    ],
)
def test_damaged_entries_are_dropped_alone(path, entry):
    path.write_text('{"damaged": ' + entry + "}")
    plan_cache.write_measurement(path, "job", job(loop=[(99 * DAY, 1.0)]))
    assert plan_cache.read_measurements(path) == {"job": job(loop=[(99 * DAY, 1.0)])}


@pytest.mark.parametrize("sample", ["[1.0]", "5", '["x", 1.0]', "[8500000.0, -1.0]", "[8500000.0, NaN]"])
def test_damaged_samples_are_dropped_alone(path, sample):
    samples = f"[{sample}, [8600000.0, 2.0]]"
    path.write_text(f'{{"job": {{"operations": 3.0, "samples": {{"loop": {samples}, "batched": 4}}}}}}')
    assert plan_cache.read_measurements(path) == {"job": job(loop=[(8600000.0, 2.0)])}


def test_writers_at_the_same_time_lose_nothing(path):
    def write(number: int) -> None:
        plan_cache.write_measurement(path, f"job {number}", job(loop=[(99 * DAY, 1.0)]))
        plan_cache.write_compilation(path, f"cpu {number}", {"operations": 1.0, "start": 0.0, "seconds": 1.0})

    writers = [threading.Thread(target=write, args=(number,)) for number in range(16)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    assert len(plan_cache.read_measurements(path)) == len(plan_cache.read_compilations(path)) == 16
    assert {file.name for file in path.parent.iterdir()} == {path.name, f"{path.name}.lock"}


def test_a_folder_that_cannot_be_written_is_not_an_error(tmp_path):
    (tmp_path / "file").write_text("")
    plan_cache.write_measurement(tmp_path / "file" / "engines.json", "job", job(loop=[(0.0, 1.0)]))
