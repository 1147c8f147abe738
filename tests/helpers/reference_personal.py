"""The methods with a model of each client's own in plain numpy float64, from the equations alone."""

from __future__ import annotations

import numpy as np

from helpers.problems import Vector
from helpers.reference import Round


def ditto(r: Round, lam: float = 0.1, server_lr: float = 1.0) -> Vector:
    """y −= η g(y);  v_i −= η (g(v_i) + λ (v_i − x)), v_i at first x_0.  x += η_s A(δ)."""
    delta = r.local(lambda i, y, g: y - r.lr * g(y))
    for i in r.S:
        v = r.own[i].get("v", r.past[0])
        for k in range(r.K[i]):
            v = v - r.lr * (r.g(i, k)(v) + lam * (v - r.x))
        r.own[i]["v"] = v
    return r.x + server_lr * r.A(delta)


def apfl(r: Round, alpha: float = 0.5, adaptive: bool = True, server_lr: float = 1.0) -> Vector:
    """v̄ = α v + (1−α) y;  y −= η g(y);  v −= η α g(v̄);  α −= η ⟨g(v̄), v − y⟩, in [0, 1].  x += η_s A(δ)."""
    delta = {}
    for i in r.S:
        y, v, a = r.x, r.own[i].get("v", r.past[0]), float(r.own[i].get("alpha_i", alpha))
        for k in range(r.K[i]):
            g = r.g(i, k)(a * v + (1 - a) * y)
            slope = float(g @ (v - y))
            y, v = y - r.lr * r.g(i, k)(y), v - r.lr * a * g
            a = min(1.0, max(0.0, a - r.lr * slope)) if adaptive else a
        r.own[i]["v"], r.own[i]["alpha_i"] = v, np.float64(a)
        delta[i] = y - r.x
    return r.x + server_lr * r.A(delta)


def pfedme(r: Round, lam: float = 15.0, inner_lr: float = 0.01, inner_steps: int = 5, beta: float = 1.0) -> Vector:
    """From θ = x:  R times θ −= η_p (g(θ) + λ (θ − y));  y −= η λ (y − θ).  x += β A(δ)."""
    delta = {}
    for i in r.S:
        y = theta = r.x
        for k in range(r.K[i]):
            for _ in range(inner_steps):
                theta = theta - inner_lr * (r.g(i, k)(theta) + lam * (theta - y))
            y = y - r.lr * lam * (y - theta)
        r.own[i]["theta"], delta[i] = theta, y - r.x
    return r.x + beta * r.A(delta)


def localonly(r: Round) -> Vector:
    """y_i −= η g(y_i), from the client's last y_i, at first x_0; x stays."""
    for i in r.S:
        y = r.own[i].get("y_i", r.past[0])
        for k in range(r.K[i]):
            y = y - r.lr * r.g(i, k)(y)
        r.own[i]["y_i"] = y
    return r.x
