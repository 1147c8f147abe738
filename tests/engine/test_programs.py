"""Compiled and fixed-shape programs compute what plain ones do."""

from contextlib import nullcontext

import pytest
import torch
from torch import nn

import fedmos as fm
from fedmos.engine import batched, program
from fedmos.engine import compiled as compiled_programs
from fedmos.engine import execution_plan as plan
from fedmos.engine import local_backend as work
from fedmos.engine.compile_time import CompileClock
from fedmos.engine.plan_cache import read_compilations
from helpers.compiling import scalar_code


def test_fixed_shapes_do_not_change_results(monkeypatch):
    """Rows and columns that are filled up, as for compiled programs, without the compiling."""
    data = fm.datasets.load("digits").partition(fm.partition.QuantitySkew(skew=0.7, least=5), clients=15, seed=0)
    monkeypatch.setattr(work.ExecutionPlan, "fixed_shapes", property(lambda plan: plan.engine == "batched"))
    monkeypatch.setattr(plan, "_max_parallel_clients", lambda task: 4)
    for algorithm in (fm.FedMoS(lr=0.05), fm.Scaffold(lr=0.05), fm.Mime(lr=0.05)):
        how = {
            "model": fm.models.logistic(features=64),
            "data": data,
            "algorithm": algorithm,
            "selection": fm.Bernoulli(rate=0.4),
            "rounds": 4,
            "local_epochs": 2,
            "batch_size": 16,
            "dtype": torch.float64,
        }
        a, b = (fm.run(**how, engine=engine) for engine in ("loop", "batched"))
        assert torch.allclose(a.params, b.params, rtol=0, atol=1e-11)


def test_precision_is_refused_where_it_means_nothing(quick):
    with pytest.raises(ValueError, match=r"'precision' must be None where 'dtype' is torch.float64, got 'bf16'"):
        quick(precision="bf16", dtype=torch.float64)
    with pytest.raises(ValueError, match="'precision' must be None or 'bf16' on a CPU, got 'tf32'"):
        quick(precision="tf32", device="cpu")
    exact, short = quick(device="cpu").params, quick(precision="bf16", device="cpu").params
    assert 0 < float((exact - short).norm() / exact.norm()) < 0.02


