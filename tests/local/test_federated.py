"""Local optimisers in a federation: state by client and round against numpy, bytes, checkpoints, cost."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch

import fedmos as fm
from fedmos.core.flat_model import FlatModel
from fedmos.core.losses import Loss
from fedmos.engine.batches import Batches, Chunk
from fedmos.engine.task import Task
from helpers.conformance import COHORTS, LOGISTIC, LR, SEED, WEIGHTS, close, train
from helpers.local import adam, adamw, muon_of, sgd

EPOCHS = {"local_epochs": 2, "batch_size": 4}
ROUNDS, ENGINES = 5, ("loop", "batched")
D, NUMBER = 15, 8
"""Parameters of the model, and bytes of a number."""


@cache
def batches(t: int, i: int) -> list[list[int]]:
    """The samples of each step of client i in round t; clients have different numbers of steps."""
    task = Task(
        model=FlatModel(LOGISTIC.model(), torch.device("cpu"), torch.float64),
        data=LOGISTIC.data(),
        loss=Loss("cross_entropy"),
        seed=SEED,
        local_steps=None,
        **EPOCHS,
    )
    drawn = Batches(task, Chunk.of(task, torch.tensor([i])), t)
    steps = [drawn.step(k) for k in range(2 * -(-LOGISTIC.n[i] // 4))]
    return [batch.positions[0, : batch.size[0]].tolist() for batch in steps]


Update = Callable[..., tuple[np.ndarray, dict[str, np.ndarray]]]


def simulated(update: Update, state: str, mu: float = 0.0, rho: float = 0.0) -> tuple[np.ndarray, dict, dict]:
    """FedProx with a local optimiser: the model, the server's averaged state, and the state of each client."""
    x, averaged, kept = LOGISTIC.x0, {}, {}
    for t in range(ROUNDS):
        cohort: dict[int, float] = {}
        for i, w in zip(COHORTS[t], WEIGHTS[t], strict=True):
            cohort[i] = cohort.get(i, 0.0) + w
        deltas, states = {}, {}
        for i in cohort:
            y, s = x, {"scratch": {}, "keep": kept.get(i, {}), "average": averaged}[state]
            for rows in batches(t, i):
                g = LOGISTIC.gradient(i, y, rows)
                if rho:
                    g = LOGISTIC.gradient(i, y + rho * g / np.sqrt((g**2).sum()), rows)
                d, s = update(g + mu * (y - x), y, s)
                y = y - LR * d
            deltas[i], states[i] = y - x, s
        x = x + sum(w * deltas[i] for i, w in cohort.items())
        W = sum(cohort.values())
        averaged = {
            name: sum(w * states[i][name] for i, w in cohort.items()) / W for name in next(iter(states.values()))
        }
        kept |= states
    return x, averaged, kept


OPTIMIZERS: dict[str, tuple[type, Update, dict[str, Any]]] = {
    "SGD": (fm.local.SGD, sgd, {"momentum": 0.8, "nesterov": True, "weight_decay": 0.1}),
    "Adam": (fm.local.Adam, adam, {"beta2": 0.9, "weight_decay": 0.1}),
    "AdamW": (fm.local.AdamW, adamw, {"beta2": 0.9, "weight_decay": 0.1}),
    "Muon": (fm.local.Muon, muon_of({"weight": (3, 4), "bias": (3,)}), {"weight_decay": 0.1}),
}


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("state", ["scratch", "keep", "average"])
@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.extended
def test_model_and_state_are_those_of_the_equations(name, state, engine):
    """Unequal clients with unequal numbers of steps: a client's state is the one after its own last step."""
    kind, update, fields = OPTIMIZERS[name]
    x, averaged, kept = simulated(lambda d, y, s: update(d, y, s, **fields), state, mu=0.3, rho=0.05)
    local = [fm.local.SAM(rho=0.05), kind(**fields, **({} if state == "scratch" else {state: True}))]
    result = train(LOGISTIC, fm.FedProx(lr=LR, mu=0.3), engine, rounds=ROUNDS, local=local, **EPOCHS)
    close(result.params, x)
    assert set(result.server_state) == ({f"local.{n}" for n in averaged} if state == "average" else set())
    for n, v in result.server_state.items():
        close(v, averaged[n.removeprefix("local.")], what=n)
    for i in range(len(LOGISTIC)):
        own = result.client_state(i)
        assert set(own) == ({f"local.{n}" for n in averaged} if state == "keep" and i in kept else set())
        for n, v in own.items():
            close(v, kept[i][n.removeprefix("local.")], what=f"{n} of client {i}")


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(
    ("local", "extra"),
    [
        (fm.local.SGD(momentum=0.9), 0),
        (fm.local.SGD(momentum=0.9, average=True), D),
        (fm.local.AdamW(keep=True), 0),
        (fm.local.AdamW(average=True), 2 * D + 1),
        ([fm.local.Adam(average=True), fm.local.Muon(average=True)], 3 * D + 1),
        (fm.local.SAM(), 0),
    ],
    ids=str,
)
def test_bytes_follow_the_state_that_is_averaged(local, extra, engine):
    """Two moments and a number, with every client down and up; kept state and SAM cost nothing."""
    result = train(LOGISTIC, fm.Scaffold(lr=LR), engine, rounds=2, local=local, **EPOCHS)
    for record in result.history:
        expected = len(record.cohort) * (2 * D + extra) * NUMBER
        assert (record.bytes_down, record.bytes_up) == (expected, expected)


