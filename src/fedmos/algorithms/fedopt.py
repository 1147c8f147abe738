"""Momentum and adaptive step sizes on the server: FedAvgM, FedAdam, FedYogi, FedAdagrad."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass

import torch
from torch import Tensor

from ..algorithm import Algorithm, Context, Vectors
from ..core.validation import below_one, boolean, check, positive


@dataclass(frozen=True, kw_only=True)
class FedAvgM(Algorithm):
    """FedAvgM (Hsu, Qi & Brown, 2019): heavy-ball momentum on the server.

    Client: y ← y − η g(y).
    Server: m ← β m + Σ_S w_i δ_i;  x ← x + η_s m, or x ← x + η_s (Σ_S w_i δ_i + β m) with `nesterov`.

    Args:
        lr: Client step size η.
        beta: Server momentum β.
        server_lr: Server step size η_s.
        nesterov: Whether to use Nesterov's momentum, as DiLoCo does.

    Example:
        >>> algorithm = fm.FedAvgM(lr=0.1, beta=0.9)
        >>> result = fm.run(model, data, algorithm, fm.Uniform(m=3), rounds=2, local_steps=2, batch_size=8)
    """

    lr: float
    beta: float = 0.9
    server_lr: float = 1.0
    nesterov: bool = False

    server_state = ("m",)

    def __post_init__(self) -> None:
        check(self, lr=positive, beta=below_one, server_lr=positive, nesterov=boolean)

    def server(self, x: Tensor, state: Vectors, agg: Vectors, ctx: Context) -> tuple[Tensor, Vectors]:
        m = self.beta * state["m"] + agg["A"]
        return x + self.server_lr * (agg["A"] + self.beta * m if self.nesterov else m), {"m": m}

    def gradient_estimate(self, x: Tensor, state: Vectors, ctx: Context, K: float) -> Tensor | None:
        return -(1 - self.beta) * state["m"] / (ctx.lr * K)


class _AdaptiveServer(Algorithm):
    """The server of Reddi et al., Algorithm 2, for any second moment v.

    A = Σ_S w_i δ_i;  m ← β1 m + (1 − β1) A;  x ← x + η_s m / (√v + τ).
    """

    server_lr: float
    beta1: float
    tau: float

    server_state = ("m", "v")

    def init(self, x: Tensor) -> Vectors:
        return {"v": torch.full_like(x, self.tau**2)}

    def server(self, x: Tensor, state: Vectors, agg: Vectors, ctx: Context) -> tuple[Tensor, Vectors]:
        v = self._second_moment(state["v"], agg["A"] ** 2)
        m = self.beta1 * state["m"] + (1 - self.beta1) * agg["A"]
        return x + self.server_lr * m / (v.sqrt() + self.tau), {"m": m, "v": v}

    def gradient_estimate(self, x: Tensor, state: Vectors, ctx: Context, K: float) -> Tensor | None:
        return -state["m"] / (ctx.lr * K)

    @abstractmethod
    def _second_moment(self, v: Tensor, square: Tensor) -> Tensor:
        """Return v after a round with A² = square."""


@dataclass(frozen=True, kw_only=True)
class FedAdam(_AdaptiveServer):
    """FedAdam (Reddi et al., ICLR 2021), Algorithm 2.

    Client: y ← y − η g(y).
    Server: A = Σ_S w_i δ_i;  m ← β1 m + (1 − β1) A;  v ← β2 v + (1 − β2) A²;  x ← x + η_s m / (√v + τ).

    v starts at τ². There is no bias correction, as in the paper.

    Args:
        lr: Client step size η.
        server_lr: Server step size η_s.
        beta1: Decay β1 of the first moment.
        beta2: Decay β2 of the second moment.
        tau: Adaptivity τ, added to the root of the second moment.

    Example:
        >>> algorithm = fm.FedAdam(lr=0.1, server_lr=0.01)
        >>> result = fm.run(model, data, algorithm, fm.Uniform(m=3), rounds=2, local_steps=2, batch_size=8)
    """

    lr: float
    server_lr: float = 0.1
    beta1: float = 0.9
    beta2: float = 0.99
    tau: float = 1e-3

    def __post_init__(self) -> None:
        check(self, lr=positive, server_lr=positive, beta1=below_one, beta2=below_one, tau=positive.up_to(1e9))

    def _second_moment(self, v: Tensor, square: Tensor) -> Tensor:
        return self.beta2 * v + (1 - self.beta2) * square


@dataclass(frozen=True, kw_only=True)
class FedYogi(_AdaptiveServer):
    """FedYogi (Reddi et al., ICLR 2021), Algorithm 2: FedAdam with v ← v − (1 − β2) A² sign(v − A²).

    Args:
        lr: Client step size η.
        server_lr: Server step size η_s.
        beta1: Decay β1 of the first moment.
        beta2: Decay β2 of the second moment.
        tau: Adaptivity τ, added to the root of the second moment.

    Example:
        >>> algorithm = fm.FedYogi(lr=0.1, server_lr=0.01)
        >>> result = fm.run(model, data, algorithm, fm.Uniform(m=3), rounds=2, local_steps=2, batch_size=8)
    """

    lr: float
    server_lr: float = 0.1
    beta1: float = 0.9
    beta2: float = 0.99
    tau: float = 1e-3

    def __post_init__(self) -> None:
        check(self, lr=positive, server_lr=positive, beta1=below_one, beta2=below_one, tau=positive.up_to(1e9))

    def _second_moment(self, v: Tensor, square: Tensor) -> Tensor:
        return v - (1 - self.beta2) * square * (v - square).sign()


@dataclass(frozen=True, kw_only=True)
class FedAdagrad(_AdaptiveServer):
    """FedAdagrad (Reddi et al., ICLR 2021), Algorithm 2: FedAdam with v ← v + A², and no first moment by default.

    Args:
        lr: Client step size η.
        server_lr: Server step size η_s.
        beta1: Decay β1 of the first moment.
        tau: Adaptivity τ, added to the root of the second moment.

    Example:
        >>> algorithm = fm.FedAdagrad(lr=0.1, server_lr=0.01)
        >>> result = fm.run(model, data, algorithm, fm.Uniform(m=3), rounds=2, local_steps=2, batch_size=8)
    """

    lr: float
    server_lr: float = 0.1
    beta1: float = 0.0
    tau: float = 1e-3

    def __post_init__(self) -> None:
        check(self, lr=positive, server_lr=positive, beta1=below_one, tau=positive.up_to(1e9))

    def _second_moment(self, v: Tensor, square: Tensor) -> Tensor:
        return v + square