def small_network() -> nn.Module:
    """A convolution, a pooling and a dropout layer: compiling takes seconds, by the number of layers."""
    torch.manual_seed(0)
    layers = nn.Conv2d(1, 2, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Dropout(), nn.Linear(18, 10)
    return nn.Sequential(*layers)


def test_compiled_programs_compute_the_same(quick, monkeypatch):
    """Dropout and augmentation included, in both precisions."""
    data = fm.datasets.load("digits").declare(augment=fm.Augment(crop=1)).partition(fm.partition.IID(), 8, seed=0)
    for dtype, bound, steps, code in (
        (torch.float64, 1e-12, 1, scalar_code()),
        (torch.float32, 1e-5, 2, nullcontext()),
    ):
        how = {"model": small_network(), "data": data, "dtype": dtype, "local_steps": steps, "batch_size": 8}
        plain = quick(**how, engine="loop").params
        with monkeypatch.context() as patch, code:
            patch.setenv("FEDMOS_ENGINE", "compiled")
            result = quick(**how)
        assert result.info["compiled"]
        assert float((result.params - plain).norm() / plain.norm()) < bound


PLAIN_STEPS = {
    "weight decay": {"weight_decay": 0.1},
    "clipped": {"clip": 0.01},
    "epochs of unequal length": {"local_steps": None, "local_epochs": 2, "batch_size": 4},
    "full batches": {"batch_size": None, "local_steps": None, "local_epochs": 2},
    "batches in parts": {"at_once": 8, "batch_size": 8},
}


@pytest.mark.parametrize("name", PLAIN_STEPS)
def test_a_compiled_plain_step_is_the_gradient_and_the_step(quick, monkeypatch, name):
    """FedAvg's step is compiled with the gradient, but where it is clipped or cut into parts; alone and side by side."""
    how = {"dtype": torch.float64, "algorithm": fm.FedAvg(lr=0.1)} | PLAIN_STEPS[name]
    fused = []
    descend = program.Program.descend
    monkeypatch.setattr(program.Program, "descend", lambda *given: fused.append(1) or descend(*given))
    monkeypatch.setattr(batched, "_SAMPLES_AT_ONCE", how.pop("at_once", 8192))
    loop = quick(engine="loop", **how)
    monkeypatch.setenv("FEDMOS_ENGINE", "compiled")
    with scalar_code():
        result = quick(**how)
    assert result.info["compiled"]
    assert bool(fused) == (name not in ("clipped", "batches in parts"))
    assert torch.allclose(result.params, loop.params, rtol=0, atol=1e-12)
    assert result.history[-1].train_loss == pytest.approx(loop.history[-1].train_loss, abs=1e-12)


@pytest.mark.parametrize("algorithm", [fm.FedAvg(lr=0.1), fm.FedMoS(lr=0.1, variant="released")])
def test_all_steps_of_a_run_are_one_program(quick, tmp_path, monkeypatch, algorithm):
    """In the first step, the clients' models are x expanded. The program is kept on the disk for other processes."""
    clock = CompileClock(lambda: tmp_path / "engines.json")
    monkeypatch.setattr(compiled_programs, "CLOCK", clock)
    monkeypatch.setenv("FEDMOS_ENGINE", "compiled")
    for _ in range(2):  # the second run finds it there
        with scalar_code():
            result = quick(algorithm=algorithm, rounds=2, local_steps=3, dtype=torch.float64)
        assert result.info["compiled"]
    compiled = read_compilations(tmp_path / "engines.json")
    assert len({key.removesuffix(" cached") for key in compiled}) == 1
    assert [times["kept"] for times in compiled.values()] == [1.0] * len(compiled)
    assert list(compiled)[-1].endswith(" cached")


def test_plain_steps_of_runs_side_by_side_have_their_own_step_sizes(quick, digits, monkeypatch):
    rates = [0.05, 0.1, 0.2]
    how = {"dtype": torch.float64, "weight_decay": 0.01}
    alone = [quick(engine="loop", algorithm=fm.FedAvg(lr=lr), **how).params for lr in rates]
    monkeypatch.setenv("FEDMOS_ENGINE", "compiled")
    model, selection = fm.models.logistic(features=64), fm.Uniform(m=4)
    how |= {"model": model, "data": digits, "selection": selection, "rounds": 3, "local_steps": 2, "batch_size": 4}
    with scalar_code():
        together = fm.run_many([{"algorithm": fm.FedAvg(lr=lr)} for lr in rates], **how)
    for result, params in zip(together, alone, strict=True):
        assert torch.allclose(result.params, params, rtol=0, atol=1e-12)


def test_steps_that_cannot_be_compiled_whole_are_taken_by_parts(quick, monkeypatch, caplog):
    def fail(*given):
        raise RuntimeError("the compiler gave up\nfor reasons of its own")

    how = {"dtype": torch.float64, "algorithm": fm.FedAvg(lr=0.1)}
    loop = quick(engine="loop", **how)
    monkeypatch.setattr(program.Program, "_descend", fail)
    monkeypatch.setenv("FEDMOS_ENGINE", "compiled")
    with scalar_code():
        result = quick(**how)
    assert result.info["compiled"]
    assert torch.allclose(result.params, loop.params, rtol=0, atol=1e-12)
    assert caplog.text.count("Compiling gradients alone because whole steps fail: the compiler gave up\n") == 1


class OwnStep(fm.Algorithm):
    """An algorithm whose step is decided when it is made."""

    def __init__(self, lr: float, half: bool) -> None:
        self.lr = lr
        if half:
            self.step = lambda y, s, c, grad, k: (y - 0.5 * c.lr * grad(y), s)


@pytest.mark.parametrize("engine", ["loop", "batched"])
def test_a_step_set_on_the_object_is_used(quick, engine):
    how = {"dtype": torch.float64, "engine": engine}
    plain, half, small = (
        quick(algorithm=algorithm, **how).params
        for algorithm in (OwnStep(0.1, half=False), OwnStep(0.1, half=True), fm.FedAvg(lr=0.05))
    )
    assert torch.allclose(half, small, rtol=0, atol=1e-12)
    assert not torch.allclose(half, plain)


def test_a_step_that_writes_in_place_does_not_reach_the_server(quick):
    from dataclasses import dataclass

    @dataclass(frozen=True, kw_only=True)
    class InPlace(fm.Algorithm):
        lr: float

        def step(self, y, s, c, grad, k):
            y -= c.lr * grad(y)
            return y, s

    assert torch.equal(quick(algorithm=InPlace(lr=0.1), engine="loop").params, quick(engine="loop").params)


def test_the_batch_in_finish_is_each_clients_last(quick):
    from dataclasses import dataclass

    @dataclass(frozen=True, kw_only=True)
    class Late(fm.Algorithm):
        lr: float

        def finish(self, y, s, c, grad):
            return {"delta": y - c.lr * grad(y) - c.x}, {}

    runs = [
        quick(algorithm=Late(lr=0.1), local_steps=None, local_epochs=2, engine=engine, dtype=torch.float64).params
        for engine in ("loop", "batched")
    ]
    assert torch.allclose(*runs, rtol=0, atol=1e-12)


@pytest.mark.parametrize("local", [None, fm.local.SAM(rho=0.1)], ids=["SGD", "SAM"])
def test_clipping_weight_decay_and_the_step_can_be_compiled(quick, monkeypatch, local):
    """As on a GPU, where the model that all clients start from is also laid out as one row for each."""
    how = {"dtype": torch.float64, "clip": 0.01, "weight_decay": 0.1, "local_steps": 2}
    how |= {"algorithm": fm.FedCM(lr=0.1), "local": local}
    loop = quick(engine="loop", **how)
    monkeypatch.setenv("FEDMOS_ENGINE", "compiled")
    monkeypatch.setattr(program.Program, "fuses", property(lambda self: self.compiles))
    with scalar_code():
        result = quick(**how)
    assert result.info["compiled"]
    assert torch.allclose(result.params, loop.params, rtol=0, atol=1e-12)
