"""Mistakes in the methods of an algorithm are refused with a sentence that names class, method and field."""

from __future__ import annotations

import copy
from dataclasses import dataclass

import pytest
import torch

import fedmos as fm
from fedmos.engine.named_tensors import named
from helpers.mistakes import REFUSED, InPlace, InPlaceLater, Mistake, WrongPersonal

ALLOWED = ("loop", InPlace), ("loop", InPlaceLater)  # where y belongs to one client
CASES = [
    pytest.param(engine, m, kind, id=f"{kind.__name__}-{engine}-{m}")
    for engine, m in (("loop", 2), ("batched", 1), ("batched", 3))
    for kind in REFUSED
    if (engine, kind) not in ALLOWED
]
each_mistake = pytest.mark.parametrize("kind", REFUSED, ids=lambda kind: kind.__name__)


@pytest.mark.parametrize(("engine", "m", "kind"), CASES)
def test_a_run_names_the_mistake(quick, engine, m, kind):
    """With one client in the cohort as with several."""
    with pytest.raises((ValueError, AttributeError)) as error:
        quick(algorithm=kind(), engine=engine, selection=fm.Uniform(m=m), rounds=1)
    assert REFUSED[kind] in str(error.value)


@each_mistake
def test_merged_runs_name_the_mistake(quick, digits, kind):
    shared = {"model": fm.models.logistic(features=64), "data": digits, "engine": "batched", "rounds": 1}
    shared |= {"selection": fm.Uniform(m=2), "local_steps": 2, "batch_size": 4}
    with pytest.raises((ValueError, AttributeError)) as error:
        fm.run_many([{"algorithm": kind(lr=0.1)}, {"algorithm": kind(lr=0.2)}], **shared)
    assert REFUSED[kind] in str(error.value)


class LaterNoise(Mistake):
    def direction(self, y, s, c, grad, k):
        return grad(y) + (torch.randn(()) if c.t == 2 else 0), s


class LaterSum(Mistake):
    def server(self, x, state, agg, ctx):
        return x + agg["A" if ctx.t < 2 else "a"], {}


@pytest.mark.parametrize("kind", [LaterNoise, LaterSum])
def test_a_resumed_run_names_the_mistake(quick, kind, tmp_path):
    quick(algorithm=kind(), rounds=2, out=tmp_path / "run")
    with pytest.raises(ValueError, match=r"LaterNoise: 'direction' must not draw|LaterSum: there is no agg"):
        quick(algorithm=kind(), rounds=3, out=tmp_path / "run", resume=True)


def test_a_personal_model_has_the_shape_of_a_model(quick):
    with pytest.raises(ValueError, match="WrongPersonal: 'personal' must return a model of shape"):
        quick(algorithm=WrongPersonal(), rounds=1).personal_model(0)


def test_known_names_are_those_of_a_dictionary():
    own = named(fm.FedAvg(lr=0.1), "c.own", {"h": torch.ones(2)})
    assert ("h" in own, "g" in own, own.get("g"), list(own), len(own)) == (True, False, None, ["h"], 1)
    assert copy.copy(own) == own == own | {}
    with pytest.raises(KeyError):
        own["g"]
    with pytest.raises(ValueError) as error:
        own["H"]
    assert str(error.value) == "FedAvg: there is no c.own['H']; 'client_state' declares h"


class Growing(Mistake):
    """Writes into the dictionary s, which is its own, while clients have different numbers of steps."""

    def begin(self, y, c, grad):
        return {"d": torch.zeros_like(y)}

    def direction(self, y, s, c, grad, k):
        s["d"] = 0.5 * s["d"] + grad(y)
        return s["d"], s

    def finish(self, y, s, c, grad):
        return {"delta": s["d"]}, {}


def test_the_dictionary_s_may_be_written(quick):
    """The direction of clients that have ended stays that of their last step, on both engines."""
    loop, batched = (
        quick(algorithm=Growing(), engine=engine, local_steps=None, local_epochs=2, dtype=torch.float64).params
        for engine in ("loop", "batched")
    )
    torch.testing.assert_close(loop, batched, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("kind", [InPlace, InPlaceLater])
def test_the_loop_allows_a_step_in_place(quick, kind):
    plain, changed = (quick(algorithm=algorithm, engine="loop").params for algorithm in (fm.FedAvg(lr=0.1), kind()))
    assert torch.equal(plain, changed)


class InPlaceKept(Mistake):
    """Keeps y, and then changes it."""

    def begin(self, y, c, grad):
        return {"y_0": y}

    def step(self, y, s, c, grad, k):
        y -= c.lr * (grad(y) + 0.1 * (y - s["y_0"]))
        return y, s


def test_the_loop_refuses_a_step_in_place_that_changes_a_kept_model(quick):
    with pytest.raises(ValueError, match=r"InPlaceKept: 'step' must not change s\['y_0'\] in place"):
        quick(algorithm=InPlaceKept(), engine="loop")


@dataclass(frozen=True, kw_only=True)
class Counting(fm.Algorithm):
    """Keeps a Python number between steps."""

    lr: float = 0.1

    def begin(self, y, c, grad):
        return {"n": 0}

    def direction(self, y, s, c, grad, k):
        return grad(y) / (s["n"] + 1), {"n": s["n"] + 1}

    def finish(self, y, s, c, grad):
        return {"delta": (y - c.x) / s["n"]}, {}


def test_s_may_hold_python_numbers(quick):
    """Also where clients take different numbers of steps."""
    data = fm.datasets.load("digits").partition(fm.partition.ByClass(classes=2, size=(4, 22)), clients=12, seed=0)
    how = {"algorithm": Counting(), "data": data, "local_steps": None, "local_epochs": 1, "dtype": torch.float64}
    loop, batched = (quick(engine=engine, **how) for engine in ("loop", "batched"))
    assert torch.allclose(loop.params, batched.params, rtol=0, atol=1e-12)
