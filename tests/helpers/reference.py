"""Every method once more, in plain numpy float64, from the equations alone.

One function per method plays one round; check it by eye against the method's row of the algorithm table, quoted in
its docstring. Nothing here uses the library. The federations are in `problems.py`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from helpers.problems import Batches, Problem, Rows, Vector

# --------------------------------------------------------------------------------------------- rounds


@dataclass
class Round:
    """What a method may use in round t: x, η, the cohort S with its weights, gradients, and what it kept."""

    problem: Problem
    t: int
    past: list[Vector]
    """x_0 … x_t."""
    lr: float
    S: list[int]
    """Distinct clients."""
    w: dict[int, float]
    """Their summed weights."""
    batches: Batches
    first_batches: Mapping[tuple[int, int], Rows]
    weight_decay: float
    clip: float
    s: dict[str, Vector]
    """Server state."""
    own: dict[int, dict[str, Vector]]
    """Client state."""
    last: Mapping[int, int]
    """The round each client last took part in, −1 for never."""

    def __post_init__(self) -> None:
        self.x = self.past[-1]
        self.evaluated: Vector | None = None
        self.zero = np.zeros_like(self.x)
        self.p, self.N, self.W = self.problem.p, len(self.problem), sum(self.w.values())
        self.K = {i: len(self.batches[self.t, i]) for i in self.S}

    def gradient(self, i: int, y: Vector, rows: Rows | slice) -> Vector:
        """clip(g) + weight_decay · y."""
        g = self.problem.gradient(i, y, rows)
        return g * min(1.0, self.clip / np.linalg.norm(g)) + self.weight_decay * y

    def g(self, i: int, k: int) -> Callable[[Vector], Vector]:
        """The gradient of client i on the batch of step k, as a function of the point."""
        return lambda y: self.gradient(i, y, self.batches[self.t, i][k])

    def full(self, i: int, y: Vector) -> Vector:
        """∇f_i(y)."""
        return self.gradient(i, y, slice(None))

    def first(self, i: int, y: Vector, first_batch: int | str) -> Vector:
        """d_0: ∇f_i(y), or the gradient of one batch drawn apart."""
        return self.full(i, y) if first_batch == "full" else self.gradient(i, y, self.first_batches[self.t, i])

    def local(self, step: Callable[[int, Vector, Callable[[Vector], Vector]], Vector]) -> dict[int, Vector]:
        """δ_i = y_i − x after y ← step(i, y, g) for k = 0 … K_i−1, from y = x."""
        delta = {}
        for i in self.S:
            y = self.x
            for k in range(self.K[i]):
                y = step(i, y, self.g(i, k))
            delta[i] = y - self.x
        return delta

    def A(self, v: Mapping[int, Vector]) -> Vector:
        """Σ_S w_i v_i."""
        return sum(self.w[i] * v[i] for i in self.S)


@dataclass
class Trace:
    """What came of a simulation."""

    xs: list[Vector]
    """x_0, x_1, …"""
    evaluated: Vector | None = None
    """The model that is evaluated in the end, if it is not the last x."""
    server: dict[str, Vector] = field(default_factory=dict)
    clients: dict[int, dict[str, Vector]] = field(default_factory=lambda: defaultdict(dict))


def simulate(
    method: Callable[..., Vector],
    problem: Problem,
    *,
    cohorts: Sequence[Sequence[int]],
    weights: Sequence[Sequence[float]] | None,
    batches: Batches,
    first_batches: Mapping[tuple[int, int], Rows],
    rounds: int,
    lr: float,
    lr_decay: float | Mapping[int, float] = 1.0,
    weight_decay: float = 0.0,
    clip: float | None = None,
    **fields: object,
) -> Trace:
    """Play `rounds` rounds of a method, cohorts starting over at their end; weights default to p_i/Σ_S p."""
    trace, last = Trace([problem.x0]), defaultdict(lambda: -1)
    for t in range(rounds):
        cohort = cohorts[t % len(cohorts)]
        S = sorted(set(cohort))
        if weights is None:
            w = {i: problem.p[i] / problem.p[S].sum() for i in S}
        else:
            drawn = list(zip(cohort, weights[t % len(cohorts)], strict=True))
            w = {i: sum(v for j, v in drawn if j == i) for i in S}
        r = Round(
            problem=problem,
            t=t,
            past=trace.xs,
            lr=step_size(lr, lr_decay, t),
            S=S,
            w=w,
            batches=batches,
            first_batches=first_batches,
            weight_decay=weight_decay,
            clip=np.inf if clip is None else clip,
            s=trace.server,
            own=trace.clients,
            last=last,
        )
        trace.xs.append(method(r, **fields))
        trace.evaluated = r.evaluated
        last.update(dict.fromkeys(S, t))
    return trace


def step_size(lr: float, decay: float | Mapping[int, float], t: int) -> float:
    """η γ^t, or η times every factor whose round has come."""
    if isinstance(decay, Mapping):
        return lr * np.prod([factor for key, factor in decay.items() if t >= key])
    return lr * decay**t


# -------------------------------------------------------------------------------------------- methods
# Each plays round r, changes r.s and r.own, and returns the next x. Its name is that of the class in lower case.


def fedavg(r: Round, server_lr: float = 1.0) -> Vector:
    """y −= η g(y).  x += η_s A(δ)."""
    return r.x + server_lr * r.A(_sgd(r))


def _sgd(r: Round) -> dict[int, Vector]:
    return r.local(lambda i, y, g: y - r.lr * g(y))


def fedprox(r: Round, mu: float, server_lr: float = 1.0) -> Vector:
    """y −= η (g(y) + μ (y−x)).  As FedAvg."""
    delta = r.local(lambda i, y, g: y - r.lr * (g(y) + mu * (y - r.x)))
    return r.x + server_lr * r.A(delta)


def fedavgm(r: Round, beta: float = 0.9, server_lr: float = 1.0, nesterov: bool = False) -> Vector:
    """As FedAvg.  m = β m + A(δ);  x += η_s m, with Nesterov x += η_s (A(δ) + β m)."""
    A = r.A(_sgd(r))
    r.s["m"] = beta * r.s.get("m", r.zero) + A
    return r.x + server_lr * (A + beta * r.s["m"] if nesterov else r.s["m"])


def _adaptive(r: Round, second: Callable, server_lr: float, beta1: float, tau: float) -> Vector:
    """m = β1 m + (1−β1) A(δ);  v = second(v, A(δ)²), from τ²;  x += η_s m/(√v+τ)."""
    A = r.A(_sgd(r))
    r.s["m"] = beta1 * r.s.get("m", r.zero) + (1 - beta1) * A
    r.s["v"] = second(r.s.get("v", r.zero + tau**2), A**2)
    return r.x + server_lr * r.s["m"] / (np.sqrt(r.s["v"]) + tau)


def fedadam(r: Round, server_lr: float = 0.1, beta1: float = 0.9, beta2: float = 0.99, tau: float = 1e-3) -> Vector:
    """v = β2 v + (1−β2) A(δ)²."""
    return _adaptive(r, lambda v, A2: beta2 * v + (1 - beta2) * A2, server_lr, beta1, tau)


def fedyogi(r: Round, server_lr: float = 0.1, beta1: float = 0.9, beta2: float = 0.99, tau: float = 1e-3) -> Vector:
    """v −= (1−β2) A(δ)² sign(v−A(δ)²)."""
    return _adaptive(r, lambda v, A2: v - (1 - beta2) * A2 * np.sign(v - A2), server_lr, beta1, tau)


def fedadagrad(r: Round, server_lr: float = 0.1, beta1: float = 0.0, tau: float = 1e-3) -> Vector:
    """v += A(δ)²."""
    return _adaptive(r, lambda v, A2: v + A2, server_lr, beta1, tau)


def scaffold(r: Round, server_lr: float = 1.0, option: int = 2) -> Vector:
    """y −= η (g(y) − c_i + c).  x += η_s A(δ);  c += Σ_S p_i (c_i⁺ − c_i).
    Option 2: c_i⁺ = c_i − c − δ_i/(K η);  option 1: c_i⁺ = ∇f_i(x)."""
    c, c_i = r.s.get("c", r.zero), {i: r.own[i].get("c_i", r.zero) for i in r.S}
    delta = r.local(lambda i, y, g: y - r.lr * (g(y) - c_i[i] + c))
    for i in r.S:
        r.own[i]["c_i"] = r.full(i, r.x) if option == 1 else c_i[i] - c - delta[i] / (r.K[i] * r.lr)
    r.s["c"] = c + sum(r.p[i] * (r.own[i]["c_i"] - c_i[i]) for i in r.S)
    return r.x + server_lr * r.A(delta)


def feddyn(r: Round, alpha: float = 0.01) -> Vector:
    """y −= η (g(y) − λ_i + α (y−x));  λ_i ← λ_i − α δ_i.  h −= α Σ_S p_i δ_i;  x = x + A(δ)/Σ_S w − h/α."""
    lambda_i = {i: r.own[i].get("lambda_i", r.zero) for i in r.S}
    delta = r.local(lambda i, y, g: y - r.lr * (g(y) - lambda_i[i] + alpha * (y - r.x)))
    for i in r.S:
        r.own[i]["lambda_i"] = lambda_i[i] - alpha * delta[i]
    r.s["h"] = r.s.get("h", r.zero) - alpha * sum(r.p[i] * delta[i] for i in r.S)
    return r.x + r.A(delta) / r.W - r.s["h"] / alpha


def adabest(r: Round, mu: float = 0.1, beta: float = 0.85) -> Vector:
    """y −= η (g(y) − h_i);  h_i ← h_i/(t−t_i) − μ δ_i (first time: −μ δ_i).
    x̄ = x + A(δ);  h = β (x̄_prev − x̄);  x = x̄ − h;  x̄_prev starts at x_0."""
    h_i = {i: r.own[i].get("h_i", r.zero) for i in r.S}
    delta = r.local(lambda i, y, g: y - r.lr * (g(y) - h_i[i]))
    for i in r.S:
        kept = h_i[i] / (r.t - r.last[i]) if r.last[i] >= 0 else r.zero
        r.own[i]["h_i"] = kept - mu * delta[i]
    x_bar_prev, r.s["x_bar"] = r.s.get("x_bar", r.past[0]), r.x + r.A(delta)
    r.s["h"] = beta * (x_bar_prev - r.s["x_bar"])
    return r.s["x_bar"] - r.s["h"]


def fedcm(r: Round, alpha: float = 0.1, server_lr: float = 1.0) -> Vector:
    """y −= η (α g(y) + (1−α) D).  D = −Σ_S w_i δ_i/(η K_i) / Σ_S w;  x += η_s A(δ)."""
    D = r.s.get("D", r.zero)
    delta = r.local(lambda i, y, g: y - r.lr * (alpha * g(y) + (1 - alpha) * D))
    r.s["D"] = -sum(r.w[i] * delta[i] / (r.lr * r.K[i]) for i in r.S) / r.W
    return r.x + server_lr * r.A(delta)


def fedadc(r: Round, beta: float = 0.9, beta_local: float = 0.9, server_lr: float = 1.0) -> Vector:
    """y −= η (g(y) + β_l m/K).  m = −A(δ)/η + (β−β_l) m;  x −= η_s η m."""
    m = r.s.get("m", r.zero)
    delta = r.local(lambda i, y, g: y - r.lr * (g(y) + beta_local * m / r.K[i]))
    r.s["m"] = -r.A(delta) / r.lr + (beta - beta_local) * m
    return r.x - server_lr * r.lr * r.s["m"]


def _mean_gradient(r: Round) -> Vector:
    """c = Σ_S w_i ∇f_i(x)/Σ_S w_i."""
    return r.A({i: r.full(i, r.x) for i in r.S}) / r.W


def mime(r: Round, beta: float = 0.0, server_lr: float = 1.0) -> Vector:
    """Before: c.  ĝ = g(y) − g(x) + c;  y −= η ((1−β) ĝ + β m).  After: m = (1−β) c + β m;  x += η_s A(δ)."""
    c, m = _mean_gradient(r), r.s.get("m", r.zero)
    delta = r.local(lambda i, y, g: y - r.lr * ((1 - beta) * (g(y) - g(r.x) + c) + beta * m))
    r.s["c"] = c
    if beta > 0:
        r.s["m"] = (1 - beta) * c + beta * m
    return r.x + server_lr * r.A(delta)


def mimelite(r: Round, beta: float = 0.0, server_lr: float = 1.0) -> Vector:
    """y −= η ((1−β) g(y) + β m).  m = (1−β) c + β m, c as Mime;  x += η_s A(δ)."""
    c, m = _mean_gradient(r), r.s.get("m", r.zero)
    delta = r.local(lambda i, y, g: y - r.lr * ((1 - beta) * g(y) + beta * m))
    if beta > 0:
        r.s["m"] = (1 - beta) * c + beta * m
    return r.x + server_lr * r.A(delta)


def stem(r: Round, a: float = 0.1) -> Vector:
    """y_prev = y;  y −= η d;  d = g(y) + (1−a)(d − g(y_prev)), from the received d.
    x += A(δ);  d = Σ w_i d_i/Σw;  before round 0 d = Σ w_i ∇f_i(x)/Σw."""
    received = _mean_gradient(r) if r.t == 0 else r.s["d"]
    delta, d_i = {}, {}
    for i in r.S:
        y, d = r.x, received
        for k in range(r.K[i]):
            g, y_prev = r.g(i, k), y
            y = y - r.lr * d
            d = g(y) + (1 - a) * (d - g(y_prev))
        delta[i], d_i[i] = y - r.x, d
    r.s["d"] = r.A(d_i) / r.W
    return r.x + r.A(delta)


def fedlomo(r: Round, first_batch: int | str = "full") -> Vector:
    """d_0 = ∇f_i(x);  d = g(y) + d − g(y_prev);  y −= η d.  x += A(δ)."""
    delta = {}
    for i in r.S:
        y, y_prev, d = r.x, r.x, r.first(i, r.x, first_batch)
        for k in range(r.K[i]):
            if k > 0:
                g = r.g(i, k)
                d = g(y) + d - g(y_prev)
            y, y_prev = y - r.lr * d, y
        delta[i] = y - r.x
    return r.x + r.A(delta)


def ghbm(r: Round, beta: float = 0.9, tau: int = 10, server_lr: float = 1.0, start: str = "zero") -> Vector:
    """y −= η g(y), y += (β/(τK)) (x_t − x_{t−τ});  while t<τ the term is 0, or with start="x0" x_{t−τ} is x_0."""
    past = r.past[r.t - tau] if r.t >= tau else r.past[0] if start == "x0" else r.x
    delta = r.local(lambda i, y, g: y - r.lr * g(y) + beta / (tau * r.K[i]) * (r.x - past))
    return r.x + server_lr * r.A(delta)


def _scale(r: Round, i: int, scale: str) -> float:
    """s_i: |S|/N, or 1/(t−t_i)."""
    return len(r.S) / r.N if scale == "participation" else 1 / (r.t - r.last[i])


def _reference_model(r: Round, i: int, first: str) -> Vector | None:
    """r_i; at the first participation nothing, or x_0 with first="shared"."""
    return r.own[i].get("r_i", r.past[0] if first == "shared" else None)


def localghbm(
    r: Round, beta: float = 0.9, server_lr: float = 1.0, scale: str = "participation", first: str = "zero"
) -> Vector:
    """y −= η g(y), y += (β s_i/K) (x_t − r_i);  r_i = model received last time.  x += η_s A(δ)."""

    def step(i, y, g):
        r_i = _reference_model(r, i, first)
        pull = 0 if r_i is None else beta * _scale(r, i, scale) / r.K[i] * (r.x - r_i)
        return y - r.lr * g(y) + pull

    delta = r.local(step)
    for i in r.S:
        r.own[i]["r_i"] = r.x
    return r.x + server_lr * r.A(delta)


def fedhbm(
    r: Round, beta: float = 1.0, server_lr: float = 1.0, scale: str = "participation", first: str = "zero"
) -> Vector:
    """y −= η g(y), y += (β s_i/K) (y_before_step − r_i);  r_i = own final local model of last time.  x += η_s A(δ)."""

    def step(i, y, g):
        r_i = _reference_model(r, i, first)
        pull = 0 if r_i is None else beta * _scale(r, i, scale) / r.K[i] * (y - r_i)
        return y - r.lr * g(y) + pull

    delta = r.local(step)
    for i in r.S:
        r.own[i]["r_i"] = r.x + delta[i]
    return r.x + server_lr * r.A(delta)


def fedmos(
    r: Round,
    a: float = 0.1,
    mu: float = 0.001,
    beta: float = 0.8,
    first_batch: int | str = "full",
    variant: str = "paper",
) -> Vector:
    """d_0 = ∇f_i(x);  d = g(y) + (1−a)(d − g(y_prev));  y −= η d + μ (y−x).  v = β v − A(δ);  x −= v.
    Released: d_0 = g_0, d_k = g_k + (1−a)^k g_0; round 0 takes x += A(δ) and leaves v at 0."""
    delta = {}
    for i in r.S:
        y, y_prev, d = r.x, r.x, None
        for k in range(r.K[i]):
            g = r.g(i, k)
            if variant == "released":
                d = g(y) if k == 0 else g(y) + (1 - a) ** k * r.g(i, 0)(r.x)
            else:
                d = r.first(i, r.x, first_batch) if k == 0 else g(y) + (1 - a) * (d - g(y_prev))
            y, y_prev = y - (r.lr * d + mu * (y - r.x)), y
        delta[i] = y - r.x
    v = r.s.get("v", r.zero)
    if variant == "released" and r.t == 0:
        r.s["v"] = v
        return r.x + r.A(delta)
    r.s["v"] = beta * v - r.A(delta)
    return r.x - r.s["v"]
