"""Algorithms that coincide under certain settings give the same trajectory."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import pytest
import torch

import fedmos as fm
from helpers.conformance import COHORTS, LOGISTIC, LR, QUADRATIC, ROUNDS, WEIGHTS, close, train
from helpers.problems import logistic


@dataclass(frozen=True, kw_only=True)
class WithoutDifference(fm.Algorithm):
    """FedMoS with a = 1 as a user would write it: full gradient first, then plain mini-batch gradients."""

    lr: float
    mu: float
    beta: float
    server_state = ("v",)

    def step(self, y, s, c, grad, k):
        return y - c.lr * (grad(y) if k else grad.full(y)) - self.mu * (y - c.x), s

    def server(self, x, state, agg, ctx):
        v = self.beta * state["v"] - agg["A"]
        return x - v, {"v": v}


SETTINGS = {  # problem, selection, local work
    "any": (LOGISTIC, fm.FixedCohorts(COHORTS, WEIGHTS), {"local_epochs": 1, "batch_size": 4}),
    "Σw=1": (LOGISTIC, fm.FixedCohorts(COHORTS), {"local_steps": 3, "batch_size": 4}),
    "everyone": (LOGISTIC, fm.FixedCohorts([range(7)]), {"local_steps": 3, "batch_size": 4}),
    "full": (LOGISTIC, fm.FixedCohorts(COHORTS, WEIGHTS), {"local_steps": 4}),
    "K=1": (LOGISTIC, fm.FixedCohorts(COHORTS, WEIGHTS), {"local_steps": 1, "batch_size": 4}),
    "full K=1": (LOGISTIC, fm.FixedCohorts(COHORTS, WEIGHTS), {"local_steps": 1}),
    "one client": (logistic((9,), (1,)), fm.FixedCohorts([[0]]), {"local_steps": 3, "batch_size": 4}),
    "one client, full": (logistic((9,), (1,)), fm.FixedCohorts([[0]]), {"local_steps": 4}),
}


def avg() -> fm.FedAvg:
    return fm.FedAvg(lr=LR)


IDENTITIES = {  # name: where it holds, and two algorithms that are one there
    "FedProx μ=0 is FedAvg": ("any", lambda: fm.FedProx(lr=LR, mu=0), avg),
    "FedAvgM β=0 is FedAvg": ("any", lambda: fm.FedAvgM(lr=LR, beta=0), avg),
    "FedCM α=1 is FedAvg": ("any", lambda: fm.FedCM(lr=LR, alpha=1), avg),
    "FedADC β=β_l=0 is FedAvg": ("any", lambda: fm.FedADC(lr=LR, beta=0, beta_local=0), avg),
    "AdaBest μ=β=0 is FedAvg": ("any", lambda: fm.AdaBest(lr=LR, mu=0, beta=0), avg),
    "MimeLite β=0 is FedAvg": ("any", lambda: fm.MimeLite(lr=LR, beta=0), avg),
    "GHBM β=0 is FedAvg": ("any", lambda: fm.GHBM(lr=LR, beta=0), avg),
    "LocalGHBM β=0 is FedAvg": ("any", lambda: fm.LocalGHBM(lr=LR, beta=0), avg),
    "FedHBM β=0 is FedAvg": ("any", lambda: fm.FedHBM(lr=LR, beta=0), avg),
    "FedCM is GHBM": (
        "Σw=1",
        lambda: fm.FedCM(lr=LR, alpha=0.3),
        lambda: fm.GHBM(lr=0.3 * LR, beta=0.7, tau=1),
    ),
    "FedADC β=β_l is GHBM": (
        "any",
        lambda: fm.FedADC(lr=LR, beta=0.6, beta_local=0.6),
        lambda: fm.GHBM(lr=LR, beta=0.6, tau=1),
    ),
    "FedADC β_l=0 is FedAvgM": (
        "any",
        lambda: fm.FedADC(lr=LR, beta=0.6, beta_local=0, server_lr=0.7),
        lambda: fm.FedAvgM(lr=LR, beta=0.6, server_lr=0.7),
    ),
    "GHBM τ=1 starts alike": (
        "any",
        lambda: fm.GHBM(lr=LR, beta=0.6, tau=1),
        lambda: fm.GHBM(lr=LR, beta=0.6, tau=1, start="x0"),
    ),
    "LocalGHBM with everyone is GHBM": (
        "everyone",
        lambda: fm.LocalGHBM(lr=LR, beta=0.6),
        lambda: fm.GHBM(lr=LR, beta=0.6, tau=1),
    ),
    "LocalGHBM with everyone has one scale and one start": (
        "everyone",
        lambda: fm.LocalGHBM(lr=LR, beta=0.6, scale="participation", first="zero"),
        lambda: fm.LocalGHBM(lr=LR, beta=0.6, scale="elapsed", first="shared"),
    ),
    "FedHBM with everyone has one scale": (
        "everyone",
        lambda: fm.FedHBM(lr=LR, beta=0.6, scale="participation"),
        lambda: fm.FedHBM(lr=LR, beta=0.6, scale="elapsed"),
    ),
    "FedMoS a=1 has no difference term": (
        "any",
        lambda: fm.FedMoS(lr=LR, a=1, mu=0.05, beta=0.5),
        lambda: WithoutDifference(lr=LR, mu=0.05, beta=0.5),
    ),
    "FedMoS a=μ=β=0 is FedLomo": ("any", lambda: fm.FedMoS(lr=LR, a=0, mu=0, beta=0), lambda: fm.FedLomo(lr=LR)),
    "… with a first batch, too": (
        "any",
        lambda: fm.FedMoS(lr=LR, a=0, mu=0, beta=0, first_batch=3),
        lambda: fm.FedLomo(lr=LR, first_batch=3),
    ),
    "a first batch of all samples is full": (
        "any",
        lambda: fm.FedMoS(lr=LR, first_batch=12),
        lambda: fm.FedMoS(lr=LR, first_batch="full"),
    ),
    "full-batch FedMoS does not see a": ("full", lambda: fm.FedMoS(lr=LR, a=0), lambda: fm.FedMoS(lr=LR, a=0.7)),
    "full-batch FedMoS β=0 is FedProx μ/η": (
        "full",
        lambda: fm.FedMoS(lr=LR, mu=0.05, beta=0),
        lambda: fm.FedProx(lr=LR, mu=0.05 / LR),
    ),
    "full-batch FedMoS μ=0 is FedAvgM": (
        "full",
        lambda: fm.FedMoS(lr=LR, mu=0, beta=0.6),
        lambda: fm.FedAvgM(lr=LR, beta=0.6),
    ),
    "full-batch FedLomo is FedAvg": ("full", lambda: fm.FedLomo(lr=LR), avg),
    "Scaffold's options agree for one full step": (
        "full K=1",
        lambda: fm.Scaffold(lr=LR, option=1),
        lambda: fm.Scaffold(lr=LR, option=2),
    ),
    "Mime is FedAvg for one full step": ("full K=1", lambda: fm.Mime(lr=LR), avg),
    "FedLomo is Mime for one step": ("K=1", lambda: fm.FedLomo(lr=LR), lambda: fm.Mime(lr=LR)),
    "MimeLite is Mime for one full step": (
        "full K=1",
        lambda: fm.MimeLite(lr=LR, beta=0.6),
        lambda: fm.Mime(lr=LR, beta=0.6),
    ),
    "Scaffold of one client is FedAvg": ("one client", lambda: fm.Scaffold(lr=LR), avg),
    "… with option 1, too": ("one client", lambda: fm.Scaffold(lr=LR, option=1), avg),
    "Mime of one client is FedAvg": ("one client, full", lambda: fm.Mime(lr=LR), avg),
    "Stem of one client is FedAvg": ("one client, full", lambda: fm.Stem(lr=LR, a=0.4), avg),
    "FedNova with equal K is FedAvg": ("full", lambda: fm.FedNova(lr=LR), avg),
    "FedExP with a large ε is FedAvg": ("any", lambda: fm.FedExP(lr=LR, eps=1e9), avg),
    "FedExP of one client is FedAvg": ("one client", lambda: fm.FedExP(lr=LR), avg),
    "FedAvgMom β=1 is FedAvg": ("any", lambda: fm.FedAvgMom(lr=LR, beta=1), avg),
    "FedAvgMom is FedCM": ("any", lambda: fm.FedAvgMom(lr=LR, beta=0.3), lambda: fm.FedCM(lr=LR, alpha=0.3)),
    "FedAvgMom's γ is ηK": (
        "Σw=1",
        lambda: fm.FedAvgMom(lr=LR, beta=0.3, gamma=3 * LR),
        lambda: fm.FedAvgMom(lr=LR, beta=0.3),
    ),
    "ScaffoldM β=1 is Scaffold": ("any", lambda: fm.ScaffoldM(lr=LR, beta=1), lambda: fm.Scaffold(lr=LR)),
    "ScaffoldM of one client is FedAvgMom": (
        "one client",
        lambda: fm.ScaffoldM(lr=LR, beta=0.3),
        lambda: fm.FedAvgMom(lr=LR, beta=0.3),
    ),
    "FedGamma ρ=0 is Scaffold": ("any", lambda: fm.FedGamma(lr=LR, rho=0), lambda: fm.Scaffold(lr=LR)),
    "FedSpeed ρ=0 is FedDyn": (
        "any",
        lambda: fm.FedSpeed(lr=LR, lam=0.3, rho=0),
        lambda: fm.FedDyn(lr=LR, alpha=0.3),
    ),
    "FedSMOO ρ=0 is FedDyn": (
        "any",
        lambda: fm.FedSMOO(lr=LR, lam=0.3, rho=0),
        lambda: fm.FedDyn(lr=LR, alpha=0.3),
    ),
    "FedLESAM ρ=0 is FedAvg": ("any", lambda: fm.FedLESAM(lr=LR, rho=0), avg),
    "FedACG λ=0 is FedProx": (
        "any",
        lambda: fm.FedACG(lr=LR, lam=0, beta=0.3),
        lambda: fm.FedProx(lr=LR, mu=0.3),
    ),
    "FedSWA ρ=α=1 is FedAvg": ("any", lambda: fm.FedSWA(lr=LR, rho=1, alpha=1), avg),
    "FedSWA is FedAvg for one step": (
        "K=1",
        lambda: fm.FedSWA(lr=LR, alpha=0.7),
        lambda: fm.FedAvg(lr=LR, server_lr=0.7),
    ),
    "FedInit β=0 is FedAvg": ("any", lambda: fm.FedInit(lr=LR, beta=0), avg),
    "pFedMe is FedAvg for one step of θ": (
        "K=1",
        lambda: fm.PFedMe(lr=0.5, lam=2.0, inner_lr=LR, inner_steps=1),
        avg,
    ),
}


@pytest.mark.parametrize("name", IDENTITIES)
def test_identity(name, engine):
    """Two names for one method give one trajectory."""
    where, left, right = IDENTITIES[name]
    problem, selection, work = SETTINGS[where]
    a, b = (train(problem, make(), engine, selection, **work).params for make in (left, right))
    close(a, b, 1e-12)
    assert (a - torch.tensor(problem.x0)).abs().max() > 1e-2


@pytest.mark.parametrize(
    ("method", "algorithm"),
    [
        (fm.FedGamma(lr=LR, rho=0.3), fm.Scaffold(lr=LR)),
        (fm.FedSpeed(lr=LR, lam=0.5, rho=0.3), fm.FedDyn(lr=LR, alpha=0.5)),
    ],
    ids=["FedGamma", "FedSpeed"],
)
def test_sharpness_aware_methods_are_compositions(method, algorithm, engine):
    """FedGamma is SCAFFOLD with SAM gradients, FedSpeed is FedDyn with them."""
    work = {"local_epochs": 1, "batch_size": 4, "weight_decay": 0.1, "clip": 0.8}
    a = train(LOGISTIC, method, engine, **work).params
    b = train(LOGISTIC, algorithm, engine, local=fm.local.SAM(rho=0.3), **work).params
    close(a, b, 1e-12)
    assert (a - train(LOGISTIC, algorithm, engine, **work).params).abs().max() > 1e-3


def test_fedmos_without_momenta_is_gradient_descent(engine):
    """β = μ = 0, one full step: x −= η Σ w_i ∇f_i(x)."""
    problem = QUADRATIC
    x = problem.x0
    for cohort, weights in itertools.islice(itertools.cycle(zip(COHORTS, WEIGHTS, strict=True)), ROUNDS):
        x = x - LR * sum(w * problem.gradient(i, x) for i, w in zip(cohort, weights, strict=True))
    close(train(problem, fm.FedMoS(lr=LR, beta=0, mu=0), engine, local_steps=1).params, x, 1e-12)


def test_local_ghbm_is_ghbm_where_clients_take_turns(engine):
    """With cohorts in a fixed cycle of N/|S| = τ rounds, the model a client received last time is x_{t−τ}."""
    data = fm.datasets.load("digits").partition(fm.partition.IID(), clients=6, seed=0)
    runs = [
        fm.run(
            fm.models.logistic(features=64),
            data,
            algorithm,
            fm.FixedCohorts([[0, 1], [2, 3], [4, 5]]),
            rounds=9,
            local_steps=2,
            batch_size=8,
            dtype=torch.float64,
            engine=engine,
        ).params
        for algorithm in (fm.LocalGHBM(lr=0.1, beta=0.7), fm.GHBM(lr=0.1, beta=0.7, tau=3))
    ]
    assert torch.allclose(*runs, rtol=0, atol=1e-13)


@pytest.mark.parametrize("algorithm", [fm.FedExP(lr=LR), fm.FedNova(lr=LR), fm.FedSMOO(lr=LR)], ids=repr)
def test_a_cohort_of_weight_zero_leaves_the_model_finite(algorithm):
    cohorts = fm.FixedCohorts([[0, 1], [2, 3]], [[0.0, 0.0], [0.5, 0.5]])
    result = train(LOGISTIC, algorithm, "batched", selection=cohorts, rounds=2, local_steps=2, batch_size=4)
    assert bool(result.params.isfinite().all())


PERSONAL_IDENTITIES = {
    "Ditto λ=0": lambda: fm.Ditto(lr=LR, lam=0),
    "APFL α=1": lambda: fm.APFL(lr=LR, alpha=1.0, adaptive=False),
}


@pytest.mark.parametrize("name", PERSONAL_IDENTITIES)
def test_personal_models_without_the_global_one_are_local_training(name, engine):
    """The own models are those of local training alone, while x is FedAvg's."""
    problem, selection, work = SETTINGS["any"]
    runs = [train(problem, make(), engine, selection, **work) for make in (PERSONAL_IDENTITIES[name], avg)]
    alone = train(problem, fm.LocalOnly(lr=LR), engine, selection, **work)
    close(runs[0].params, runs[1].params, 1e-12)
    for i in range(len(problem)):
        own, wanted = (
            torch.cat([p.detach().flatten() for p in r.personal_model(i).parameters()]) for r in (runs[0], alone)
        )
        close(own, wanted, 1e-12)
    assert sum(r.bytes_up + r.bytes_down for r in alone.history) == 0


def test_apfl_without_own_model_is_fedavg(engine):
    problem, selection, work = SETTINGS["any"]
    result = train(problem, fm.APFL(lr=LR, alpha=0.0, adaptive=False), engine, selection, **work)
    for i in range(len(problem)):
        own = torch.cat([p.detach().flatten() for p in result.personal_model(i).parameters()])
        close(own, result.params, 1e-12)
