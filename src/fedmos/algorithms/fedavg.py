"""FedAvg and FedProx: plain and proximal local SGD."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from ..algorithm import Algorithm, ClientContext, Context, Gradient, Vectors
from ..core.validation import check, non_negative, positive


@dataclass(frozen=True, kw_only=True)
class FedAvg(Algorithm):
    """FedAvg (McMahan et al., AISTATS 2017), Algorithm 1, with a server step size (Reddi et al., ICLR 2021).

    Client: y ← y − η g(y).
    Server: x ← x + η_s Σ_S w_i δ_i.

    Args:
        lr: Client step size η.
        server_lr: Server step size η_s.

    Example:
        >>> result = fm.run(model, data, fm.FedAvg(lr=0.1), fm.Uniform(m=3), rounds=2, local_steps=2, batch_size=8)
    """

    lr: float
    server_lr: float = 1.0

    def __post_init__(self) -> None:
        check(self, lr=positive, server_lr=positive)

    def server(self, x: Tensor, state: Vectors, agg: Vectors, ctx: Context) -> tuple[Tensor, Vectors]:
        return x + self.server_lr * agg["A"], {}


@dataclass(frozen=True, kw_only=True)
class FedProx(Algorithm):
    """FedProx (Li et al., MLSys 2020), Algorithm 2, with K steps of SGD on the client's subproblem.

    Client: y ← y − η (g(y) + μ (y − x)).
    Server: x ← x + η_s Σ_S w_i δ_i.

    Args:
        lr: Client step size η.
        mu: Weight μ of the proximal term.
        server_lr: Server step size η_s.

    Example:
        >>> algorithm = fm.FedProx(lr=0.1, mu=0.01)
        >>> result = fm.run(model, data, algorithm, fm.Uniform(m=3), rounds=2, local_steps=2, batch_size=8)
    """

    lr: float
    mu: float
    server_lr: float = 1.0

    def __post_init__(self) -> None:
        check(self, lr=positive, mu=non_negative, server_lr=positive)

    def direction(self, y: Tensor, s: Vectors, c: ClientContext, grad: Gradient, k: int) -> tuple[Tensor, Vectors]:
        return grad(y) + self.mu * (y - c.x), s

    def server(self, x: Tensor, state: Vectors, agg: Vectors, ctx: Context) -> tuple[Tensor, Vectors]:
        return x + self.server_lr * agg["A"], {}
