"""Mime and MimeLite: the server's momentum, held fixed during local steps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from ..algorithm import Algorithm, ClientContext, Context, Gradient, Reduce, Vectors
from ..core.validation import below_one, check, positive


@dataclass(frozen=True, kw_only=True)
class Mime(Algorithm):
    """Mime (Karimireddy et al., NeurIPS 2021), Algorithm 1; with `beta` > 0 the momentum method MimeMom.

    Extra phase: c = Σ_S w_i ∇f_i(x) / Σ_S w_i.
    Client: ĝ = g(y) − g(x) + c, both gradients on one batch;  y ← y − η ((1 − β) ĝ + β m).
    Server: m ← (1 − β) c + β m;  x ← x + η_s Σ_S w_i δ_i.

    Args:
        lr: Client step size η.
        beta: Momentum β.
        server_lr: Server step size η_s.

    Example:
        >>> algorithm = fm.Mime(lr=0.1, beta=0.9)
        >>> result = fm.run(model, data, algorithm, fm.Uniform(m=3), rounds=2, local_steps=2, batch_size=8)
    """

    lr: float
    beta: float = 0.0
    server_lr: float = 1.0

    prepare_up = ("gradient",)
    prepare_reduce = {"c": ("gradient", "avg")}

    def __post_init__(self) -> None:
        check(self, lr=positive, beta=below_one, server_lr=positive)

    @property
    def server_state(self) -> Sequence[str]:
        return ("c", "m") if self.beta else ("c",)

    @property
    def down(self) -> Sequence[str]:
        return ("x", *self.server_state)

    def prepare(self, c: ClientContext, grad: Gradient) -> Vectors:
        return {"gradient": grad.full(c.x)}

    def direction(self, y: Tensor, s: Vectors, c: ClientContext, grad: Gradient, k: int) -> tuple[Tensor, Vectors]:
        return _blend(self.beta, grad(y) - grad(c.x) + c.msg["c"], c.msg), s

    def server(self, x: Tensor, state: Vectors, agg: Vectors, ctx: Context) -> tuple[Tensor, Vectors]:
        return x + self.server_lr * agg["A"], {"m": _blend(self.beta, state["c"], state)} if self.beta else {}

    def gradient_estimate(self, x: Tensor, state: Vectors, ctx: Context, K: float) -> Tensor | None:
        return state["m" if self.beta else "c"]


@dataclass(frozen=True, kw_only=True)
class MimeLite(Algorithm):
    """MimeLite (Karimireddy et al., NeurIPS 2021), Algorithm 1; with `beta` > 0 MimeLiteMom, with 0 FedAvg.

    Client: y ← y − η ((1 − β) g(y) + β m);  uploads δ_i and ∇f_i(x).
    Server: m ← (1 − β) c + β m with c = Σ_S w_i ∇f_i(x) / Σ_S w_i;  x ← x + η_s Σ_S w_i δ_i.

    Args:
        lr: Client step size η.
        beta: Momentum β.
        server_lr: Server step size η_s.

    Example:
        >>> algorithm = fm.MimeLite(lr=0.1, beta=0.9)
        >>> result = fm.run(model, data, algorithm, fm.Uniform(m=3), rounds=2, local_steps=2, batch_size=8)
    """

    lr: float
    beta: float = 0.0
    server_lr: float = 1.0

    def __post_init__(self) -> None:
        check(self, lr=positive, beta=below_one, server_lr=positive)

    @property
    def server_state(self) -> Sequence[str]:
        return ("m",) if self.beta else ()

    @property
    def down(self) -> Sequence[str]:
        return ("x", *self.server_state)

    @property
    def up(self) -> Sequence[str]:
        return ("delta", "gradient") if self.beta else ("delta",)

    @property
    def reduce(self) -> Reduce:
        return {"A": ("delta", "w")} | ({"c": ("gradient", "avg")} if self.beta else {})

    def direction(self, y: Tensor, s: Vectors, c: ClientContext, grad: Gradient, k: int) -> tuple[Tensor, Vectors]:
        return _blend(self.beta, grad(y), c.msg), s

    def finish(self, y: Tensor, s: Vectors, c: ClientContext, grad: Gradient) -> tuple[Vectors, Vectors]:
        return {"delta": y - c.x} | ({"gradient": grad.full(c.x)} if self.beta else {}), {}

    def server(self, x: Tensor, state: Vectors, agg: Vectors, ctx: Context) -> tuple[Tensor, Vectors]:
        return x + self.server_lr * agg["A"], {"m": _blend(self.beta, agg["c"], state)} if self.beta else {}

    def gradient_estimate(self, x: Tensor, state: Vectors, ctx: Context, K: float) -> Tensor | None:
        return state["m"] if self.beta else None


def _blend(beta: float, g: Tensor, vectors: Vectors) -> Tensor:
    """Return (1 − β) g + β m; m does not exist for β = 0."""
    return (1 - beta) * g + beta * vectors["m"] if beta else g
