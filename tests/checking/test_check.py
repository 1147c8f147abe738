"""`fm.check` finds each mistake in a class that makes it, and nothing in the library's own classes."""

from __future__ import annotations

import inspect
import logging
import os
import random
import runpy
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch

import fedmos as fm
from fedmos.checking.findings import Findings
from helpers import mistakes, selector_mistakes
from helpers.mistakes import FOUND, REFUSED, Mistake
from helpers.selector_mistakes import LOCAL, SELECTORS, First

NEEDED = {"FedProx": {"mu": 0.1}, "Bernoulli": {"rate": 0.3}, "FixedCohorts": {"cohorts": [[0, 1], [2]]}}
"""Fields without a default."""
OPTIMIZERS = [
    fm.local.SGD(momentum=0.9, nesterov=True),
    fm.local.Adam(),
    fm.local.AdamW(keep=True),
    fm.local.AdamW(average=True),
    fm.local.Muon(),
    fm.local.SAM(rho=0.05),
    [fm.local.SAM(rho=0.05), fm.local.Adam()],
]
METHODS = Path(__file__).parents[2] / "examples" / "methods"
MISTAKES = REFUSED | FOUND | SELECTORS | LOCAL


def made(kind: type, **common: object) -> object:
    """An object of a class of the registry."""
    given, parameters = common | NEEDED.get(kind.__name__, {}), inspect.signature(kind).parameters
    return kind(**{name: value for name, value in given.items() if name in parameters})


@pytest.mark.parametrize("name", fm.algorithms())
@pytest.mark.extended
def test_every_algorithm_passes(name):
    assert fm.check(made(fm.algorithms()[name], lr=0.05)) == []


@pytest.mark.parametrize("name", fm.selectors())
@pytest.mark.extended
def test_every_selector_passes(name):
    assert fm.check(made(fm.selectors()[name], m=3, d=5)) == []


@pytest.mark.parametrize("optimizer", OPTIMIZERS, ids=str)
@pytest.mark.extended
def test_every_local_optimizer_passes(optimizer):
    assert fm.check(optimizer) == []


@pytest.mark.parametrize("path", sorted(METHODS.glob("*.py")), ids=lambda path: path.stem)
@pytest.mark.extended
def test_every_example_of_a_method_passes(path):
    defined = [v for v in runpy.run_path(str(path)).values() if getattr(v, "__module__", "") == "<run_path>"]
    kinds = [v for v in defined if isinstance(v, type) and issubclass(v, fm.Algorithm)]
    assert kinds
    assert [fm.check(made(kind, lr=0.05)) for kind in kinds] == [[]] * len(kinds)


@pytest.mark.parametrize("kind", MISTAKES, ids=lambda kind: kind.__name__)
@pytest.mark.extended
def test_a_mistake_is_one_finding(kind):
    """The battery goes on after it, and does not repeat it or report its consequences."""
    (found,) = fm.check(kind())
    assert MISTAKES[kind] in found
    assert found.startswith((f"{kind.__name__}: ", "Cannot "))


@pytest.mark.parametrize(
    ("obj", "method"),
    [
        (mistakes.Raising(), mistakes.Raising.direction),
        (mistakes.MissingSum(), mistakes.MissingSum.server),
        (mistakes.Branching(), mistakes.Branching.direction),
        (selector_mistakes.ManyNeeded(), selector_mistakes.ManyNeeded.select),
    ],
    ids=["algorithm", "name", "translated", "selector"],
)
def test_an_error_in_a_method_names_its_line(obj, method):
    (found,) = fm.check(obj)
    lines, first = inspect.getsourcelines(method)
    assert len(lines) == 2
    assert found.endswith(f"(selector_mistakes.py, line {first + 1})" if "select" in found else f"line {first + 1})")


class TwoMethods(Mistake):
    def direction(self, y, s, c, grad, k):
        return grad(y) / grad(y).norm(), s

    def server(self, x, state, agg, ctx):
        return x + agg["A"] + 0.01 * torch.randn_like(x), {}

    def gradient_estimate(self, x, state, ctx, K):
        return x[0]


def test_several_mistakes_are_several_findings():
    """Where one does not hide the other."""
    drawn, estimate = fm.check(TwoMethods())
    assert "'server' must not draw from PyTorch's global generator" in drawn
    assert "'gradient_estimate' must return a model" in estimate


@dataclass(frozen=True, kw_only=True)
class Personal(fm.Algorithm):
    """Uses every part of the contract, as it is meant to be used."""

    lr: float
    rho: float = 0.1
    server_state = ("m", ("norms", "layers"), ("count", ()))
    client_state = ("own", ("seen", ()))
    down = ("x", "m", "norms")
    up = ("delta", ("norm", ()), ("norms", "layers"))
    reduce = {"A": ("delta", "avg"), "norm": ("norm", "each"), "norms": ("norms", "p")}
    prepare_up = ("g",)
    prepare_reduce = {"m": ("g", "avg")}

    def init(self, x):
        return {"own": x, "norms": torch.ones_like(x[:4])}

    def prepare(self, c, grad):
        return {"g": grad.full(c.x)}

    def start(self, c):
        return c.x - 0.01 * c.msg["m"]

    def begin(self, y, c, grad):
        return {"d": 0 * y, "noise": fm.rng.normal(c.key, y.shape[-1]).to(y)}

    def direction(self, y, s, c, grad, k):
        g = grad.raw(y)
        e = self.rho * g / g.norm(dim=-1, keepdim=True)
        d = 0.5 * s["d"] + grad.perturbed(y, e) / c.layers.expand(1 + c.msg["norms"])
        return d + 0.001 * s["noise"], {**s, "d": d}

    def finish(self, y, s, c, grad):
        delta = y - c.x
        norms = [v.flatten(y.ndim - 1).norm(dim=-1) for v in c.layers.split(delta).values()]
        sent = {"delta": delta, "norm": delta.norm(dim=-1, keepdim=True), "norms": torch.stack(norms, dim=-1)}
        return sent, {"own": 0.5 * (c.own["own"] + y), "seen": c.own["seen"] + 1}

    def server(self, x, state, agg, ctx):
        share = (agg["norm"] / agg["norm"].max()).mean()
        return x + share * agg["A"], {"norms": agg["norms"], "count": state["count"] + 1}

    def evaluated(self, x, state, ctx):
        return x - 0.1 * state["m"]

    def personal(self, c):
        return c.own["own"]

    def idle(self, x, state, ctx):
        return {"count": state["count"] + 1}


