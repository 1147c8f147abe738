"""The methods of 2020 to 2025 in plain numpy float64, from the equations alone; `reference.py` has the others."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from helpers.problems import Vector
from helpers.reference import Round


def _final_models(
    r: Round, direction: Callable[[int, int, Vector], Vector], start: Callable[[int], Vector] | None = None
) -> dict[int, Vector]:
    """y_i after y ← y − η direction(i, k, y) for k = 0 … K_i−1, from y = start(i), by default x."""
    final = {}
    for i in r.S:
        y = start(i) if start else r.x
        for k in range(r.K[i]):
            y = y - r.lr * direction(i, k, y)
        final[i] = y
    return final


def _updates(r: Round, *args) -> dict[int, Vector]:
    """δ_i = y_i − x."""
    return {i: y - r.x for i, y in _final_models(r, *args).items()}


def _raw(r: Round, i: int, k: int, y: Vector) -> Vector:
    """The gradient of the loss on the batch of step k."""
    return r.problem.gradient(i, y, r.batches[r.t, i][k])


def _perturbed(r: Round, i: int, k: int, y: Vector, e: Vector) -> Vector:
    """clip(g(y + e)) + weight_decay · y."""
    g = _raw(r, i, k, y + e)
    return g * min(1.0, r.clip / np.linalg.norm(g)) + r.weight_decay * y


def _unit(v: Vector) -> Vector:
    norm = np.linalg.norm(v)
    return v / norm if norm > 0 else v


def _sam(r: Round, i: int, k: int, y: Vector, rho: float) -> Vector:
    """g(y + ρ g(y)/‖g(y)‖)."""
    return _perturbed(r, i, k, y, rho * _unit(_raw(r, i, k, y)))


def _own(r: Round, name: str, first: Vector | None = None) -> Mapping[int, Vector]:
    return {i: r.own[i].get(name, r.zero if first is None else first) for i in r.S}


def fednova(r: Round, server_lr: float = 1.0) -> Vector:
    """As FedAvg.  x += η_s (Σ w_i K_i) (Σ w_i δ_i/K_i) / Σw."""
    delta = _updates(r, lambda i, k, y: r.g(i, k)(y))
    tau = sum(r.w[i] * r.K[i] for i in r.S)
    return r.x + server_lr * tau * sum(r.w[i] * delta[i] / r.K[i] for i in r.S) / r.W


def fedexp(r: Round, eps: float = 0.001, average: bool = False) -> Vector:
    """As FedAvg.  η_s = max(1, mean ‖δ_i‖² / (2 (‖mean δ_i‖² + ε)));  x += η_s A(δ); the mean of two x is evaluated."""
    delta = _updates(r, lambda i, k, y: r.g(i, k)(y))
    mean_square = sum(r.w[i] * np.sum(delta[i] ** 2) for i in r.S) / r.W
    square_of_mean = np.sum((r.A(delta) / r.W) ** 2)
    x = r.x + max(1, mean_square / (2 * (square_of_mean + eps))) * r.A(delta)
    if average:
        r.s["x_prev"], r.evaluated = r.x, (r.x + x) / 2
    return x


def fedavgmom(r: Round, beta: float = 0.1, gamma: float | None = None) -> Vector:
    """y −= η (β g(y) + (1−β) m).  m = −Σ w_i δ_i/(η K_i) / Σw;  x −= γ m, or x += A(δ)."""
    m = r.s.get("m", r.zero)
    delta = _updates(r, lambda i, k, y: beta * r.g(i, k)(y) + (1 - beta) * m)
    return _momentum_step(r, delta, gamma)


def _momentum_step(r: Round, delta: Mapping[int, Vector], gamma: float | None) -> Vector:
    r.s["m"] = -sum(r.w[i] * delta[i] / (r.lr * r.K[i]) for i in r.S) / r.W
    return r.x + r.A(delta) if gamma is None else r.x - gamma * r.s["m"]


def scaffoldm(r: Round, beta: float = 0.1, gamma: float | None = None) -> Vector:
    """y −= η (β (g(y) − c_i + c) + (1−β) m);  c_i⁺ = mean of g(y).  As FedAvgMom;  c += Σ_S p_i (c_i⁺ − c_i)."""
    m, c, c_i = r.s.get("m", r.zero), r.s.get("c", r.zero), _own(r, "c_i")
    gradients = {i: [] for i in r.S}

    def direction(i, k, y):
        gradients[i].append(r.g(i, k)(y))
        return beta * (gradients[i][-1] - c_i[i] + c) + (1 - beta) * m

    delta = _updates(r, direction)
    for i in r.S:
        r.own[i]["c_i"] = np.mean(gradients[i], axis=0)
    r.s["c"] = c + sum(r.p[i] * (r.own[i]["c_i"] - c_i[i]) for i in r.S)
    return _momentum_step(r, delta, gamma)


def fedgamma(r: Round, rho: float = 0.1, server_lr: float = 1.0, option: int = 2) -> Vector:
    """y −= η (SAM(y) − c_i + c);  the rest as SCAFFOLD."""
    c, c_i = r.s.get("c", r.zero), _own(r, "c_i")
    delta = _updates(r, lambda i, k, y: _sam(r, i, k, y, rho) - c_i[i] + c)
    for i in r.S:
        r.own[i]["c_i"] = r.full(i, r.x) if option == 1 else c_i[i] - c - delta[i] / (r.K[i] * r.lr)
    r.s["c"] = c + sum(r.p[i] * (r.own[i]["c_i"] - c_i[i]) for i in r.S)
    return r.x + server_lr * r.A(delta)


def fedspeed(r: Round, lam: float = 0.1, rho: float = 0.1) -> Vector:
    """y −= η (SAM(y) + λ (y − x + h_i));  h_i += δ_i.  x = mean of y_i + Σ_N p_i h_i."""
    h_i = _own(r, "h_i")
    final = _final_models(r, lambda i, k, y: _sam(r, i, k, y, rho) + lam * (y - r.x + h_i[i]))
    return _mean_with_correction(r, final, h_i)


def _mean_with_correction(r: Round, final: Mapping[int, Vector], h_i: Mapping[int, Vector]) -> Vector:
    for i in r.S:
        r.own[i]["h_i"] = h_i[i] + final[i] - r.x
    r.s["h"] = sum(r.p[i] * r.own[i].get("h_i", r.zero) for i in range(r.N))  # of all clients, anew in every round
    return r.A(final) / r.W + r.s["h"]


def fedsmoo(r: Round, lam: float = 0.1, rho: float = 0.1) -> Vector:
    """ĝ = g − μ_i − s;  e = ρ ĝ/‖ĝ‖;  μ_i += e − s;  y −= η (g(y + e) + λ (y − x + h_i));  h_i += δ_i.
    s = ρ μ̄/‖μ̄‖, μ̄ the cohort's mean;  x as FedSpeed."""
    h_i, mu_i, s = _own(r, "h_i"), dict(_own(r, "mu_i")), r.s.get("s", r.zero)

    def direction(i, k, y):
        e = rho * _unit(_raw(r, i, k, y) - mu_i[i] - s)
        mu_i[i] = mu_i[i] + e - s
        return _perturbed(r, i, k, y, e) + lam * (y - r.x + h_i[i])

    final = _final_models(r, direction)
    for i in r.S:
        r.own[i]["mu_i"] = mu_i[i]
    r.s["s"] = rho * _unit(r.A(mu_i) / r.W)
    return _mean_with_correction(r, final, h_i)


