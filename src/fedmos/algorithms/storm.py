"""STEM and FedLOMO: variance-reduced momentum in the local steps, as in STORM."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from ..algorithm import Algorithm, ClientContext, Context, Gradient, Vectors
from ..core.validation import check, count, fraction, one_of, positive


@dataclass(frozen=True, kw_only=True)
class Stem(Algorithm):
    """STEM (Khanduri et al., NeurIPS 2021), Algorithm 1.

    Before round 0: d = Σ_S w_i ∇f_i(x) / Σ_S w_i.
    Client: from the received d, y_prev = y;  y ← y − η d;  d ← g(y) + (1 − a) (d − g(y_prev)), both
            gradients on one batch; uploads δ_i and d.
    Server: x ← x + Σ_S w_i δ_i;  d ← Σ_S w_i d_i / Σ_S w_i.

    Args:
        lr: Client step size η.
        a: Momentum parameter a; a = 1 disables the momentum.

    Deviations:
        In the paper all clients take part in every round; here the averages are weighted and over the round's cohort.

    Example:
        >>> algorithm = fm.Stem(lr=0.1, a=0.1)
        >>> result = fm.run(model, data, algorithm, fm.Uniform(m=3), rounds=2, local_steps=2, batch_size=8)
    """

    lr: float
    a: float = 0.1

    server_state = ("d",)
    down = ("x", "d")
    up = ("delta", "d")
    reduce = {"A": ("delta", "w"), "d": ("d", "avg")}
    prepare_up = ("gradient",)
    prepare_reduce = {"d": ("gradient", "avg")}

    def __post_init__(self) -> None:
        check(self, lr=positive, a=fraction)

    def prepares(self, t: int) -> bool:
        return t == 0

    def prepare(self, c: ClientContext, grad: Gradient) -> Vectors:
        return {"gradient": grad.full(c.x)}

    def begin(self, y: Tensor, c: ClientContext, grad: Gradient) -> Vectors:
        return {"d": c.msg["d"]}

    def step(self, y: Tensor, s: Vectors, c: ClientContext, grad: Gradient, k: int) -> tuple[Tensor, Vectors]:
        y_prev, y = y, y - c.lr * s["d"]
        return y, {"d": grad(y) + (1 - self.a) * (s["d"] - grad(y_prev))}

    def finish(self, y: Tensor, s: Vectors, c: ClientContext, grad: Gradient) -> tuple[Vectors, Vectors]:
        return {"delta": y - c.x, "d": s["d"]}, {}

    def server(self, x: Tensor, state: Vectors, agg: Vectors, ctx: Context) -> tuple[Tensor, Vectors]:
        return x + agg["A"], {"d": agg["d"]}

    def gradient_estimate(self, x: Tensor, state: Vectors, ctx: Context, K: float) -> Tensor | None:
        return state["d"]


@dataclass(frozen=True, kw_only=True)
class FedLomo(Algorithm):
    """FedLOMO (Das et al., UAI 2022): its local momentum.

    Client: d_0 = ∇f_i(x);  d ← g(y) + d − g(y_prev), both gradients on one batch;  y ← y − η d.
    Server: x ← x + Σ_S w_i δ_i.

    Args:
        lr: Client step size η.
        first_batch: "full" computes d_0 on all local data; an integer b computes it on one batch of b samples.

    Deviations:
        The paper also compresses the uploads and applies a variance-reduced momentum on the server that
        needs a second local gradient trajectory; this is the local part. It is FedMoS with a = μ = β = 0.

    Example:
        >>> algorithm = fm.FedLomo(lr=0.1)
        >>> result = fm.run(model, data, algorithm, fm.Uniform(m=3), rounds=2, local_steps=2, batch_size=8)
    """

    lr: float
    first_batch: int | Literal["full"] = "full"

    def __post_init__(self) -> None:
        check(self, lr=positive, first_batch=one_of("full") | count)

    def begin(self, y: Tensor, c: ClientContext, grad: Gradient) -> Vectors:
        d = grad.full(y) if self.first_batch == "full" else grad.batch(y, self.first_batch)
        return {"d": d, "y_prev": y}

    def direction(self, y: Tensor, s: Vectors, c: ClientContext, grad: Gradient, k: int) -> tuple[Tensor, Vectors]:
        d = s["d"] if k == 0 else grad(y) + s["d"] - grad(s["y_prev"])
        return d, {"d": d, "y_prev": y}