def test_a_class_that_uses_the_whole_contract_passes():
    assert fm.check(Personal(lr=0.1)) == []
    assert fm.check(Personal(lr=0.1), local_steps=2) == []


class Unfrozen(fm.Algorithm):
    """No dataclass, and with a cache that is no state."""

    def __init__(self, lr=0.1):
        self.lr = lr

    def direction(self, y, s, c, grad, k):
        return grad(y) + self.weight * y, s

    @property
    def weight(self):
        return 0.1


def test_a_plain_class_passes():
    assert fm.check(Unfrozen()) == []


def test_a_check_leaves_the_object_and_generators_alone():
    def states():
        return torch.get_rng_state().tolist(), random.getstate(), np.random.get_state()[1].tolist()  # noqa: NPY002

    algorithm, before = mistakes.KeepsInField(), states()
    for obj in (algorithm, mistakes.TorchNoise(), mistakes.NumpyNoise(), mistakes.PythonNoise()):
        fm.check(obj)
    assert algorithm == mistakes.KeepsInField()
    assert states() == before


def test_engines_are_compared_whatever_the_environment_says(monkeypatch):
    monkeypatch.setenv("FEDMOS_ENGINE", "loop")
    assert len(fm.check(mistakes.CohortNorm())) == 1
    assert os.environ["FEDMOS_ENGINE"] == "loop"


@pytest.mark.parametrize("field", ["up", "down"])
def test_bytes_are_compared_with_what_is_sent(monkeypatch, field):
    wrong = property(lambda self: 1) if field == "down" else lambda self, t, reports: 1
    monkeypatch.setattr(f"fedmos.engine.cost.Wire.{field}", wrong)
    found = fm.check(fm.GHBM(lr=0.1))
    assert len(found) == 1
    assert found[0].startswith(f"GHBM: '{field}' must declare what is sent, but round 1 counts ")


class OtherDtypes(Mistake):
    """What is sent and kept has the dtype of the model in the end."""

    client_state = (("rounds", ()),)
    up = ("delta", "mask")
    reduce = {"A": ("delta", "w"), "share": ("mask", "avg")}

    def finish(self, y, s, c, grad):
        return {"delta": (y - c.x).float(), "mask": y > c.x}, {"rounds": (c.own["rounds"] + 1).long()}


class CountsSteps(Mistake):
    """A number that no sum contains: a selector may ask for it."""

    up = ("delta", ("steps", ()))

    def finish(self, y, s, c, grad):
        return {"delta": y - c.x, "steps": c.K}, {}


@dataclass(frozen=True, kw_only=True)
class BySteps(First):
    reports = ("steps", "loss")

    def thin(self, view, reports):
        return view.cohort[:2], view.weights[:2] * (1 + 0 * reports["steps"][:2])


def test_a_selector_may_ask_for_a_number_of_an_algorithm():
    assert fm.check(CountsSteps()) == fm.check(BySteps()) == []


def test_other_dtypes_are_no_mistake():
    assert fm.check(OtherDtypes()) == []


def test_names_with_digits_are_told_apart():
    found = Findings(fm.FedAvg(lr=0.1))
    for name in ("n1", "n2"):
        for shape in ((31,), (5, 31)):
            found.add(f"FedAvg: 'finish' must return '{name}' of shape (1,), got a tensor of shape {shape}")
    assert len(found) == 2


def test_verbose_prints_every_check(capsys):
    fm.check(mistakes.CohortNorm(), verbose=True)
    lines = capsys.readouterr().out.splitlines()
    assert "declaration: ok" in lines
    assert any(line.startswith("a client alone against a cohort: CohortNorm: 'direction'") for line in lines)


@pytest.mark.parametrize(
    ("obj", "sentence"),
    [
        (
            fm.FedAvg,
            "'obj' must be an algorithm, a selector, a local optimiser, a codec or an aggregation rule, got the class FedAvg; use FedAvg(...)",
        ),
        (3, "'obj' must be an algorithm, a selector, a local optimiser, a codec or an aggregation rule, got 3"),
        (None, "'obj' must be an algorithm, a selector, a local optimiser, a codec or an aggregation rule, got None"),
    ],
    ids=str,
)
def test_other_objects_are_refused(obj, sentence):
    with pytest.raises(ValueError) as error:
        fm.check(obj)
    assert str(error.value) == f"check: {sentence}"


def test_the_number_of_local_steps_is_validated():
    with pytest.raises(ValueError, match="check: 'local_steps' must be an integer ≥ 1"):
        fm.check(fm.FedAvg(lr=0.1), local_steps=0)


@dataclass(frozen=True, kw_only=True)
class ManyClients(First):
    m: int = 40


def test_a_selector_gets_as_many_clients_as_it_needs(caplog):
    with caplog.at_level(logging.WARNING):
        assert fm.check(ManyClients()) == []
    assert not caplog.records
