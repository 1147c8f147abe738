"""The engine and program that 'auto' chooses, and the division of a cohort into chunks."""

import pytest
import torch
from torch import nn

import fedmos as fm
from fedmos.engine import batched
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


def test_auto_takes_what_is_fastest_and_remembers_it(quick, tmp_path, monkeypatch):
    """Timings are made up: what counts is that the fastest wins, that it is said why, and that it is not timed again."""
    monkeypatch.setenv("FEDMOS_CACHE", str(tmp_path))
    for fastest, times in (("loop", [0.001, 0.5]), ("batched", [0.5, 0.001])):
        made_up = iter(times)
        monkeypatch.setattr(plan, "_time", lambda work, made_up=made_up: next(made_up))
        model = fm.models.mlp(features=64) if fastest == "loop" else fm.models.cnn_digits()
        result = quick(model=model)
        assert result.info["engine"] == fastest
        assert "ms a cohort step" in result.info["engine_why"]
        assert quick(model=model, seed=1).info["engine"] == fastest  # no timing is left to take


def test_auto_compiles_only_what_earns_it(quick, tmp_path, monkeypatch):
    monkeypatch.setenv("FEDMOS_CACHE", str(tmp_path))
    monkeypatch.setattr(plan, "_time", lambda work: 0.02)
    monkeypatch.setattr(plan, "_measure_compiled", lambda task, ids: {"compiled": 0.001})
    monkeypatch.setattr(plan, "can_compile", lambda device: True)
    task = how_of(quick)
    assert not plan.choose_plan("auto", task, 4, rounds=10).compiled
    assert plan.choose_plan("auto", task, 4, rounds=10_000).compiled
    assert not plan.choose_plan("auto", task, 4, rounds=10).compiled  # known to be faster, but not worth its time
    monkeypatch.setenv("FEDMOS_ENGINE", "compiled")
    assert plan.choose_plan("loop", task, 4).compiled
    monkeypatch.setenv("FEDMOS_ENGINE", "fast")
    with pytest.raises(ValueError, match="FEDMOS_ENGINE must be 'loop', 'batched' or 'compiled', got 'fast'"):
        plan.choose_plan("auto", task, 4)


@pytest.mark.parametrize("written", ["", "[1]", '{"KEY": 5}', '{"KEY": {"loop": 1.0}}', '{"KEY": {"loop": "x"}}'])
def test_invalid_cached_timings_are_ignored(quick, tmp_path, monkeypatch, written):
    monkeypatch.setenv("FEDMOS_CACHE", str(tmp_path))
    quick()
    (key,) = read_measurements(tmp_path / "engines.json")
    (tmp_path / "engines.json").write_text(written.replace("KEY", key))
    quick()
    assert set(read_measurements(tmp_path / "engines.json")[key]) >= {"loop", "batched", "operations"}


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


def how_of(quick) -> Task:
    return task(nn.Sequential(nn.Linear(1, 8), nn.ReLU(), nn.Linear(8, 3)), local_steps=2, batch_size=4)


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
