"""GHBM, LocalGHBM and FedHBM: generalised heavy-ball momentum over τ rounds."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from ..algorithm import Algorithm, ClientContext, Context, Field, Gradient, Vectors
from ..core.validation import check, count, non_negative, one_of, positive

Scale = Literal["participation", "elapsed"]
First = Literal["zero", "shared"]


@dataclass(frozen=True, kw_only=True)
class GHBM(Algorithm):
    """GHBM (Zaccone, Masone & Ciccone, 2023), equation (6).

    Client: y ← y − η g(y) + (β/(τ K_i)) (x_t − x_{t−τ}).
    Server: x ← x + η_s Σ_S w_i δ_i;  the server keeps its last τ models.

    Args:
        lr: Client step size η.
        beta: Momentum β.
        tau: Number τ of rounds that the momentum spans.
        server_lr: Server step size η_s.
        start: The momentum while t < τ: "zero", or "x0" for x_t − x_0, which makes the recursive form of Lemma B.2
            exact from the first round.

    Example:
        >>> algorithm = fm.GHBM(lr=0.1, beta=0.9, tau=4)
        >>> result = fm.run(model, data, algorithm, fm.Uniform(m=3), rounds=2, local_steps=2, batch_size=8)
    """

    lr: float
    beta: float = 0.9
    tau: int = 10
    server_lr: float = 1.0
    start: Literal["zero", "x0"] = "zero"  # type: ignore[assignment]

    down = ("x", "m")

    def __post_init__(self) -> None:
        check(
            self,
            lr=positive,
            beta=non_negative,
            tau=count.up_to(10_000),
            server_lr=positive,
            start=one_of("zero", "x0"),
        )

    @property
    def server_state(self) -> Sequence[Field]:
        return (("models", self.tau),)  # row t mod τ holds x_{t−τ} until round t replaces it with x_t

    def init(self, x: Tensor) -> Vectors:
        return {"models": x.repeat(self.tau, 1)}

    def broadcast(self, x: Tensor, state: Vectors, ctx: Context) -> Vectors:
        if ctx.t < self.tau and self.start == "zero":
            return {"m": torch.zeros_like(x)}
        return {"m": x - state["models"][ctx.t % self.tau]}

    def step(self, y: Tensor, s: Vectors, c: ClientContext, grad: Gradient, k: int) -> tuple[Tensor, Vectors]:
        return y - c.lr * grad(y) + self.beta / (self.tau * c.K) * c.msg["m"], s

    def server(self, x: Tensor, state: Vectors, agg: Vectors, ctx: Context) -> tuple[Tensor, Vectors]:
        return x + self.server_lr * agg["A"], self.idle(x, state, ctx)

    def idle(self, x: Tensor, state: Vectors, ctx: Context) -> Vectors:
        models = state["models"].clone()
        models[ctx.t % self.tau] = x
        return {"models": models}

    def gradient_estimate(self, x: Tensor, state: Vectors, ctx: Context, K: float) -> Tensor | None:
        own = 1 / self.server_lr - self.beta  # the fraction of a step that is not momentum, in the steady state
        if ctx.t < self.tau or own <= 0:
            return None
        return -own * self.broadcast(x, state, ctx)["m"] / (self.tau * ctx.lr * K)


@dataclass(frozen=True, kw_only=True)
class LocalGHBM(Algorithm):
    """LocalGHBM (Zaccone, Masone & Ciccone, 2023), Section 3.4: GHBM from the model a client received previously.

    Client: y ← y − η g(y) + (β s_i/K_i) (x − r_i);  r_i ← x.
    Server: x ← x + η_s Σ_S w_i δ_i.

    Args:
        lr: Client step size η.
        beta: Momentum β.
        server_lr: Server step size η_s.
        scale: "participation" for s_i = |S|/N, which is 1/τ for τ = 1/C as in the authors' code, or "elapsed" for
            s_i = 1/(t − t_i), the adaptive τ_i of the text.
        first: The momentum of a client in its first round: "zero", or "shared" for r_i = x_0 (all clients know x_0,
            so this adds no communication).

    Deviations:
        The default scale is that of the authors' code; the text of the paper describes "elapsed".

    Example:
        >>> algorithm = fm.LocalGHBM(lr=0.1, beta=0.9)
        >>> result = fm.run(model, data, algorithm, fm.Uniform(m=3), rounds=2, local_steps=2, batch_size=8)
    """

    lr: float
    beta: float = 0.9
    server_lr: float = 1.0
    scale: Scale = "participation"
    first: First = "zero"

    client_state = ("r_i",)

    def __post_init__(self) -> None:
        _check_local(self)

    def init(self, x: Tensor) -> Vectors:
        return {"r_i": x}

    def step(self, y: Tensor, s: Vectors, c: ClientContext, grad: Gradient, k: int) -> tuple[Tensor, Vectors]:
        factor = self.beta * _scale(self.scale, self.first, c) / c.K
        return y - c.lr * grad(y) + factor * (c.x - c.own["r_i"]), s

    def finish(self, y: Tensor, s: Vectors, c: ClientContext, grad: Gradient) -> tuple[Vectors, Vectors]:
        return {"delta": y - c.x}, {"r_i": c.x}

    def server(self, x: Tensor, state: Vectors, agg: Vectors, ctx: Context) -> tuple[Tensor, Vectors]:
        return x + self.server_lr * agg["A"], {}


@dataclass(frozen=True, kw_only=True)
class FedHBM(Algorithm):
    """FedHBM (Zaccone, Masone & Ciccone, 2023), Algorithm 1: GHBM from a client's own last model, at FedAvg's cost.

    Client: y ← y − η g(y) + (β s_i/K_i) (y − r_i), with y before the step on the right;  r_i ← the final y.
    Server: x ← x + η_s Σ_S w_i δ_i.

    Args:
        lr: Client step size η.
        beta: Momentum β. With every client in every round s_i is 1, and β = 1 diverges.
        server_lr: Server step size η_s.
        scale: The factor s_i, as in `LocalGHBM`.
        first: The momentum of a client in its first round, as in `LocalGHBM`.

    Deviations:
        As LocalGHBM. Line 6 of the box uses the model after the step on its right side, which the step itself
        defines; this implementation uses the model before the step.

    Example:
        >>> algorithm = fm.FedHBM(lr=0.1, beta=1.0)
        >>> result = fm.run(model, data, algorithm, fm.Uniform(m=3), rounds=2, local_steps=2, batch_size=8)
    """

    lr: float
    beta: float = 1.0
    server_lr: float = 1.0
    scale: Scale = "participation"
    first: First = "zero"

    client_state = ("r_i",)

    def __post_init__(self) -> None:
        _check_local(self)

    def init(self, x: Tensor) -> Vectors:
        return {"r_i": x}

    def step(self, y: Tensor, s: Vectors, c: ClientContext, grad: Gradient, k: int) -> tuple[Tensor, Vectors]:
        factor = self.beta * _scale(self.scale, self.first, c) / c.K
        return y - c.lr * grad(y) + factor * (y - c.own["r_i"]), s

    def finish(self, y: Tensor, s: Vectors, c: ClientContext, grad: Gradient) -> tuple[Vectors, Vectors]:
        return {"delta": y - c.x}, {"r_i": y}

    def server(self, x: Tensor, state: Vectors, agg: Vectors, ctx: Context) -> tuple[Tensor, Vectors]:
        if self.beta >= 1 and ctx.S == ctx.N:
            warnings.warn("FedHBM with beta ≥ 1 and every client in every round diverges; use beta < 1", stacklevel=2)
        return x + self.server_lr * agg["A"], {}


def _check_local(algorithm: LocalGHBM | FedHBM) -> None:
    check(
        algorithm,
        lr=positive,
        beta=non_negative,
        server_lr=positive,
        scale=one_of("participation", "elapsed"),
        first=one_of("zero", "shared"),
    )


def _scale(scale: Scale, first: First, c: ClientContext) -> Tensor:
    """Return s_i: zero for a client in its first round unless `first` is "shared"."""
    s_i = torch.full_like(c.last, c.S / c.N) if scale == "participation" else 1 / (c.t - c.last)
    return s_i if first == "shared" else torch.where(c.last < 0, 0, s_i)
