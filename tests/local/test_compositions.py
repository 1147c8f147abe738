"""Every algorithm with every local optimiser: engines agree, or the combination is refused."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest
import torch

import fedmos as fm
from fedmos.algorithm import Algorithm
from fedmos.local.compose import with_local
from helpers.conformance import EACH, LOGISTIC, SEED, Case, close, train

EPOCHS = {"local_epochs": 1, "batch_size": 4}
LOCALS = {
    "SGD": fm.local.SGD(momentum=0.9, nesterov=True, weight_decay=0.1, keep=True),
    "Adam": fm.local.Adam(average=True),
    "AdamW": [fm.local.SAM(rho=0.05), fm.local.AdamW(weight_decay=0.1, keep=True)],
    "Muon": [fm.local.SGD(), fm.local.Muon(average=True)],
    "SAM": fm.local.SAM(rho=0.05),
}
WITH_SAM = ("AdamW", "SAM")
OWN_STEP = {case.name for case in EACH if getattr(fm, case.name).step is not Algorithm.step}
"""Methods whose step is more than a direction: with SAM only."""
OWN_PERTURBATION = {"FedGamma", "FedSpeed", "FedSMOO", "FedLESAM"}
"""Methods that perturb their gradients themselves: with all but SAM."""


def allowed(case: Case, name: str) -> bool:
    return not (case.name in OWN_STEP and name != "SAM") and not (case.name in OWN_PERTURBATION and name in WITH_SAM)


METHODS = {case.name: case for case in EACH}
PAIRS = [(case, name) for case in METHODS.values() for name in LOCALS]
# SAM alone is tested where it is the only one; elsewhere in a chain.
TRAINED = [(c, n) for c, n in PAIRS if allowed(c, n) and (n != "SAM" or c.name in OWN_STEP)]
REFUSED = [(c, n) for c, n in PAIRS if not allowed(c, n)]


def test_methods_with_a_step_of_their_own():
    assert {"FedMoS", "GHBM", "LocalGHBM", "FedHBM", "Stem"} <= OWN_STEP
    assert len(OWN_STEP) < len(METHODS) / 2


def specification(case, name: str, lr: float = 0.02, **options) -> dict:
    return (
        {
            "model": LOGISTIC.model(),
            "data": LOGISTIC.data(),
            "algorithm": case.make(lr),
            "selection": fm.Uniform(m=3),
            "rounds": 2,
            "loss": LOGISTIC.loss,
            "eval_every": 2,
            "seed": SEED,
            "device": "cpu",
            "dtype": torch.float64,
            "engine": "batched",
            "local": LOCALS[name],
        }
        | EPOCHS
        | options
    )


def same(a: fm.Result, b: fm.Result, tolerance: float = 1e-10) -> None:
    close(a.params, b.params, tolerance)
    assert set(a.server_state) == set(b.server_state)
    for name, v in a.server_state.items():
        close(v, b.server_state[name], tolerance, name)
    for i in range(7):
        for name, v in a.client_state(i).items():
            close(v, b.client_state(i)[name], tolerance, f"{name} of client {i}")


@pytest.mark.parametrize(("case", "name"), TRAINED, ids=str)
@pytest.mark.extended
def test_engines_and_merged_runs_agree(case, name):
    """Client by client, as one program, and beside a run with another step size; steps differ between clients."""
    loop = fm.run(**specification(case, name, engine="loop"))
    merged = fm.run_many([specification(case, name), specification(case, name, lr=0.01)])
    same(merged[0], loop)
    slow, fast = (torch.cat([r.params, *(v.flatten() for v in r.client_state(0).values())]) for r in merged[::-1])
    assert (slow - fast).abs().max() > 1e-6


@pytest.mark.parametrize(("case", "name"), REFUSED, ids=str)
def test_others_are_refused(case, name):
    sentence = rf"^Cannot use local=.* with {case.name} because {case.name} defines its own local step"
    if case.name in OWN_PERTURBATION:
        sentence = (
            rf"^Cannot use local=SAM\(\.\.\.\) with {case.name} because {case.name} perturbs its gradients itself"
        )
    with pytest.raises(ValueError, match=sentence):
        fm.run(**specification(case, name))


def test_the_sentence():
    with pytest.raises(ValueError) as caught:
        with_local(fm.FedMoS(lr=0.1), fm.local.SGD(momentum=0.9))
    assert str(caught.value) == (
        "Cannot use local=SGD(keep=False, average=False, momentum=0.9, nesterov=False, weight_decay=0.0) with FedMoS "
        "because FedMoS defines its own local step; use local=fm.local.SAM(...) or an algorithm such as FedAvg"
    )


@pytest.mark.parametrize("name", LOCALS)
def test_every_optimiser_makes_a_difference(name):
    case = METHODS["FedAvg"]
    bare, composed = (fm.run(**specification(case, name, local=local)).params for local in (None, LOCALS[name]))
    assert (bare - composed).abs().max() > 1e-4


def test_runs_with_the_same_optimiser_are_merged_into_one_program():
    """Several seeds give the bits of runs alone; another optimiser is another program."""
    case = METHODS["FedAvg"]
    runs = [specification(case, "Adam", seed=seed) for seed in (1, 2)] + [specification(case, "AdamW")]
    merged = fm.run_many(runs)
    for result, one in zip(merged, runs, strict=True):
        same(result, fm.run(**one), 1e-12)


def test_the_algorithm_itself_stays_as_it_is():
    algorithm = fm.FedCM(lr=0.1, alpha=0.2)
    composed = with_local(algorithm, fm.local.Adam(average=True))
    assert type(algorithm) is fm.FedCM
    assert algorithm.server_state == ("D",)
    assert repr(composed) == repr(algorithm)
    assert isinstance(composed, fm.FedCM)
    assert type(composed) is type(with_local(fm.FedCM(lr=0.3), fm.local.Adam(average=True)))
    assert type(composed) is not type(with_local(algorithm, fm.local.Adam(average=True, beta1=0.5)))
    assert replace(composed, lr=0.2).lr == 0.2
    assert composed.down == ("x", "D", ("local.m", ("D",)), ("local.v", ("D",)), ("local.t", ()))
    for local in (None, fm.local.SAM(), fm.local.SGD(), [fm.local.SAM(), fm.local.SGD()]):
        assert with_local(algorithm, local) is algorithm


@pytest.mark.parametrize(
    ("local", "sentence"),
    [
        ("Adam", "run: 'local' must be an optimiser of fm.local or a list of them or None, got 'Adam'"),
        ([], "run: 'local' must be an optimiser of fm.local or a list of them or None, got []"),
        (
            [fm.local.Adam(), fm.local.SAM()],
            "Cannot use SAM after Adam in local= because SAM acts on the gradient, before every other optimiser; use "
            "one SAM, first in the list",
        ),
        (
            [fm.local.SAM(), fm.local.SAM()],
            "Cannot use SAM after SAM in local= because SAM acts on the gradient, before every other optimiser; use "
            "one SAM, first in the list",
        ),
    ],
    ids=str,
)
def test_what_is_no_chain_is_refused(local, sentence):
    with pytest.raises(ValueError) as caught:
        train(LOGISTIC, fm.FedAvg(lr=0.1), "loop", rounds=1, local=local, **EPOCHS)
    assert str(caught.value) == sentence


@dataclass(frozen=True, kw_only=True)
class Shrinking(fm.Algorithm):
    lr: float = 0.1

    def direction(self, y, s, c, grad, k):
        g = grad(y)
        y.mul_(0.9)
        return g, s


@dataclass(frozen=True, kw_only=True)
class ShrinkingStep(fm.local.LocalOptimizer):
    def update(self, d, y, s, lr, layers):
        y.mul_(0.9)
        return d, {}


@pytest.mark.parametrize("engine", ["loop", "batched"])
@pytest.mark.parametrize(
    ("algorithm", "local", "culprit"),
    [
        (Shrinking(), fm.local.SGD(momentum=0.9), "Shrinking: 'direction'"),
        (fm.FedAvg(lr=0.1), ShrinkingStep(), "ShrinkingStep: 'update'"),
    ],
    ids=["direction", "update"],
)
def test_a_model_that_is_changed_in_place_is_refused(quick, engine, algorithm, local, culprit):
    with pytest.raises(ValueError, match=f"{culprit} must not change .* in place"):
        quick(algorithm=algorithm, local=local, engine=engine)


@dataclass(frozen=True, kw_only=True)
class WrongDirection(fm.Algorithm):
    lr: float = 0.1
    wrong: str

    def direction(self, y, s, c, grad, k):
        return {"number": lambda: 0.0, "short": lambda: grad(y)[..., :2], "name": lambda: s["mm"]}[self.wrong](), s


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        ("number", "'direction' must return a direction of shape .*, got 0.0"),
        ("short", "'direction' must return a direction of shape .*, got a tensor of shape"),
        ("name", "there is no s\\['mm'\\]; 'begin' or the previous step returned nothing"),
    ],
)
def test_mistakes_are_named_as_without_an_optimiser(quick, wrong, sentence):
    for local in (None, fm.local.Adam()):
        with pytest.raises(ValueError, match=f"WrongDirection: {sentence}"):
            quick(algorithm=WrongDirection(wrong=wrong), local=local)
