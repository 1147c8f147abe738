"""FedCM and FedADC: the server's momentum enters every local step."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from ..algorithm import Algorithm, ClientContext, Context, Gradient, Vectors
from ..core.validation import below_one, check, positive, share


@dataclass(frozen=True, kw_only=True)
class FedCM(Algorithm):
    """FedCM (Xu et al., 2021), Algorithm 2.

    Client: y ← y − η (α g(y) + (1 − α) D).
    Server: D ← −Σ_S w_i δ_i/(η K_i) / Σ_S w_i;  x ← x + η_s Σ_S w_i δ_i.

    D is the paper's Δ.

    Args:
        lr: Client step size η.
        alpha: Weight α of the client's own gradient.
        server_lr: Server step size η_s.

    Deviations:
        D is a weighted mean, and each δ_i is divided by the client's own K_i; the paper has equal
        clients. Its x ← x − η_g Δ, with η_g = η_s η K, is the same step for a common K and Σ w = 1.

    Example:
        >>> algorithm = fm.FedCM(lr=0.1, alpha=0.1)
        >>> result = fm.run(model, data, algorithm, fm.Uniform(m=3), rounds=2, local_steps=2, batch_size=8)
    """

    lr: float
    alpha: float = 0.1
    server_lr: float = 1.0

    server_state = ("D",)
    down = ("x", "D")
    reduce = {"A": ("delta", "w"), "step": ("delta", "avg/K")}

    def __post_init__(self) -> None:
        check(self, lr=positive, alpha=share, server_lr=positive)

    def direction(self, y: Tensor, s: Vectors, c: ClientContext, grad: Gradient, k: int) -> tuple[Tensor, Vectors]:
        return self.alpha * grad(y) + (1 - self.alpha) * c.msg["D"], s

    def server(self, x: Tensor, state: Vectors, agg: Vectors, ctx: Context) -> tuple[Tensor, Vectors]:
        return x + self.server_lr * agg["A"], {"D": -agg["step"] / ctx.lr}

    def z(self, x: Tensor, x_prev: Tensor) -> Tensor:
        """Return the point z_t = x_t + ((1 − α)/α) (x_t − x_{t−1}) of Theorem 5.1.

        Args:
            x: The model x_t.
            x_prev: The model x_{t−1} of the round before.
        """
        return x + (1 - self.alpha) / self.alpha * (x - x_prev)

    def gradient_estimate(self, x: Tensor, state: Vectors, ctx: Context, K: float) -> Tensor | None:
        return state["D"]


@dataclass(frozen=True, kw_only=True)
class FedADC(Algorithm):
    """FedADC (Ozfatura, Ozfatura & Gündüz, ISIT 2021): server momentum applied within the local steps.

    Client: y ← y − η (g(y) + β_l m/K_i).
    Server: m ← −Σ_S w_i δ_i/η + (β − β_l) m;  x ← x − η_s η m.

    Args:
        lr: Client step size η.
        beta: Momentum β.
        beta_local: The part β_l of the momentum that is applied in the local steps.
        server_lr: Server step size η_s.

    Deviations:
        Of the paper's variants this is the one that adds momentum after the gradient at y is computed.
        With β_l = β it is GHBM with τ = 1; with β_l = 0 it is FedAvgM.

    Example:
        >>> algorithm = fm.FedADC(lr=0.1, beta=0.9, beta_local=0.9)
        >>> result = fm.run(model, data, algorithm, fm.Uniform(m=3), rounds=2, local_steps=2, batch_size=8)
    """

    lr: float
    beta: float = 0.9
    beta_local: float = 0.9
    server_lr: float = 1.0

    server_state = ("m",)
    down = ("x", "m")

    def __post_init__(self) -> None:
        check(self, lr=positive, beta=below_one, beta_local=below_one, server_lr=positive)

    def direction(self, y: Tensor, s: Vectors, c: ClientContext, grad: Gradient, k: int) -> tuple[Tensor, Vectors]:
        return grad(y) + self.beta_local * c.msg["m"] / c.K, s

    def server(self, x: Tensor, state: Vectors, agg: Vectors, ctx: Context) -> tuple[Tensor, Vectors]:
        m = -agg["A"] / ctx.lr + (self.beta - self.beta_local) * state["m"]
        return x - self.server_lr * ctx.lr * m, {"m": m}

    def gradient_estimate(self, x: Tensor, state: Vectors, ctx: Context, K: float) -> Tensor | None:
        return (1 - self.beta) * state["m"] / K
