"""FedMoS: momentum on the clients and on the server."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from ..algorithm import Algorithm, ClientContext, Context, Gradient, Vectors
from ..core.validation import below_one, check, count, fraction, non_negative, one_of, positive


@dataclass(frozen=True, kw_only=True)
class FedMoS(Algorithm):
    """FedMoS (Wang et al., INFOCOM 2023), Algorithm 1 with equations (3) and (4).

    Client:  d_0 = ∇f_i(x);  d_k = g(y) + (1 − a) (d_{k−1} − g(y_prev)), both gradients on one batch;
             y ← y − η d − μ (y − x), with μ outside η.
    Server:  v ← β v − Σ_S w_i δ_i;  x ← x − v.

    Args:
        lr: Client step size η.
        a: Client momentum parameter a; a = 1 disables the momentum.
        mu: Weight μ of the proximal term.
        beta: Server momentum β.
        first_batch: "full" computes d_0 on all local data; an integer b computes it on one batch of b samples
            (Corollary 1).
        variant: "paper" for Algorithm 1, or "released" for the authors' published code, which takes one gradient
            per step, d_0 = g_0 and d_k = g_k + (1 − a)^k g_0, all on mini-batches, and in round 0 computes a plain
            average that leaves v at zero. (Their script counts epochs where the paper counts steps: use
            `local_epochs`.)

    Deviations:
        The server keeps v = η K u, where u is the paper's momentum. For a common K and a constant
        η the two are the same method; with unequal K or a decaying η, v stays well defined.

    Example:
        >>> algorithm = fm.FedMoS(lr=0.1, a=0.1, mu=0.001, beta=0.8)
        >>> result = fm.run(model, data, algorithm, fm.ACS(m=3), rounds=2, local_steps=2, batch_size=8)
    """

    lr: float
    a: float = 0.1
    mu: float = 0.001
    beta: float = 0.8
    first_batch: int | Literal["full"] = "full"
    variant: Literal["paper", "released"] = "paper"

    server_state = ("v",)

    def __post_init__(self) -> None:
        check(
            self,
            lr=positive,
            a=fraction,
            mu=non_negative,
            beta=below_one,
            first_batch=one_of("full") | count,
            variant=one_of("paper", "released"),
        )

    def begin(self, y: Tensor, c: ClientContext, grad: Gradient) -> Vectors:  # lines 6-8
        if self.variant == "released":
            return {"g_0": grad(y)}
        d = grad.full(y) if self.first_batch == "full" else grad.batch(y, self.first_batch)
        return {"d": d, "y_prev": y}

    def step(self, y: Tensor, s: Vectors, c: ClientContext, grad: Gradient, k: int) -> tuple[Tensor, Vectors]:  # 10-12
        if self.variant == "released":
            d = s["g_0"] if k == 0 else grad(y) + (1 - self.a) ** k * s["g_0"]
            return y - c.lr * d - self.mu * (y - c.x), s
        d = s["d"] if k == 0 else grad(y) + (1 - self.a) * (s["d"] - grad(s["y_prev"]))
        return y - c.lr * d - self.mu * (y - c.x), {"d": d, "y_prev": y}

    def server(self, x: Tensor, state: Vectors, agg: Vectors, ctx: Context) -> tuple[Tensor, Vectors]:  # line 14
        if self.variant == "released" and ctx.t == 0:
            return x + agg["A"], {}
        v = self.beta * state["v"] - agg["A"]
        return x - v, {"v": v}

    def gradient_estimate(self, x: Tensor, state: Vectors, ctx: Context, K: float) -> Tensor | None:
        return (1 - self.beta) * state["v"] / (ctx.lr * K)
