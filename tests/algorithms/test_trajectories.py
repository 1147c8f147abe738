"""Trajectories of every algorithm equal those of the reference equations."""

from __future__ import annotations

import dataclasses
import inspect
import itertools
from collections.abc import Callable
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
from helpers import reference
from helpers.conformance import CASES, COHORTS, LOGISTIC, LR, QUADRATIC, SEED, WEIGHTS, Case, case, close, train
from helpers.problems import SIZES, Problem
from helpers.reference import simulate

every_case = pytest.mark.parametrize("case", CASES, ids=str)


def test_no_algorithm_goes_untested():
    """The table names every algorithm there is, and nothing else."""
    assert {c.name for c in CASES} == set(fm.algorithms())


@pytest.mark.parametrize("case", list({c.name: c for c in CASES}.values()), ids=lambda c: c.name)
def test_defaults_are_those_of_the_equations(case):
    """Every hyper-parameter but η is one of the recursion, with the same default."""
    fields = {f.name: f.default for f in dataclasses.fields(case.make()) if f.name != "lr"}
    _, *parameters = inspect.signature(case.recursion).parameters.values()
    assert {name: None if v is dataclasses.MISSING else v for name, v in fields.items()} == {
        p.name: None if p.default is p.empty else p.default for p in parameters
    }


def replayed(problem: Problem, **work: Any) -> Callable[[int, int], Batches]:
    """(round, client) → the batches that a run of that local work draws."""
    task = Task(
        model=FlatModel(problem.model(), torch.device("cpu"), torch.float64),
        data=problem.data(),
        loss=Loss(problem.loss),
        seed=SEED,
        **({"local_steps": None, "local_epochs": None, "batch_size": None} | work),
    )
    return lambda t, i: Batches(task, Chunk.of(task, torch.tensor([i])), t)


def rows(batch) -> list[int]:
    """The samples of a batch of one client."""
    return batch.positions[0, : batch.size[0]].tolist()


