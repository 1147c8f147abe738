"""Ditto, APFL, pFedMe and local training alone: methods in which every client has a model of its own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from ..algorithm import Algorithm, ClientContext, Context, Field, Gradient, Reduce, Vectors
from ..core.validation import boolean, check, count, fraction, non_negative, positive
from .fedavg import FedAvg


@dataclass(frozen=True, kw_only=True)
class Ditto(FedAvg):
    """Ditto (Li et al., ICML 2021), Algorithm 1: beside FedAvg, each client trains a model that stays near x.

    Client: y ← y − η g(y), as FedAvg;  v_i ← v_i − η (g(v_i) + λ (v_i − x)), which stays with the client.
    Server: x ← x + η_s Σ_S w_i δ_i.

    The client's own model is v_i, which starts at x_0.

    Args:
        lr: Client step size η, of both models.
        lam: Weight λ of the distance to x; 0 gives local training alone.
        server_lr: Server step size η_s.

    Deviations:
        Both models take K steps, on the same batches.

    Example:
        >>> algorithm = fm.Ditto(lr=0.1, lam=0.1)
        >>> result = fm.run(model, data, algorithm, fm.Uniform(m=3), rounds=2, local_steps=2, batch_size=8)
        >>> own = result.personal_model(0)
    """

    lam: float = 0.1

    client_state: ClassVar[Sequence[Field]] = ("v",)

    def __post_init__(self) -> None:
        check(self, lr=positive, lam=non_negative, server_lr=positive)

    def init(self, x: Tensor) -> Vectors:
        return {"v": x}

    def begin(self, y: Tensor, c: ClientContext, grad: Gradient) -> Vectors:
        return {"v": c.own["v"]}

    def step(self, y: Tensor, s: Vectors, c: ClientContext, grad: Gradient, k: int) -> tuple[Tensor, Vectors]:
        v = s["v"]
        return y - c.lr * grad(y), {"v": v - c.lr * (grad(v) + self.lam * (v - c.x))}

    def finish(self, y: Tensor, s: Vectors, c: ClientContext, grad: Gradient) -> tuple[Vectors, Vectors]:
        return {"delta": y - c.x}, {"v": s["v"]}

    def personal(self, c: ClientContext) -> Tensor | None:
        return c.own["v"]


@dataclass(frozen=True, kw_only=True)
class APFL(FedAvg):
    """APFL (Deng, Kamani & Mahdavi, 2020), Algorithm 1: each client mixes the global model with one of its own.

    Client: v̄ = α_i v_i + (1 − α_i) y;  y ← y − η g(y);  v_i ← v_i − η α_i g(v̄);
            α_i ← α_i − η ⟨g(v̄), v_i − y⟩, within [0, 1], if `adaptive`. v_i and α_i stay with the client.
    Server: x ← x + η_s Σ_S w_i δ_i.

    The client's own model is α_i v_i + (1 − α_i) x. v_i starts at x_0.

    Args:
        lr: Client step size η, of both models and of α_i.
        alpha: The first α_i; 0 is FedAvg, and 1 without `adaptive` is local training alone.
        adaptive: Whether α_i is learned.
        server_lr: Server step size η_s.

    Deviations:
        α_i takes a step with every local step, from the same gradient as v_i.

    Example:
        >>> algorithm = fm.APFL(lr=0.1, alpha=0.5)
        >>> result = fm.run(model, data, algorithm, fm.Uniform(m=3), rounds=2, local_steps=2, batch_size=8)
        >>> own = result.personal_model(0)
    """

    alpha: float = 0.5
    adaptive: bool = True

    client_state: ClassVar[Sequence[Field]] = ("v", ("alpha_i", ()))

    def __post_init__(self) -> None:
        check(self, lr=positive, alpha=fraction, adaptive=boolean, server_lr=positive)

    def init(self, x: Tensor) -> Vectors:
        return {"v": x, "alpha_i": x.new_full((), self.alpha)}

    def begin(self, y: Tensor, c: ClientContext, grad: Gradient) -> Vectors:
        return {"v": c.own["v"], "alpha_i": c.own["alpha_i"]}

    def step(self, y: Tensor, s: Vectors, c: ClientContext, grad: Gradient, k: int) -> tuple[Tensor, Vectors]:
        v, alpha = s["v"], s["alpha_i"]
        g = grad(alpha * v + (1 - alpha) * y)
        s = {"v": v - c.lr * alpha * g, "alpha_i": alpha}
        if self.adaptive:
            slope = (g * (v - y)).sum(-1, keepdim=True)
            s["alpha_i"] = (alpha - c.lr * slope).clamp(0, 1)
        return y - c.lr * grad(y), s

    def finish(self, y: Tensor, s: Vectors, c: ClientContext, grad: Gradient) -> tuple[Vectors, Vectors]:
        return {"delta": y - c.x}, {"v": s["v"], "alpha_i": s["alpha_i"]}

    def personal(self, c: ClientContext) -> Tensor | None:
        alpha = c.own["alpha_i"]
        return alpha * c.own["v"] + (1 - alpha) * c.x


@dataclass(frozen=True, kw_only=True)
class PFedMe(Algorithm):
    """pFedMe (Dinh, Tran & Nguyen, NeurIPS 2020), Algorithm 1: clients follow the Moreau envelope of their loss.

    Client: from θ = x, in each step R times θ ← θ − η_p (g(θ) + λ (θ − y)), on one batch;  then y ← y − η λ (y − θ);
            θ_i ← the last θ, which stays with the client; uploads δ_i = y − x.
    Server: x ← x + β Σ_S w_i δ_i.

    The client's own model is θ_i, which starts at x_0.

    Args:
        lr: Client step size η, of y.
        lam: Weight λ of the distance between θ and y.
        inner_lr: Step size η_p of θ. `lr_decay` does not change it.
        inner_steps: Steps R of θ in each local step; the paper's K.
        beta: Server step size β.

    Deviations:
        θ continues from its last value in the next local step of the round, as in PFLlib.

    Example:
        >>> algorithm = fm.PFedMe(lr=0.05, lam=15, inner_lr=0.01)
        >>> result = fm.run(model, data, algorithm, fm.Uniform(m=3), rounds=2, local_steps=2, batch_size=8)
        >>> own = result.personal_model(0)
    """

    lr: float
    lam: float = 15.0
    inner_lr: float = 0.01
    inner_steps: int = 5
    beta: float = 1.0

    client_state: ClassVar[Sequence[Field]] = ("theta",)

    def __post_init__(self) -> None:
        check(self, lr=positive, lam=positive, inner_lr=positive, inner_steps=count, beta=positive)

    def init(self, x: Tensor) -> Vectors:
        return {"theta": x}

    def begin(self, y: Tensor, c: ClientContext, grad: Gradient) -> Vectors:
        return {"theta": y}

    def direction(self, y: Tensor, s: Vectors, c: ClientContext, grad: Gradient, k: int) -> tuple[Tensor, Vectors]:
        theta = s["theta"]
        for _ in range(self.inner_steps):
            theta = theta - self.inner_lr * (grad(theta) + self.lam * (theta - y))
        return self.lam * (y - theta), {"theta": theta}

    def finish(self, y: Tensor, s: Vectors, c: ClientContext, grad: Gradient) -> tuple[Vectors, Vectors]:
        return {"delta": y - c.x}, {"theta": s["theta"]}

    def server(self, x: Tensor, state: Vectors, agg: Vectors, ctx: Context) -> tuple[Tensor, Vectors]:
        return x + self.beta * agg["A"], {}

    def personal(self, c: ClientContext) -> Tensor | None:
        return c.own["theta"]


@dataclass(frozen=True, kw_only=True)
class LocalOnly(Algorithm):
    """Local training alone: every client trains a model of its own, and nothing is sent.

    Client: y_i ← y_i − η g(y_i), from where it stopped in its last round.
    Server: none; x stays at x_0.

    The client's own model is y_i, which starts at x_0. It shows what clients achieve without federation, with the same
    number of local steps.

    Args:
        lr: Client step size η.

    Example:
        >>> result = fm.run(model, data, fm.LocalOnly(lr=0.1), fm.Full(), rounds=2, local_steps=2, batch_size=8)
        >>> own, total_bytes = result.personal_model(0), result.history[-1].bytes_up
        >>> total_bytes
        0
    """

    lr: float

    client_state: ClassVar[Sequence[Field]] = ("y_i",)
    down: ClassVar[Sequence[Field]] = ()
    up: ClassVar[Sequence[Field]] = ()
    reduce: ClassVar[Reduce] = {}

    def __post_init__(self) -> None:
        check(self, lr=positive)

    def init(self, x: Tensor) -> Vectors:
        return {"y_i": x}

    def start(self, c: ClientContext) -> Tensor:
        return c.own["y_i"]

    def finish(self, y: Tensor, s: Vectors, c: ClientContext, grad: Gradient) -> tuple[Vectors, Vectors]:
        return {}, {"y_i": y}

    def server(self, x: Tensor, state: Vectors, agg: Vectors, ctx: Context) -> tuple[Tensor, Vectors]:
        return x, {}

    def personal(self, c: ClientContext) -> Tensor | None:
        return c.own["y_i"]