@pytest.mark.parametrize("engine", ENGINES)
def test_plain_sgd_is_no_optimiser_at_all(engine):
    plain, same = (
        train(LOGISTIC, fm.FedCM(lr=LR), engine, rounds=3, local=local, **EPOCHS) for local in (None, fm.local.SGD())
    )
    assert plain.params.equal(same.params)
    assert same.info["local"].startswith("SGD(")
    # Also where the algorithm defines its own step, since nothing changes.
    train(LOGISTIC, fm.FedMoS(lr=LR), engine, rounds=1, local=fm.local.SGD(), **EPOCHS)


@pytest.mark.parametrize(
    "local",
    [
        fm.local.AdamW(keep=True),
        fm.local.AdamW(average=True),
        [fm.local.SAM(), fm.local.SGD(momentum=0.9, keep=True), fm.local.Muon(average=True)],
    ],
    ids=str,
)
def test_a_resumed_run_comes_to_the_same_bits(local, tmp_path):
    def run(rounds: int, **options: Any) -> fm.Result:
        return train(LOGISTIC, fm.FedDyn(lr=LR), "batched", rounds=rounds, local=local, **EPOCHS, **options)

    whole = run(6)
    run(3, out=tmp_path, checkpoint_every=1)
    resumed = run(6, out=tmp_path, resume=True)
    assert resumed.params.equal(whole.params)
    assert all(v.equal(resumed.server_state[name]) for name, v in whole.server_state.items())
    assert all(v.equal(resumed.client_state(i)[name]) for i in range(7) for name, v in whole.client_state(i).items())
    with pytest.raises(ValueError, match=r"Cannot resume the run in .* because its 'local' is "):
        train(LOGISTIC, fm.FedDyn(lr=LR), "batched", rounds=8, out=tmp_path, resume=True, **EPOCHS)


def test_both_gradients_of_sam_are_counted():
    """A client whose time is that of its gradients needs twice as long."""
    system = fm.System(speed=10.0, down=1e12, up=1e12)
    plain, sharp = (
        train(LOGISTIC, fm.Scaffold(lr=LR, option=1), "batched", rounds=2, local=local, system=system, **EPOCHS)
        for local in (None, fm.local.SAM())
    )
    for before, now in zip(plain.history, sharp.history, strict=True):
        assert now.clock == pytest.approx(2 * before.clock, rel=1e-6)


def test_selectors_and_diagnostics_measure_plain_gradients():
    """SAM is a part of training. What a selector asks for and what diagnostics report is the gradient itself."""
    watch = [
        train(
            LOGISTIC,
            fm.FedAvg(lr=1e-9),
            "batched",
            rounds=1,
            callbacks=[fm.Diagnostics(every=1)],
            local=local,
            **EPOCHS,
        )
        for local in (None, fm.local.SAM(rho=0.5))
    ]
    plain, sharp = (result.history[-1].diagnostics for result in watch)
    for name in ("dissimilarity", "gradient_spread"):
        assert sharp[name] == pytest.approx(plain[name], rel=1e-6)
    assert sharp["update_norm"] != pytest.approx(plain["update_norm"], rel=1e-3)
    cohorts = [
        train(
            LOGISTIC, fm.FedAvg(lr=LR), "batched", fm.CACS(m=2, warmup=1, clusters=2), rounds=1, local=local, **EPOCHS
        )
        for local in (None, fm.local.SAM(rho=0.5))
    ]
    assert cohorts[0].history[0].cohort == cohorts[1].history[0].cohort


