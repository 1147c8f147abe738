"""FedSWA: step sizes that fall within a round, as in stochastic weight averaging."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from ..algorithm import Algorithm, ClientContext, Context, Gradient, Vectors
from ..core.validation import check, fraction, positive


@dataclass(frozen=True, kw_only=True)
class FedSWA(Algorithm):
    """FedSWA (Liu et al., ICML 2025).

    Client: y ← y − η_k g(y), with η_k = η (1 − (1 − ρ) k/K_i) in step k = 0 … K_i − 1.
    Server: x ← x + α Σ_S w_i δ_i.

    Args:
        lr: Client step size η in the first step of a round.
        rho: The step size falls linearly towards ρ η; ρ = 1 keeps it constant.
        alpha: Server step size α. FedAvg has α = 1.

    Deviations:
        The released code doubles η, sets ρ = 0 and α = 1. Its second method, FedMoSWA, is not implemented.

    Example:
        >>> algorithm = fm.FedSWA(lr=0.1, rho=0.1, alpha=1.5)
        >>> result = fm.run(model, data, algorithm, fm.Uniform(m=3), rounds=2, local_steps=2, batch_size=8)
    """

    lr: float
    rho: float = 0.1
    alpha: float = 1.5

    def __post_init__(self) -> None:
        check(self, lr=positive, rho=fraction, alpha=positive)

    def step(self, y: Tensor, s: Vectors, c: ClientContext, grad: Gradient, k: int) -> tuple[Tensor, Vectors]:
        return y - c.lr * (1 - (1 - self.rho) * k / c.K) * grad(y), s

    def server(self, x: Tensor, state: Vectors, agg: Vectors, ctx: Context) -> tuple[Tensor, Vectors]:
        return x + self.alpha * agg["A"], {}
