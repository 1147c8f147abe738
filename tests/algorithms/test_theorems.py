"""Lemmas and equations of the papers hold in runs."""

from __future__ import annotations

import numpy as np
import pytest

import fedmos as fm
from helpers.conformance import COHORTS, LOGISTIC, LR, QUADRATIC, ROUNDS, Log, close, spied, train
from helpers.problems import Problem, quadratic


def cohort_weights(problem: Problem, t: int) -> dict[int, float]:
    """Those of `FixedCohorts(COHORTS)`, which sum to one."""
    S = sorted(set(COHORTS[t % len(COHORTS)]))
    return {i: problem.p[i] / problem.p[S].sum() for i in S}


def test_fedcm_lemma_4_1(engine):
    """D_{t+1} = α (mean of all local gradients) + (1−α) D_t."""
    problem, alpha = LOGISTIC, 0.3
    log = Log(problem)
    result = train(
        problem, spied(fm.FedCM(lr=LR, alpha=alpha), log), engine, fm.FixedCohorts(COHORTS), local_steps=3, batch_size=4
    )
    D = [log.message[t]["D"].numpy() for t in range(ROUNDS)] + [result.server_state["D"].numpy()]
    for t in range(ROUNDS):
        mean = sum(w * np.mean(log.gradients[t, i], axis=0) for i, w in cohort_weights(problem, t).items())
        close(D[t + 1], alpha * mean + (1 - alpha) * D[t], 1e-12)


@pytest.mark.parametrize("K", [1, 3])
def test_ghbm_lemma_b_2(K, engine):
    """With x_{t−τ} = x_0 while t < τ, GHBM is m_t = (β/τ) Σ_{k=1…τ} m_{t−k} + g_t, x −= η m_t, from m = 0, where g_t
    is the cohort's summed gradient. Starting from zero instead is another trajectory."""
    problem, beta, tau = QUADRATIC, 0.6, 3
    selection, log = fm.FixedCohorts(COHORTS), Log(problem)
    algorithm = fm.GHBM(lr=LR, beta=beta, tau=tau, start="x0")
    result = train(problem, spied(algorithm, log), engine, selection, local_steps=K)
    x, m = problem.x0, [0 * problem.x0] * tau
    for t in range(ROUNDS):
        g = sum(w * np.sum(log.gradients[t, i], axis=0) for i, w in cohort_weights(problem, t).items())
        m.append(beta / tau * sum(m[-tau:]) + g)
        x = x - LR * m[-1]
    close(result.params, x, 1e-12)
    other = train(problem, fm.GHBM(lr=LR, beta=beta, tau=tau, start="zero"), engine, selection, local_steps=K)
    assert (result.params - other.params).abs().max() > 1e-3


@pytest.mark.parametrize("option", [1, 2])
def test_scaffold_variates_are_gradients(option, engine):
    """With one full step c_i is ∇f_i at the model client i last received, whatever the option."""
    problem, log = QUADRATIC, Log(QUADRATIC)
    result = train(problem, spied(fm.Scaffold(lr=LR, option=option), log), engine, local_steps=1)
    for i in range(6):
        close(result.client_state(i)["c_i"], problem.gradient(i, log.x[int(result.last[i])].numpy()), 1e-12)


@pytest.mark.parametrize(
    ("make", "server", "client"),
    [
        (lambda: fm.Scaffold(lr=LR, option=1), "c", "c_i"),
        (lambda: fm.Scaffold(lr=LR, option=2), "c", "c_i"),
        (lambda: fm.FedDyn(lr=LR, alpha=0.3), "h", "lambda_i"),
        (lambda: fm.ScaffoldM(lr=LR, beta=0.3), "c", "c_i"),
        (lambda: fm.FedGamma(lr=LR), "c", "c_i"),
        (lambda: fm.FedSMOO(lr=LR, lam=0.3), "h", "h_i"),
    ],
)
def test_server_variate_is_the_mean_of_the_clients(make, server, client, engine):
    """c = Σ p_i c_i over all clients, at any time and for any cohorts; for FedDyn h = Σ p_i λ_i."""
    problem = LOGISTIC
    result = train(problem, make(), engine, local_epochs=1, batch_size=4)
    mean = sum(problem.p[i] * result.client_state(i)[client] for i in range(6))
    close(result.server_state[server], mean, 1e-12)


HETEROGENEOUS = quadratic(sizes=(5, 9, 3, 4), importance=(0.55, 0.05, 0.3, 0.1), size=3)


@pytest.mark.parametrize(
    "make",
    [
        lambda: fm.Scaffold(lr=0.25, option=1),
        lambda: fm.Scaffold(lr=0.25, option=2),
        lambda: fm.FedDyn(lr=0.25, alpha=1.0),
        lambda: fm.Mime(lr=0.25),
        lambda: fm.ScaffoldM(lr=0.25, beta=0.8),
    ],
    ids=["Scaffold 1", "Scaffold 2", "FedDyn", "Mime", "ScaffoldM"],
)
@pytest.mark.extended
def test_drift_is_corrected(make, engine):
    """With everyone, full batches and K > 1, these reach the minimum of Σ p_i f_i …"""
    result = train(HETEROGENEOUS, make(), engine, fm.Full(), rounds=60, local_steps=3)
    close(result.params, HETEROGENEOUS.optimum(), 1e-6)


def test_drift_is_there(engine):
    """… and FedAvg does not: it settles where Σ p_i (1 − (1−ηH_i)^K) (x − e_i) = 0."""
    result = train(HETEROGENEOUS, fm.FedAvg(lr=0.25), engine, fm.Full(), rounds=60, local_steps=3)
    close(result.params, HETEROGENEOUS.optimum(lambda H: 1 - (1 - 0.25 * H) ** 3), 1e-10)
    assert np.abs(result.params.numpy() - HETEROGENEOUS.optimum()).max() > 1e-2


def test_fedmos_equations_4_and_20(engine):
    """(20), δ = new − old: Σ w_i δ_i = −η Σ_k (1−μ)^{K−1−k} Σ w_i d_{i,k}.
    (4): u = β u − Σ w_i δ_i/(ηK) and x −= ηK u make the same run, with v = ηK u."""
    problem, mu, beta, K = LOGISTIC, 0.2, 0.5, 4
    log = Log(problem)
    algorithm = spied(fm.FedMoS(lr=LR, a=0.3, mu=mu, beta=beta), log)
    result = train(problem, algorithm, engine, fm.FixedCohorts(COHORTS), local_steps=K, batch_size=4)
    x, u = problem.x0, 0 * problem.x0
    for t in range(ROUNDS):
        w = cohort_weights(problem, t)
        update = sum(w[i] * log.uploads[t, i]["delta"].numpy() for i in w)
        d = [sum(w[i] * log.scratch[t, i][k]["d"].numpy() for i in w) for k in range(K)]
        close(update, -LR * sum((1 - mu) ** (K - 1 - k) * d[k] for k in range(K)), 1e-12)
        u = beta * u - update / (LR * K)
        x = x - LR * K * u
    close(result.params, x, 1e-12)
    close(result.server_state["v"], LR * K * u, 1e-12)
