"""SCAFFOLD: control variates against client drift."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from ..algorithm import Algorithm, ClientContext, Context, Gradient, Vectors
from ..core.validation import check, one_of, positive


@dataclass(frozen=True, kw_only=True)
class Scaffold(Algorithm):
    """SCAFFOLD (Karimireddy et al., ICML 2020), Algorithm 1.

    Client: y ← y − η (g(y) − c_i + c);
            c_i⁺ = ∇f_i(x) (`option=1`) or c_i − c − δ_i/(K_i η) (`option=2`); uploads δ_i and c_i⁺ − c_i.
    Server: x ← x + η_s Σ_S w_i δ_i;  c ← c + Σ_S p_i (c_i⁺ − c_i).

    Args:
        lr: Client step size η.
        server_lr: Server step size η_s.
        option: The update of the control variates, 1 or 2, as numbered in the paper.

    Deviations:
        The paper adds 1/N of each change of a control variate, which is p_i for equal clients. With
        unequal importances p_i keeps c = Σ p_i c_i, so that the method minimises Σ p_i f_i.
        K_i can differ between clients; option 2 divides by the client's own.

    Example:
        >>> algorithm = fm.Scaffold(lr=0.1)
        >>> result = fm.run(model, data, algorithm, fm.Uniform(m=3), rounds=2, local_steps=2, batch_size=8)
    """

    lr: float
    server_lr: float = 1.0
    option: Literal[1, 2] = 2

    server_state = ("c",)
    client_state = ("c_i",)
    down = ("x", "c")
    up = ("delta", "change")
    reduce = {"A": ("delta", "w"), "C": ("change", "p")}
    tracked = ("change",)
    population_sums = {"c": "c_i"}

    def __post_init__(self) -> None:
        check(self, lr=positive, server_lr=positive, option=one_of(1, 2))

    def direction(self, y: Tensor, s: Vectors, c: ClientContext, grad: Gradient, k: int) -> tuple[Tensor, Vectors]:
        return grad(y) - c.own["c_i"] + c.msg["c"], s

    def finish(self, y: Tensor, s: Vectors, c: ClientContext, grad: Gradient) -> tuple[Vectors, Vectors]:
        delta = y - c.x
        c_i = grad.full(c.x) if self.option == 1 else c.own["c_i"] - c.msg["c"] - delta / (c.K * c.lr)
        return {"delta": delta, "change": c_i - c.own["c_i"]}, {"c_i": c_i}

    def delivered(self, upload: Vectors, own: Vectors, c: ClientContext) -> tuple[Vectors, Vectors]:
        return upload, {"c_i": c.own["c_i"] + upload["change"]}  # keeps c = Σ p_i c_i

    def server(self, x: Tensor, state: Vectors, agg: Vectors, ctx: Context) -> tuple[Tensor, Vectors]:
        return x + self.server_lr * agg["A"], {"c": state["c"] + agg["C"]}

    def gradient_estimate(self, x: Tensor, state: Vectors, ctx: Context, K: float) -> Tensor | None:
        return state["c"]
