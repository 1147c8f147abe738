"""FedACG and FedInit: local training starts away from x."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from ..algorithm import Algorithm, ClientContext, Context, Gradient, Vectors
from ..core.validation import below_one, check, non_negative, positive


@dataclass(frozen=True, kw_only=True)
class FedACG(Algorithm):
    """FedACG (Kim, Kim & Han, CVPR 2024), Algorithm 1: clients start from the server's lookahead.

    Client: from y = z = x + λ m, which is all it receives:  y ← y − η (g(y) + β (y − z)); uploads δ_i = y − z.
    Server: m ← λ m + Σ_S w_i δ_i;  x ← x + m, which is z + Σ_S w_i δ_i.

    Args:
        lr: Client step size η.
        lam: Momentum λ.
        beta: Weight β of the proximal term.

    Deviations:
        The released code penalises β ‖y − z‖², whose gradient is twice this one.

    Example:
        >>> algorithm = fm.FedACG(lr=0.1, lam=0.85)
        >>> result = fm.run(model, data, algorithm, fm.Uniform(m=3), rounds=2, local_steps=2, batch_size=8)
    """

    lr: float
    lam: float = 0.85
    beta: float = 0.001

    server_state = ("m",)
    down = ("z",)

    def __post_init__(self) -> None:
        check(self, lr=positive, lam=below_one, beta=non_negative)

    def broadcast(self, x: Tensor, state: Vectors, ctx: Context) -> Vectors:
        return {"z": x + self.lam * state["m"]}

    def start(self, c: ClientContext) -> Tensor:
        return c.msg["z"]

    def direction(self, y: Tensor, s: Vectors, c: ClientContext, grad: Gradient, k: int) -> tuple[Tensor, Vectors]:
        return grad(y) + self.beta * (y - c.msg["z"]), s

    def finish(self, y: Tensor, s: Vectors, c: ClientContext, grad: Gradient) -> tuple[Vectors, Vectors]:
        return {"delta": y - c.msg["z"]}, {}

    def server(self, x: Tensor, state: Vectors, agg: Vectors, ctx: Context) -> tuple[Tensor, Vectors]:
        m = self.lam * state["m"] + agg["A"]
        return x + m, {"m": m}

    def gradient_estimate(self, x: Tensor, state: Vectors, ctx: Context, K: float) -> Tensor | None:
        return -(1 - self.lam) * state["m"] / (ctx.lr * K)


@dataclass(frozen=True, kw_only=True)
class FedInit(Algorithm):
    """FedInit (Sun, Shen & Tao, NeurIPS 2023), Algorithm 1: clients start on the far side of their last model.

    Client: from y = x + β (x − y_i):  y ← y − η g(y);  y_i ← the final y; uploads δ_i = y − x.
    Server: x ← x + η_s Σ_S w_i δ_i.

    y_i starts at x_0.

    Args:
        lr: Client step size η.
        beta: Relaxation β; β = 0 gives FedAvg.
        server_lr: Server step size η_s.

    Deviations:
        As in the paper the server averages the final models. The released FL-Simulator adds the mean of y minus the
        relaxed start instead.

    Example:
        >>> algorithm = fm.FedInit(lr=0.1, beta=0.1)
        >>> result = fm.run(model, data, algorithm, fm.Uniform(m=3), rounds=2, local_steps=2, batch_size=8)
    """

    lr: float
    beta: float = 0.1
    server_lr: float = 1.0

    client_state = ("y_i",)

    def __post_init__(self) -> None:
        check(self, lr=positive, beta=non_negative, server_lr=positive)

    def init(self, x: Tensor) -> Vectors:
        return {"y_i": x}

    def start(self, c: ClientContext) -> Tensor:
        return c.x + self.beta * (c.x - c.own["y_i"])

    def finish(self, y: Tensor, s: Vectors, c: ClientContext, grad: Gradient) -> tuple[Vectors, Vectors]:
        return {"delta": y - c.x}, {"y_i": y}

    def server(self, x: Tensor, state: Vectors, agg: Vectors, ctx: Context) -> tuple[Tensor, Vectors]:
        return x + self.server_lr * agg["A"], {}