def fedlesam(r: Round, rho: float = 0.1, server_lr: float = 1.0) -> Vector:
    """y −= η g(y + ρ (x_old − x)/‖x_old − x‖), x_old the model received last time, at first x_0.  As FedAvg."""
    x_old = _own(r, "x_old", r.past[0])
    delta = _updates(r, lambda i, k, y: _perturbed(r, i, k, y, rho * _unit(x_old[i] - r.x)))
    for i in r.S:
        r.own[i]["x_old"] = r.x
    return r.x + server_lr * r.A(delta)


def fedacg(r: Round, lam: float = 0.85, beta: float = 0.001) -> Vector:
    """From z = x + λ m:  y −= η (g(y) + β (y − z)).  x = z + A(y − z);  m = λ m + A(y − z)."""
    m = r.s.get("m", r.zero)
    z = r.x + lam * m
    final = _final_models(r, lambda i, k, y: r.g(i, k)(y) + beta * (y - z), lambda i: z)
    A = r.A({i: y - z for i, y in final.items()})
    r.s["m"] = lam * m + A
    return z + A


def fedswa(r: Round, rho: float = 0.1, alpha: float = 1.5) -> Vector:
    """y −= η_k g(y), η_k from η linearly towards ρ η.  x += α A(δ)."""
    delta = _updates(r, lambda i, k, y: ((1 - k / r.K[i]) + rho * k / r.K[i]) * r.g(i, k)(y))
    return r.x + alpha * r.A(delta)


def fedinit(r: Round, beta: float = 0.1, server_lr: float = 1.0) -> Vector:
    """From x + β (x − y_i), y_i the client's last final model, at first x_0:  y −= η g(y).  x += η_s A(y − x)."""
    y_i = _own(r, "y_i", r.past[0])
    final = _final_models(r, lambda i, k, y: r.g(i, k)(y), lambda i: r.x + beta * (r.x - y_i[i]))
    for i in r.S:
        r.own[i]["y_i"] = final[i]
    return r.x + server_lr * r.A({i: y - r.x for i, y in final.items()})
