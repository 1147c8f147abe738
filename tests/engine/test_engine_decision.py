"""Decisions from measurements that are made up."""

import math

import pytest

from fedmos.engine.engine_decision import Saving, faster_engine, invalid_before, is_clear, saved_per_step, usual_gain
from fedmos.engine.plan_cache import JobMeasurements


def job(**seconds: float | list[float]) -> JobMeasurements:
    """Samples of each kind, one an hour."""
    lists = {kind.replace("_", " "): v if isinstance(v, list) else [v] for kind, v in seconds.items()}
    samples = {kind: [(3600.0 * hour, v) for hour, v in enumerate(taken)] for kind, taken in lists.items()}
    return JobMeasurements(samples=samples, operations=10.0)


@pytest.mark.parametrize(
    ("loop", "batched", "engine"),
    [(1.0, 0.5, "batched"), (1.0, 1.0, "batched"), (1.0, 1.1, "batched"), (1.0, 1.2, "loop"), (1.0, 9.0, "loop")],
)
def test_the_vectorised_engine_is_taken_unless_it_is_slower_by_a_margin(loop, batched, engine):
    assert faster_engine(job(loop=loop, batched=batched)) == engine


def test_a_disturbed_sample_does_not_count():
    assert faster_engine(job(loop=[1.0, 1.0], batched=[5.0, 0.6])) == "batched"


@pytest.mark.parametrize(("batched", "samples"), [(0.1, 2), (10.0, 2), (0.8, 4), (1.5, 4), (1.0, 6), (1.2, 6)])
def test_the_closer_the_times_the_more_samples_are_needed(batched, samples):
    for count in range(1, 7):
        assert is_clear(job(loop=[1.0] * count, batched=[batched] * count)) is (count >= samples)
    assert not is_clear(job(loop=[1.0] * 6, batched=[batched]))
    assert not is_clear(job(loop=1.0))


def test_trials_are_doubted_if_rounds_contradict_them():
    trials = {"loop": [1.0, 1.0], "batched": [2.0, 2.0]}
    assert invalid_before(job(**trials)) == 0
    assert invalid_before(job(**trials, run_loop=[1.5, 1.4, 1.5])) == 0  # rounds have more to do than gradients
    assert invalid_before(job(**trials, run_loop=[1.5, 1.5, 0.6])) == 2 * 3600  # the trials were disturbed
    assert invalid_before(job(**trials, run_batched=[2.0, 2.0, 4.5])) == 2 * 3600  # the machine has changed
    assert invalid_before(job(**trials, run_batched=[2.0, 4.5, 2.0])) == 0
    trials = {"loop": [1.0] * 4, "batched": [2.0] * 4}
    assert invalid_before(job(**trials, run_loop=[1.5, 1.5, 0.6])) == 0  # trials were repeated since


def test_what_compiling_saves():
    assert saved_per_step(job(loop=2.0, batched=1.0), gain=0.3) == pytest.approx(0.3)
    assert saved_per_step(job(loop=2.0, batched=1.0), gain=0.5) == pytest.approx(0.5)
    assert saved_per_step(job(loop=2.0, batched=1.0, compiled=0.4), gain=0.3) == pytest.approx(0.6)
    assert saved_per_step(job(loop=0.6, batched=1.0), gain=0.3) == pytest.approx(-0.1)  # the loop is faster
    assert saved_per_step(job(loop=2.0, batched=1.0, compiled=math.inf), gain=0.3) == -math.inf


def test_what_compiling_saves_of_whole_rounds():
    """Rounds of two runs are compared as a whole; where the gradient is less than was measured, less is saved."""
    known = job(loop=2.0, batched=1.0, compiled=0.4, run_batched=1.5, run_compiled=1.4)
    assert saved_per_step(known, gain=0.3) == pytest.approx(0.1)
    assert saved_per_step(job(loop=2.0, batched=1.0, run_batched=5.0), gain=0.3) == pytest.approx(0.3)
    assert saved_per_step(job(loop=2.0, batched=1.0, run_batched=0.5), gain=0.3) == pytest.approx(0.15)
    failed = job(loop=2.0, batched=1.0, compiled=math.inf, run_batched=1.5, run_compiled=1.0)
    assert saved_per_step(failed, gain=0.3) == -math.inf


def test_what_compiling_usually_saves_is_learned_from_several_jobs():
    jobs = [job(loop=2.0, batched=1.0, compiled=v) for v in (0.4, 0.5, 0.9)]
    assert usual_gain(jobs, "cpu") == pytest.approx(0.5)
    failed = job(loop=1.0, batched=1.0, compiled=math.inf)
    assert usual_gain(jobs[:2], "cpu") == usual_gain([*jobs[:2], failed], "cpu") == 0.1
    assert usual_gain(jobs[:2], "cuda") == 0.3


def test_a_compilation_must_save_more_than_it_costs():
    saving = Saving(step=0.01, cost=20.0)
    assert saving.least_rounds(5) == 601
    assert saving.pays_off(601 * 5)
    assert not saving.pays_off(599 * 5)
    assert Saving(step=-0.01, cost=20.0).least_rounds(5) is None
    assert not Saving(step=-math.inf, cost=20.0).pays_off(10**9)
