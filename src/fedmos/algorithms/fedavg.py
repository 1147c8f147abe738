"""FedAvg and FedProx: plain and proximal local SGD."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from ..algorithm import Algorithm, ClientContext, Context, Gradient, Vectors
from ..core.validation import check, non_negative, positive


@dataclass(frozen=True, kw_only=True)
class FedAvg(Algorithm):
    """FedAvg (McMahan et al., AISTATS 2017), Algorithm 1, with a server step size (Reddi et al., ICLR 2021).

    Client: y ← y − η g(y).  Server: x ← x + η_s Σ_S w_i δ_i.

    Symbols: η = `lr`, η_s = `server_lr`.
    """

    lr: float
    server_lr: float = 1.0

    def __post_init__(self) -> None:
        check(self, lr=positive, server_lr=positive)

    def server(self, x: Tensor, state: Vectors, agg: Vectors, ctx: Context) -> tuple[Tensor, Vectors]:
        return x + self.server_lr * agg["A"], {}


@dataclass(frozen=True, kw_only=True)
class FedProx(Algorithm):
    """FedProx (Li et al., MLSys 2020), Algorithm 2, its subproblem solved by K steps of SGD.

    Client: y ← y − η (g(y) + μ (y − x)).  Server: as FedAvg.

    Symbols: η = `lr`, μ = `mu`, η_s = `server_lr`.
    """

    lr: float
    mu: float
    server_lr: float = 1.0

    def __post_init__(self) -> None:
        check(self, lr=positive, mu=non_negative, server_lr=positive)

    def step(self, y: Tensor, s: Vectors, c: ClientContext, grad: Gradient, k: int) -> tuple[Tensor, Vectors]:
        return y - c.lr * (grad(y) + self.mu * (y - c.x)), s

    def server(self, x: Tensor, state: Vectors, agg: Vectors, ctx: Context) -> tuple[Tensor, Vectors]:
        return x + self.server_lr * agg["A"], {}