@cache
def scripted_batches(problem: Problem, local_steps: int | None, local_epochs: int | None, batch_size: int | None):
    """The samples of every step of twelve scripted cohorts; full batches are written down without the library."""
    drawn = replayed(problem, local_steps=local_steps, local_epochs=local_epochs, batch_size=batch_size)
    batches = {}
    for t in range(12):
        for i in COHORTS[t % len(COHORTS)]:
            if batch_size is None:
                batches[t, i] = [range(problem.n[i])] * (local_steps or local_epochs)
            else:
                K = local_steps or local_epochs * -(-problem.n[i] // batch_size)
                batches[t, i] = [rows(drawn(t, i).step(k)) for k in range(K)]
    return batches


@cache
def scripted_first_batches(problem: Problem, b: int):
    drawn = replayed(problem, local_steps=1)
    return {(t, i): rows(drawn(t, i).first(b)) for t in range(12) for i in COHORTS[t % len(COHORTS)]}


def expected(
    case: Case, problem: Problem, weights=WEIGHTS, local_steps=None, local_epochs=None, batch_size=None, **work
) -> reference.Trace:
    """The recursion, on the scripted cohorts and the batches that the library uses there."""
    b = case.fields.get("first_batch", "full")
    return simulate(
        case.recursion,
        problem,
        cohorts=COHORTS,
        weights=weights,
        batches=scripted_batches(problem, local_steps, local_epochs, batch_size),
        first_batches={} if b == "full" else scripted_first_batches(problem, b),
        rounds=case.rounds,
        lr=LR,
        **work,
        **case.fields,
    )


def same_run(result: fm.Result, trace: reference.Trace, tolerance: float = 1e-10, server: bool = True) -> None:
    """Model, server state and the state of every client, those that never took part included."""
    close(result.params, trace.xs[-1] if trace.evaluated is None else trace.evaluated, tolerance, "x")
    if server:
        assert set(result.server_state) == set(trace.server)
        for name, value in trace.server.items():
            close(result.server_state[name], value, tolerance, name)
    for i in range(len(result.last)):
        assert set(result.client_state(i)) == set(trace.clients.get(i, {}))
        for name, value in result.client_state(i).items():
            close(value, trace.clients[i][name], tolerance, f"{name} of client {i}")


WORK = {
    "one full step": (QUADRATIC, {"local_steps": 1}),
    "full steps": (LOGISTIC, {"local_steps": 4}),
    "mini-batch steps": (LOGISTIC, {"local_steps": 3, "batch_size": 4}),
    "ragged epochs": (
        QUADRATIC,
        {"local_epochs": 2, "batch_size": 5, "lr_decay": 0.9, "weight_decay": 0.1, "clip": 2.0},
    ),
}


@every_case
@pytest.mark.parametrize(
    "work", [pytest.param("full steps", marks=pytest.mark.extended), *(w for w in WORK if w != "full steps")]
)
def test_trajectory(case, work, engine):
    """Nine or more rounds of scripted cohorts give the recursion's model and state."""
    problem, settings = WORK[work]
    result = train(problem, case.make(), engine, rounds=case.rounds, **settings)
    same_run(result, expected(case, problem, **settings), server=case.name != "GHBM")


@pytest.mark.parametrize(
    "case",
    [
        case("FedAvg", 1, 1, server_lr=0.7),
        case("FedProx", 1, 1, mu=1.5),
        case("FedMoS", 1, 1, a=0.3, mu=0.05, beta=0.5),
        case("FedMoS", 1, 1, a=0.3, mu=0.05, beta=0.5, variant="released"),
    ],
    ids=str,
)
@pytest.mark.parametrize("problem", [QUADRATIC, LOGISTIC], ids=["quadratic", "logistic"])
@pytest.mark.parametrize("K", [1, 3, 7])
@pytest.mark.extended
def test_trajectory_to_twelve_digits(case, problem, K, engine):
    """Full batches, on both federations."""
    result = train(problem, case.make(), engine, local_steps=K)
    same_run(result, expected(case, problem, local_steps=K), 1e-12)


@pytest.mark.parametrize(
    "extra",
    [{"weight_decay": 0.3}, {"lr_decay": 0.8}, {"lr_decay": {3: 0.5, 7: 0.1}}, {"clip": 2.0}],
    ids=str,
)
@pytest.mark.parametrize("case", [case("FedAvg", 1, 1), case("FedMoS", 1, 1, a=0.3, mu=0.05)], ids=str)
def test_every_gradient_is_clipped_and_decayed(case, extra, engine):
    """clip(g) + wd·y and η_t, one at a time; each of them makes a difference."""
    problem, work = QUADRATIC, {"local_steps": 3, "batch_size": 4}
    result = train(problem, case.make(), engine, **work, **extra)
    same_run(result, expected(case, problem, **work, **extra))
    assert np.abs(result.params.numpy() - expected(case, problem, **work).xs[-1]).max() > 1e-3


def test_default_weights_are_importances_within_the_cohort(engine):
    """p_i/Σ_S p, a client named twice counting once."""
    plain = case("FedAvg", 1, 1)
    result = train(QUADRATIC, plain.make(), engine, fm.FixedCohorts(COHORTS), local_steps=2)
    same_run(result, expected(plain, QUADRATIC, weights=None, local_steps=2))


@pytest.mark.parametrize("i", range(len(SIZES)))
def test_batches(i):
    """Steps draw min(B, n_i) different samples each; epochs are shuffled passes whose short last batch is kept;
    `first_batch` has a stream of its own; no two rounds are alike."""
    n, B = QUADRATIC.n[i], 4
    steps = [replayed(QUADRATIC, local_steps=3, batch_size=B)(t, i) for t in range(30)]
    drawn = [[rows(batches.step(k)) for k in range(3)] for batches in steps]
    assert all(len(b) == len(set(b)) == min(B, n) and set(b) <= set(range(n)) for b in itertools.chain(*drawn))
    assert {j for b in itertools.chain(*drawn) for j in b} == set(range(n))
    assert len({str(b) for b in drawn}) > 20
    assert [rows(batches.first(B)) for batches in steps] != [b[0] for b in drawn]
    epochs = replayed(QUADRATIC, local_epochs=3, batch_size=B)(0, i)
    passes = np.split(np.concatenate([rows(epochs.step(k)) for k in range(3 * -(-n // B))]), 3)
    assert all(sorted(p) == list(range(n)) for p in passes)
    assert len(rows(epochs.step(-(-n // B) - 1))) == (n % B or B)
