"""Methods with parameters that stay with the clients in plain numpy float64: u is shared, v_i the client's own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from helpers.conformance import COHORTS, LR, WEIGHTS, Case
from helpers.problems import Problem, Rows, Vector
from helpers.reference import Round, Trace, simulate

WEIGHTS_OF, BIASES_OF = np.arange(12), np.arange(12, 15)
"""Where the weights and biases of the logistic problem are."""


class SharedPart:
    """A problem in u alone, at the current v_i of each client."""

    def __init__(self, problem: Problem, own: np.ndarray) -> None:
        self.whole, self.own = problem, own
        self.shared = np.setdiff1d(np.arange(len(problem.x0)), own)
        self.p, self.n, self.x0 = problem.p, problem.n, problem.x0[self.shared]
        self.v = dict.fromkeys(range(len(problem)), problem.x0[own])

    def __len__(self) -> int:
        return len(self.whole)

    def both(self, i: int, u: Vector, rows: Rows | slice = slice(None)) -> tuple[Vector, Vector]:
        """The gradient by u and by v_i."""
        w = np.empty(len(self.whole.x0))
        w[self.shared], w[self.own] = u, self.v[i]
        g = self.whole.gradient(i, w, rows)
        return g[self.shared], g[self.own]

    def gradient(self, i: int, u: Vector, rows: Rows | slice = slice(None)) -> Vector:
        return self.both(i, u, rows)[0]


def _simulate(method: Callable[..., Vector], problem: SharedPart, rounds: int, K: int, **fields: Any) -> Trace:
    batches = {(t, i): [range(problem.n[i])] * K for t in range(rounds) for i in COHORTS[t % len(COHORTS)]}
    return simulate(
        method,
        problem,
        cohorts=COHORTS,
        weights=WEIGHTS,
        batches=batches,
        first_batches={},
        rounds=rounds,
        lr=LR,
        **fields,
    )


def one_step(case: Case, problem: SharedPart) -> Trace:
    """Any method whose gradient of one full step is at x: then v_i −= η g_v(x, v_i)."""

    def method(r: Round, **fields: Any) -> Vector:
        x = case.recursion(r, **fields)
        for i in r.S:
            problem.v[i] = problem.v[i] - r.lr * problem.both(i, r.x)[1]
        return x

    return _simulate(method, problem, case.rounds, 1, **case.fields)


def trained(
    problem: SharedPart, K: int, rounds: int, steps: int = 0, mu: float = 0.0, scaffold: bool = False, beta: float = 0.0
) -> Trace:
    """FedAvg, FedProx or SCAFFOLD on u; all steps train both, or the first `steps` v_i and the others u.

    β is the momentum of local SGD, of both parts.
    """

    def method(r: Round) -> Vector:
        delta, c = {}, r.s.get("c", r.zero)
        change = r.zero
        for i in r.S:
            u, c_i = r.x, r.own[i].get("c_i", r.zero)
            m_u, m_v = np.zeros_like(u), np.zeros_like(problem.v[i])
            for k in range(K):
                g_u, g_v = problem.both(i, u)
                d = g_u + mu * (u - r.x) + (c - c_i if scaffold else 0)
                if k >= steps:
                    m_u = beta * m_u + d
                    u = u - r.lr * m_u
                if k < steps or not steps:
                    m_v = beta * m_v + g_v
                    problem.v[i] = problem.v[i] - r.lr * m_v
            delta[i] = u - r.x
            if scaffold:
                new = c_i - c - delta[i] / ((K - steps) * r.lr)
                change, r.own[i]["c_i"] = change + r.p[i] * (new - c_i), new
        if scaffold:
            r.s["c"] = c + change
        return r.x + r.A(delta)

    return _simulate(method, problem, rounds, K)


def own_values(problem: SharedPart) -> Sequence[Vector]:
    return [problem.v[i] for i in range(len(problem))]
