"""Coded models: differences to what each client holds."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import fedmos as fm
from fedmos.codecs import Quantize, RandomK, TopK
from helpers.coded_runs import HALF, LOSSLESS, SOME
from helpers.conformance import CASES, LOGISTIC, LR, QUADRATIC, close, train

EPOCHS = {"local_epochs": 2, "batch_size": 4}
ENGINES = ("loop", "batched")
D, NUMBER = 15, 8


@pytest.mark.parametrize("case", SOME, ids=str)
def test_a_codec_without_loss_changes_nothing(case):
    how = {"rounds": 5, "local_epochs": 1, "batch_size": 8}
    plain, coded = (train(LOGISTIC, case.make(), "batched", downlink=link, **how) for link in (None, LOSSLESS))
    close(coded.params, plain.params, 1e-9)
    for name, v in plain.server_state.items():
        close(coded.server_state[name], v, 1e-9, name)


def fedavg(cohorts: list[list[int]], factor: float) -> tuple[np.ndarray, dict[int, np.ndarray]]:
    """FedAvg with one full-batch step: the model, and what each client holds, if messages bring `factor` of the way."""
    x, held = QUADRATIC.x0, {}
    for cohort in cohorts:
        for i in cohort:
            held[i] = held[i] + factor * (x - held[i]) if i in held else x
        x = x + sum(-LR * QUADRATIC.gradient(i, held[i]) for i in cohort) / len(cohort)
    return x, held


@pytest.mark.parametrize("engine", ENGINES)
def test_clients_train_from_what_they_hold(engine):
    """The server adds y_i − h_i to its own x. A client that is absent for 100 rounds still holds its last model."""
    cohorts = [[0, 1], *[[1, 2]] * 50, [3], *[[2, 4, 3]] * 50, [0, 4], [0]]
    weights = [[1 / len(cohort)] * len(cohort) for cohort in cohorts]
    selection = fm.FixedCohorts(cohorts, weights)
    result = train(
        QUADRATIC,
        fm.FedAvg(lr=LR),
        engine,
        selection,
        rounds=len(cohorts),
        local_steps=1,
        batch_size=None,
        downlink=HALF,
    )
    x, held = fedavg(cohorts, 0.5)
    close(result.params, x)
    for i, h in held.items():
        close(result.client_state(i)["held.x"], h)
    absent = np.abs(fedavg(cohorts[:-2], 0.5)[1][0] - QUADRATIC.x0).max()
    assert absent == 0.0
    assert not np.allclose(fedavg(cohorts, 1.0)[0], x, atol=1e-6)


def test_what_was_lost_is_sent_later():
    """A model that stays: every message halves the error, and RandomK sends each coordinate sooner or later."""
    how = {"rounds": 200, "local_steps": 1, "batch_size": 4}
    algorithm, selection = fm.FedAvg(lr=1e-300), fm.FixedCohorts([[0]], [[1.0]])
    for codec in (HALF, TopK(0.1), RandomK(0.1), Quantize(1)):
        result = train(LOGISTIC, algorithm, "batched", selection, downlink=codec, **how)
        close(result.client_state(0)["held.x"], result.params, 1e-9)


@pytest.mark.parametrize("case", SOME, ids=str)
def test_bytes_of_clients_that_were_seen_and_of_others(case):
    codec = Quantize(4)
    result = train(LOGISTIC, case.make(), "batched", rounds=5, downlink=codec, local_epochs=1)
    down, _ = case.wire
    seen: set[int] = set()
    for record in result.history:
        expected = sum(codec.nbytes(D) if i in seen else D * NUMBER for i in record.cohort)
        assert record.bytes_down == down * expected
        seen |= set(record.cohort)


def test_only_named_vectors_are_coded_and_held():
    result = train(LOGISTIC, fm.Scaffold(lr=LR), "batched", downlink={"x": Quantize(4)}, **EPOCHS)
    assert set(result.client_state(0)) == {"c_i", "held.x"}
    last = result.history[-1]
    assert last.bytes_down == len(last.cohort) * (Quantize(4).nbytes(D) + D * NUMBER)


def test_probed_clients_get_the_model_and_then_the_difference():
    codec = Quantize(4)
    selection = fm.PowerOfChoice(m=2, d=4)
    result = train(LOGISTIC, fm.FedAvg(lr=LR), "batched", selection, rounds=4, downlink=codec, **EPOCHS)
    seen: set[int] = set()
    for record in result.history:
        sent = sum(codec.nbytes(D) if i in seen else D * NUMBER for i in record.cohort)
        assert record.bytes_down == 4 * D * NUMBER + sent
        seen |= set(record.cohort)


@pytest.mark.parametrize("method", [fm.Scaffold, fm.ScaffoldM], ids=lambda method: method.__name__)
def test_control_variates_stay_the_mean_of_the_clients(method):
    """Clients correct by an approximation of c; the server's own is Σ p_i c_i."""
    result = train(LOGISTIC, method(lr=LR), "batched", rounds=14, downlink=TopK(0.2), uplink=Quantize(4), **EPOCHS)
    states = [result.client_state(i).get("c_i", torch.zeros(D)).numpy() for i in range(len(LOGISTIC))]
    close(result.server_state["c"], sum(p * v for p, v in zip(LOGISTIC.p, states, strict=True)), 1e-12)


def test_both_phases_of_a_round_see_the_same_model():
    """Mime's clients train from the model at which they took their gradients: the state is that of one phase."""

    class Watched(fm.Mime):
        seen: list = []

        def prepare(self, c, grad):
            self.seen.append(c.x.clone())
            return super().prepare(c, grad)

        def finish(self, y, s, c, grad):
            self.seen.append(c.x.clone())
            return super().finish(y, s, c, grad)

    train(LOGISTIC, Watched(lr=LR), "batched", fm.FixedCohorts([[0, 1]], [[0.5, 0.5]]), downlink=HALF, **EPOCHS)
    seen = Watched.seen
    pairs = [(seen[k], seen[k + 1]) for k in range(0, len(seen), 2)]
    assert all(torch.equal(a, b) for a, b in pairs)
    assert len(pairs) >= 9


@pytest.mark.extended
@pytest.mark.parametrize("codec", [Quantize(4), TopK(0.3), RandomK(0.3)], ids=str)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_engines_agree_for_every_algorithm(case, codec):
    how = {"downlink": codec, "rounds": 5, "local_epochs": 1, "batch_size": 8}
    loop, batched = (train(LOGISTIC, case.make(), engine, **how) for engine in ENGINES)
    close(batched.params, loop.params)


@pytest.mark.parametrize("method", [fm.FedMoS, fm.Scaffold, fm.GHBM, fm.Mime], ids=lambda method: method.__name__)
def test_engines_agree(method):
    how = {"downlink": Quantize(4), "uplink": Quantize(4)} | EPOCHS
    loop, batched = (train(LOGISTIC, method(lr=LR), engine, **how) for engine in ENGINES)
    close(batched.params, loop.params)
