"""Mistakes in the methods of an algorithm are refused with a sentence that names class, method and field."""

from __future__ import annotations

import copy
from dataclasses import dataclass

import pytest
import torch

import fedmos as fm
from fedmos.engine.named_tensors import named
from helpers.mistakes import (
    FOUND,
    REFUSED,
    Branching,
    InPlace,
    InPlaceLater,
    Mistake,
    PersonalNoise,
    ReadsNumber,
    WrongPersonal,
)

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


COMPOSED = {
    "local": {"local": fm.local.Adam(keep=True)},
    "personal": {"personal": ["0.*"]},
    "local and personal": {"local": fm.local.Adam(keep=True), "personal": ["0.*"]},
    "batchnorm": {"batchnorm": "local"},
}
DIRECTED = [kind for kind in REFUSED if kind.step is fm.Algorithm.step]


def network():
    layers = torch.nn.Flatten(), torch.nn.Linear(64, 4), torch.nn.BatchNorm1d(4), torch.nn.Linear(4, 10)
    return torch.nn.Sequential(torch.nn.Sequential(*layers[:2]), *layers[2:])


@pytest.mark.parametrize("options", COMPOSED)
@pytest.mark.parametrize("kind", DIRECTED, ids=lambda kind: kind.__name__)
@pytest.mark.extended
def test_a_composed_run_names_the_mistake(quick, options, kind):
    """As without the option, but for lists of names, to which the option may add its own."""
    given = {"batchnorm": "frozen", "model": network()} | COMPOSED[options]
    with pytest.raises((ValueError, AttributeError)) as error:
        quick(algorithm=kind(), engine="batched", rounds=1, **given)
    assert REFUSED[kind].partition(" (")[0] in str(error.value)


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


def test_a_personal_model_is_not_drawn_from_a_global_generator(quick):
    with pytest.raises(ValueError, match="PersonalNoise: 'personal' must not draw from PyTorch's global generator"):
        quick(algorithm=PersonalNoise(), rounds=1).personal_model(0)


@pytest.mark.parametrize("kind", [Branching, ReadsNumber])
def test_a_cohort_names_a_method_that_reads_one_number(quick, kind):
    with pytest.raises(ValueError) as error:
        quick(algorithm=kind(), engine="batched", selection=fm.Uniform(m=3), rounds=1)
    assert FOUND[kind] in str(error.value)
    quick(algorithm=kind(), engine="loop", selection=fm.Uniform(m=3), rounds=1)


def test_a_method_is_not_blamed_for_the_loss_that_it_calls(quick):
    calls = iter(range(10**6))

    def loss(outputs, targets):
        return torch.nn.functional.cross_entropy(outputs, targets) * (int(torch.ones(2)) if next(calls) > 20 else 1)

    with pytest.raises((ValueError, RuntimeError), match=r"one element|converted to Scalar") as error:
        quick(algorithm=fm.FedProx(lr=0.1, mu=0.1), loss=loss, engine="loop", rounds=20)
    assert "FedProx" not in str(error.value)


class WithoutColumn(Mistake):
    up = ("delta", ("n", ()), ("three", 3))
    reduce = {"A": ("delta", "w"), "n": ("n", "sum"), "t": ("three", "sum")}

    def finish(self, y, s, c, grad):
        delta = y - c.x
        return {"delta": delta, "n": delta.norm(dim=-1), "three": delta[..., :3]}, {}


@pytest.mark.parametrize(
    ("engine", "m", "shapes"),
    [
        ("loop", 1, "(1,), got a tensor of shape ()"),
        ("batched", 1, "(1, 1), got a tensor of shape (1,)"),
        ("batched", 2, "(2, 1), got a tensor of shape (2,)"),
    ],
)
def test_an_error_names_the_shape_that_the_engine_expects(quick, engine, m, shapes):
    with pytest.raises(ValueError) as error:
        quick(algorithm=WithoutColumn(), engine=engine, selection=fm.Uniform(m=m), rounds=1)
    assert str(error.value) == f"WithoutColumn: 'finish' must return 'n' of shape {shapes}; use dim=-1, keepdim=True"


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


def test_state_may_be_assigned_and_returned(quick):
    class Assigning(Mistake):
        server_state = ("v",)

        def server(self, x, state, agg, ctx):
            state["v"] = 0.9 * state["v"] + agg["A"]
            return x + state["v"], state

    assert fm.check(Assigning()) == []
    again = quick(algorithm=Assigning(), rounds=3).params
    assert torch.equal(again, quick(algorithm=fm.FedAvgM(lr=0.1), rounds=3).params)