def test_the_momentum_of_a_composed_method_is_no_gradient_estimate():
    watch = fm.Diagnostics(every=1)
    found = [
        train(LOGISTIC, fm.FedCM(lr=LR), "loop", rounds=2, callbacks=[watch], local=local, **EPOCHS)
        .history[-1]
        .diagnostics
        for local in (None, fm.local.Adam())
    ]
    assert ["momentum_deviation" in d for d in found] == [True, False]


@dataclass(frozen=True, kw_only=True)
class LayerScaled(fm.local.LocalOptimizer):
    """Directions divided by the running norm of each layer: state with a number per layer, and one for all."""

    beta: float = 0.5
    state = (("norm", "layers"), ("t", ()))

    def update(self, d, y, s, lr, layers):
        norms = torch.stack([v.flatten(-len(layers[n].shape)).norm(dim=-1) for n, v in layers.split(d).items()], -1)
        norm, t = self.beta * s["norm"] + (1 - self.beta) * norms, s["t"] + 1
        return d / (layers.expand(norm) / (1 - self.beta**t)), {"norm": norm, "t": t}


def by_layer(d, y, s):
    norms = np.array([np.linalg.norm(d[:12]), np.linalg.norm(d[12:])])
    norm, t = 0.5 * s.get("norm", 0.0) + 0.5 * norms, s.get("t", 0.0) + 1
    return d / (np.repeat(norm, [12, 3]) / (1 - 0.5**t)), {"norm": norm, "t": t}


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("state", ["scratch", "keep", "average"])
def test_an_optimiser_of_the_user(state, engine):
    x, averaged, kept = simulated(by_layer, state)
    local = LayerScaled(**({} if state == "scratch" else {state: True}))
    result = train(LOGISTIC, fm.FedAvg(lr=LR), engine, rounds=ROUNDS, local=local, **EPOCHS)
    close(result.params, x)
    for n, v in result.server_state.items():
        close(v, averaged[n.removeprefix("local.")], what=n)
    for i, states in kept.items():
        for n, v in result.client_state(i).items():
            close(v, states[n.removeprefix("local.")], what=f"{n} of client {i}")
    extra = 3 * NUMBER if state == "average" else 0
    assert result.history[0].bytes_up == len(result.history[0].cohort) * (D * NUMBER + extra)


IN_PLACE = "in place (y -= …, add_, v[i] = …); use a new tensor (y = y - …) or a clone"


@dataclass(frozen=True, kw_only=True)
class Faulty(fm.local.LocalOptimizer):
    """Returns `wrong`."""

    wrong: Callable
    state = ("m",)

    def update(self, d, y, s, lr, layers):
        return self.wrong(d, s)


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        (lambda d, s: d, "'update' must return a direction and a dictionary of state, got Tensor"),
        (lambda d, s: (d, {}), "'update' must return the state m, got nothing"),
        (lambda d, s: (d, {"m": d, "v": d}), "'update' must return the state m, got m, v"),
        (lambda d, s: (d.sum(-1), s), "'update' must return a direction of shape (3, 15), got (3,)"),
        (lambda d, s: (d, {"m": d.norm()}), "'update' must return 'm' of shape (3, 15), got ()"),
        (lambda d, s: (d + s["n"], s), "there is no s['n']; 'state' declares m"),
        (lambda d, s: (d, {"m": s["m"].add_(d)}), f"'update' must not change s['m'] {IN_PLACE}"),
        (lambda d, s: (d.mul_(0.5), s), f"'update' must not change d {IN_PLACE}"),
    ],
)
def test_a_faulty_optimiser_is_named(wrong, sentence):
    with pytest.raises(ValueError) as caught:
        train(LOGISTIC, fm.FedAvg(lr=LR), "batched", rounds=1, local=Faulty(wrong=wrong), **EPOCHS)
    assert str(caught.value) == f"Faulty: {sentence}"
