"""FedAvg-M and SCAFFOLD-M: the last round's mean direction enters every local step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from ..algorithm import Algorithm, ClientContext, Context, Field, Gradient, Vectors
from ..core.validation import check, none, positive, share


@dataclass(frozen=True, kw_only=True)
class FedAvgMom(Algorithm):
    """FedAvg-M (Cheng et al., ICLR 2024), Algorithm 1. (`FedAvgM` is another method: Hsu's server momentum.)

    Client: y ← y − η (β g(y) + (1 − β) m).
    Server: m ← −Σ_S w_i δ_i/(η K_i) / Σ_S w_i;  x ← x − γ m.

    Args:
        lr: Client step size η.
        beta: Weight β of the client's own gradient; β = 1 disables the momentum.
        gamma: Server step size γ; None for γ = η K, FedAvg's step x ← x + Σ_S w_i δ_i.

    Deviations:
        m is a weighted mean with each client's own K_i; the paper has equal clients. m starts at zero. With
        `gamma=None` this is FedCM with α = β.

    Example:
        >>> algorithm = fm.FedAvgMom(lr=0.1, beta=0.1)
        >>> result = fm.run(model, data, algorithm, fm.Uniform(m=3), rounds=2, local_steps=2, batch_size=8)
    """

    lr: float
    beta: float = 0.1
    gamma: float | None = None

    server_state: ClassVar[Sequence[Field]] = ("m",)
    down: ClassVar[Sequence[Field]] = ("x", "m")
    reduce = {"A": ("delta", "w"), "step": ("delta", "avg/K")}

    def __post_init__(self) -> None:
        check(self, lr=positive, beta=share, gamma=positive | none)

    def direction(self, y: Tensor, s: Vectors, c: ClientContext, grad: Gradient, k: int) -> tuple[Tensor, Vectors]:
        return self.beta * grad(y) + (1 - self.beta) * c.msg["m"], s

    def server(self, x: Tensor, state: Vectors, agg: Vectors, ctx: Context) -> tuple[Tensor, Vectors]:
        m = -agg["step"] / ctx.lr
        return x + agg["A"] if self.gamma is None else x - self.gamma * m, {"m": m}

    def gradient_estimate(self, x: Tensor, state: Vectors, ctx: Context, K: float) -> Tensor | None:
        return state["m"]


@dataclass(frozen=True, kw_only=True)
class ScaffoldM(FedAvgMom):
    """SCAFFOLD-M (Cheng et al., ICLR 2024), Algorithm 2: SCAFFOLD with the momentum of FedAvg-M.

    Client: y ← y − η (β (g(y) − c_i + c) + (1 − β) m);  c_i⁺ = Σ_k g_k / K_i, the mean of its gradients g(y);
            uploads δ_i and c_i⁺ − c_i.
    Server: m ← −Σ_S w_i δ_i/(η K_i) / Σ_S w_i;  x ← x − γ m;  c ← c + Σ_S p_i (c_i⁺ − c_i).

    Args:
        lr: Client step size η.
        beta: Weight β of the corrected gradient; β = 1 disables the momentum and leaves SCAFFOLD.
        gamma: Server step size γ; None for γ = η K, the step x ← x + Σ_S w_i δ_i.

    Deviations:
        As FedAvgMom. The paper adds 1/N of each change of a control variate, which is p_i for equal clients.

    Example:
        >>> algorithm = fm.ScaffoldM(lr=0.1, beta=0.1)
        >>> result = fm.run(model, data, algorithm, fm.Uniform(m=3), rounds=2, local_steps=2, batch_size=8)
    """

    server_state = ("m", "c")
    client_state = ("c_i",)
    down = ("x", "m", "c")
    up = ("delta", "change")
    reduce = FedAvgMom.reduce | {"C": ("change", "p")}
    tracked = ("change",)
    population_sums = {"c": "c_i"}

    def begin(self, y: Tensor, c: ClientContext, grad: Gradient) -> Vectors:
        return {"sum": torch.zeros_like(y)}

    def direction(self, y: Tensor, s: Vectors, c: ClientContext, grad: Gradient, k: int) -> tuple[Tensor, Vectors]:
        g = grad(y)
        d = self.beta * (g - c.own["c_i"] + c.msg["c"]) + (1 - self.beta) * c.msg["m"]
        return d, {"sum": s["sum"] + g}

    def finish(self, y: Tensor, s: Vectors, c: ClientContext, grad: Gradient) -> tuple[Vectors, Vectors]:
        c_i = s["sum"] / c.K
        return {"delta": y - c.x, "change": c_i - c.own["c_i"]}, {"c_i": c_i}

    def delivered(self, upload: Vectors, own: Vectors, c: ClientContext) -> tuple[Vectors, Vectors]:
        return upload, {"c_i": c.own["c_i"] + upload["change"]}  # keeps c = Σ p_i c_i

    def server(self, x: Tensor, state: Vectors, agg: Vectors, ctx: Context) -> tuple[Tensor, Vectors]:
        x, new = super().server(x, state, agg, ctx)
        return x, new | {"c": state["c"] + agg["C"]}
