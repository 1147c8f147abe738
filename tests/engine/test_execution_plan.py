"""The engine and program that 'auto' chooses, and the division of a cohort into chunks."""

import re

import pytest
import torch
from torch import nn

import fedmos as fm
from fedmos.engine import batched, compiled, engine_trials
from fedmos.engine import execution_plan as plan
from fedmos.engine.plan_cache import read_measurements
from fedmos.engine.task import Task
from helpers.engines import task


class Branching(nn.Module):
    """Control flow that depends on the data, which vmap cannot follow."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(64, 10)

    def forward(self, x):
        x = x.flatten(1)
        return self.linear(x) if float(x.detach().sum()) > -1e9 else x


def test_what_cannot_be_vectorised_runs_in_the_loop(quick, caplog):
    result = quick(model=Branching(), engine="auto")
    assert result.info["engine"] == "loop"
    assert "cannot be vectorised" in caplog.text
    with pytest.raises(ValueError, match=r"Cannot vectorise the model.*use engine='loop'"):
        quick(model=Branching(), engine="batched")


def made_up_times(monkeypatch, loop: float, batched: float) -> list[str]:
    """Have trials take these seconds; returns the list of trials, in their order."""
    taken: list[str] = []
    for kind, seconds in (("loop", loop), ("batched", batched)):
        trial = lambda self, kind=kind, seconds=seconds: taken.append(kind) or seconds  # noqa: E731
        monkeypatch.setattr(engine_trials._Candidates, kind, trial)
    return taken


def test_auto_takes_what_is_fastest_and_remembers_it(quick, tmp_path, monkeypatch):
    """Timings are made up: what counts is that the fastest wins, that it is said why, and that it is not timed again."""
    monkeypatch.setenv("FEDMOS_CACHE", str(tmp_path))
    monkeypatch.setattr(engine_trials, "perf_counter", lambda: 0.0)  # no trial is left out on a busy machine
    for fastest, times in (("loop", (0.001, 0.5)), ("batched", (0.5, 0.001))):
        taken = made_up_times(monkeypatch, *times)
        model = fm.models.mlp(features=64) if fastest == "loop" else fm.models.cnn_digits()
        result = quick(model=model)
        assert result.info["engine"] == fastest
        assert "ms a cohort step" in result.info["engine_why"]
        assert "loop" in taken
        taken.clear()
        assert quick(model=model, seed=1).info["engine"] == fastest
        assert taken == []


def test_a_disturbed_trial_is_corrected_by_later_runs(quick, tmp_path, monkeypatch):
    """A time that was twice too long decides until the next run, and not for ever."""
    monkeypatch.setenv("FEDMOS_CACHE", str(tmp_path))
    monkeypatch.setattr(engine_trials, "_BUDGET_SECONDS", (0.0, 0.0))  # one trial of each in a run
    monkeypatch.setattr(plan, "can_compile", lambda device: False)
    task = small_task()
    made_up_times(monkeypatch, 0.02, 0.05)
    assert plan.choose_plan("auto", task, 4).engine == "loop"
    taken = made_up_times(monkeypatch, 0.02, 0.01)
    engines = [plan.choose_plan("auto", task, 4).engine for _ in range(6)]
    assert engines == ["batched"] * 6
    assert len(taken) < 12  # it is clear at last


def test_trials_of_both_engines_take_equally_long():
    """On a busy machine, the shorter of two trials would be interrupted less."""
    assert engine_trials.equal_time(loop=0.006, batched=0.031) == 5
    assert engine_trials.equal_time(loop=0.006, batched=0.001) == 1
    assert engine_trials.equal_time(loop=0.0, batched=1.0) == 50
    work = engine_trials.Workload(small_task(), 4, 4)
    trials = engine_trials._Candidates(work)
    computed: list[int] = []
    trials._grads = [lambda x: computed.append(1)] * 3
    trials._repeats = 5
    trials._loop_once()
    assert len(computed) == 15


def test_trials_alternate_until_the_decision_is_clear(quick, tmp_path, monkeypatch):
    monkeypatch.setenv("FEDMOS_CACHE", str(tmp_path))
    monkeypatch.setattr(engine_trials, "perf_counter", lambda: 0.0)
    for model, times, pairs in ((1, (0.01, 0.1), 2), (2, (0.01, 0.02), 4), (3, (0.01, 0.011), 6)):
        taken = made_up_times(monkeypatch, *times)
        engine = plan.choose_plan("auto", small_task(width=model), 4).engine
        assert engine == ("batched" if pairs == 6 else "loop")  # the vectorised one, if they are nearly equal
        assert taken == ["loop", "batched"] * pairs


def test_trials_take_a_small_part_of_the_run(quick, tmp_path, monkeypatch):
    """An unclear decision is taken when the time for it is spent, and trials go on in the next run."""
    monkeypatch.setenv("FEDMOS_CACHE", str(tmp_path))
    taken = made_up_times(monkeypatch, 0.02, 0.02)
    monkeypatch.setattr(engine_trials, "perf_counter", lambda: len(taken) / 2)  # half a second for each trial
    monkeypatch.setattr(plan, "can_compile", lambda device: False)
    plan.choose_plan("auto", small_task(), 4, rounds=10)
    assert taken.count("batched") == 1
    plan.choose_plan("auto", small_task(), 4, rounds=2000)  # 80 s, of which trials may take 1.6
    assert taken.count("batched") == 3


def test_auto_compiles_only_what_earns_it(quick, tmp_path, monkeypatch):
    monkeypatch.setenv("FEDMOS_CACHE", str(tmp_path))
    made_up_times(monkeypatch, 0.02, 0.02)
    monkeypatch.setattr(plan, "measure_compiled", lambda work: [0.001])
    monkeypatch.setattr(plan, "can_compile", lambda device: True)
    task = small_task()
    short = plan.choose_plan("auto", task, 4, rounds=10)
    assert not short.compiled
    longer = int(re.search(r"a run of (\d+) rounds or more would compile", short.reason)[1])
    assert not plan.choose_plan("auto", task, 4, rounds=longer - 1).compiled
    assert plan.choose_plan("auto", task, 4, rounds=longer).compiled
    assert plan.choose_plan("auto", task, 4, rounds=10_000).compiled
    assert not plan.choose_plan("auto", task, 4, rounds=10).compiled  # known to be faster, but not worth its time
    monkeypatch.setenv("FEDMOS_ENGINE", "compiled")
    assert plan.choose_plan("loop", task, 4).compiled
    monkeypatch.setenv("FEDMOS_ENGINE", "fast")
    with pytest.raises(ValueError, match="FEDMOS_ENGINE must be 'loop', 'batched' or 'compiled', got 'fast'"):
        plan.choose_plan("auto", task, 4)


def test_what_fails_to_compile_is_not_compiled_again(quick, tmp_path, monkeypatch, caplog):
    monkeypatch.setenv("FEDMOS_CACHE", str(tmp_path))
    made_up_times(monkeypatch, 0.02, 0.02)
    monkeypatch.setattr(plan, "can_compile", lambda device: True)

    def fail(self, *arguments):
        raise RuntimeError("the compiler gave up")

    monkeypatch.setattr(compiled.Compiled, "_compile", fail)
    for _ in range(2):
        chosen = plan.choose_plan("auto", small_task(), 4, rounds=100_000)
        assert not chosen.compiled
        assert "compile" not in chosen.reason
    assert caplog.text.count("Not compiling because it fails: the compiler gave up") == 1


def test_a_run_stores_the_time_of_its_rounds_for_later_runs(quick, tmp_path, monkeypatch):
    """The run goes on with its engine; if the times contradict the trials, the next run measures anew."""
    monkeypatch.setenv("FEDMOS_CACHE", str(tmp_path))
    taken = made_up_times(monkeypatch, 100.0, 500.0)  # disturbed: no round of this run takes as long
    first = quick(rounds=8)
    assert first.info["engine"] == "loop"
    (job,) = read_measurements(tmp_path / "engines.json").values()
    assert len(job.samples["run loop"]) == 1
    assert job.time("run loop") == pytest.approx(sorted(r.seconds for r in first.history[1:6])[2] / 2)
    taken.clear()
    made_up_times(monkeypatch, 0.5, 0.1)
    assert quick(rounds=2).info["engine"] == "batched"
    assert read_measurements(tmp_path / "engines.json").popitem()[1].time("loop") == 0.5
    quick(rounds=8, engine="loop")
    assert len(read_measurements(tmp_path / "engines.json").popitem()[1].samples["run loop"]) == 1  # not chosen


@pytest.mark.parametrize(
    "written",
    [
        "",
        "[1]",
        '{"KEY": 5}',
        '{"KEY": {"loop": 1.0}}',
        '{"KEY": {"loop": "x"}}',
        '{"KEY": {"loop": 1.0, "batched": 2.0, "operations": 3.0, "cost": 4.0}}',  # of an earlier version
        '{"KEY": {"operations": 3.0, "samples": {"loop": [[1]], "batched": "x"}}}',
    ],
)
def test_invalid_cached_timings_are_ignored(quick, tmp_path, monkeypatch, written):
    monkeypatch.setenv("FEDMOS_CACHE", str(tmp_path))
    quick()
    (key,) = read_measurements(tmp_path / "engines.json")
    (tmp_path / "engines.json").write_text(written.replace("KEY", key))
    quick()
    found = read_measurements(tmp_path / "engines.json")[key]
    assert set(found.samples) >= {"loop", "batched"}
    assert found.operations > 0


def test_timings_are_cached_per_kind_of_work(quick, tmp_path, monkeypatch):
    monkeypatch.setenv("FEDMOS_CACHE", str(tmp_path))
    quick()
    for more in (
        {"loss": lambda o, t: nn.functional.cross_entropy(o, t) * 2},
        {"batch_size": 3},
        {"dtype": torch.float64},
    ):
        before = len(read_measurements(tmp_path / "engines.json"))
        quick(**more)
        assert len(read_measurements(tmp_path / "engines.json")) == before + 1


def test_a_run_is_resumed_as_it_began(quick, tmp_path, monkeypatch):
    monkeypatch.setenv("FEDMOS_ENGINE", "loop")
    how = {"engine": "batched", "out": tmp_path / "run", "resume": True}
    quick(**how, rounds=1)
    assert quick(**how).info["engine"] == "loop"
    monkeypatch.delenv("FEDMOS_ENGINE")
    with pytest.raises(ValueError, match="its 'engine' is 'loop', got 'batched'"):
        quick(**how)
    assert quick(**how | {"engine": "auto"}).info["engine"] == "loop"


def small_task(width: int = 8) -> Task:
    return task(nn.Sequential(nn.Linear(1, width), nn.ReLU(), nn.Linear(width, 3)), local_steps=2, batch_size=4)


@pytest.mark.parametrize("chunk", [1, 3])
def test_chunks_change_rounding_at_most(quick, monkeypatch, chunk):
    how = {"engine": "batched", "dtype": torch.float64, "algorithm": fm.Scaffold(lr=0.1), "local_steps": 3}
    whole = quick(**how)
    monkeypatch.setattr(plan, "_max_parallel_clients", lambda task: chunk)
    parts = quick(**how)
    assert parts.info["chunk"] == chunk
    assert torch.allclose(whole.params, parts.params, rtol=0, atol=1e-12)
    assert parts.history[-1].cohort == whole.history[-1].cohort


def test_out_of_memory_is_met_with_smaller_chunks(quick, monkeypatch, caplog):
    whole = quick(engine="batched", dtype=torch.float64, algorithm=fm.Scaffold(lr=0.1))
    compute = batched.Batched.loss_and_gradient

    def scarce(self, y, batch):
        if len(self.chunk.ids) > 1 and self.task.local_steps:
            raise torch.OutOfMemoryError("no memory")
        return compute(self, y, batch)

    monkeypatch.setattr(plan, "why_not_vectorised", lambda task: None)
    monkeypatch.setattr(batched.Batched, "loss_and_gradient", scarce)
    result = quick(engine="batched", dtype=torch.float64, algorithm=fm.Scaffold(lr=0.1))
    assert result.info["chunk"] == 1
    assert "bits may differ" in result.info["narrowed"]
    assert "continuing with chunks of 2 instead of 4 clients" in caplog.text
    assert torch.allclose(whole.params, result.params, rtol=0, atol=1e-12)
    assert len(result.history) == 3

    def none(self, y, batch):
        raise torch.OutOfMemoryError("no memory")

    monkeypatch.setattr(batched.Batched, "loss_and_gradient", none)
    with pytest.raises(torch.OutOfMemoryError):
        quick(engine="batched")


def test_many_clients_of_a_large_model_are_cut_by_memory(monkeypatch):
    large = task(nn.Sequential(nn.Linear(1, 1000), nn.Linear(1000, 3)), local_steps=1, batch_size=2)
    assert plan._max_parallel_clients(large) > 4
    monkeypatch.setattr(plan, "total_memory", lambda device: 10**6)
    assert plan._max_parallel_clients(large) == 1


def test_activations_stay_small_beside_frozen_weights_on_a_cpu(quick, monkeypatch):
    """Four clients of a network of which most is frozen train in narrower chunks, with the same result."""

    def network() -> nn.Module:
        torch.manual_seed(0)
        base = nn.Linear(64, 500).requires_grad_(False)
        return nn.Sequential(nn.Flatten(), nn.Linear(64, 64), nn.ReLU(), base, nn.ReLU(), nn.Linear(500, 10))

    how = {"engine": "batched", "dtype": torch.float64, "local_steps": 2}
    whole = quick(model=network(), **how)
    assert whole.info["chunk"] == 4
    monkeypatch.setattr(plan, "_LEAST_ACTIVATIONS", 1)
    parts = quick(model=network(), **how)
    assert parts.info["chunk"] < 4
    assert torch.allclose(whole.params, parts.params, rtol=0, atol=1e-12)
    little = network()
    little[3].requires_grad_()
    little[1].requires_grad_(False)
    assert quick(model=little, **how).info["chunk"] == 4
