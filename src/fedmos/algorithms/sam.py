"""FedGamma, FedSpeed, FedSMOO and FedLESAM: gradients taken at a perturbed model, for flat minima.

SAM(y) = g(y + e) with e = ρ g(y)/‖g(y)‖, both gradients on one batch. The gradient that determines e is that of the
loss, without clipping and weight decay; weight decay is taken at y. Only the gradient is clipped, not the corrections
that a method adds to it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from ..algorithm import Algorithm, ClientContext, Context, Field, Gradient, Vectors
from ..core.validation import check, non_negative, one_of, positive
from .scaffold import Scaffold


@dataclass(frozen=True, kw_only=True)
class FedGamma(Scaffold):
    """FedGamma (Dai et al., TNNLS 2023): SCAFFOLD with SAM gradients.

    Client: y ← y − η (SAM(y) − c_i + c);  c_i as in SCAFFOLD; uploads δ_i and c_i⁺ − c_i.
    Server: x ← x + η_s Σ_S w_i δ_i;  c ← c + Σ_S p_i (c_i⁺ − c_i).

    Args:
        lr: Client step size η.
        rho: Radius ρ of the perturbation.
        server_lr: Server step size η_s.
        option: The update of the control variates, as in `Scaffold`.

    Deviations:
        As SCAFFOLD. The released FL-Simulator clips SAM(y) − c_i + c; here the gradient alone is clipped.

    Example:
        >>> algorithm = fm.FedGamma(lr=0.1, rho=0.05)
        >>> result = fm.run(model, data, algorithm, fm.Uniform(m=3), rounds=2, local_steps=2, batch_size=8)
    """

    rho: float = 0.1

    def __post_init__(self) -> None:
        check(self, lr=positive, rho=non_negative, server_lr=positive, option=one_of(1, 2))

    def direction(self, y: Tensor, s: Vectors, c: ClientContext, grad: Gradient, k: int) -> tuple[Tensor, Vectors]:
        return _sam(y, grad, self.rho) - c.own["c_i"] + c.msg["c"], s


@dataclass(frozen=True, kw_only=True)
class FedSpeed(Algorithm):
    """FedSpeed (Sun et al., ICLR 2023): FedDyn's correction with SAM gradients.

    Client: y ← y − η (SAM(y) + λ (y − x + h_i));  h_i ← h_i + δ_i.
    Server: h ← h + Σ_S p_i δ_i;  x ← x + Σ_S w_i δ_i / Σ_S w_i + h.

    h is the mean Σ p_i h_i over all clients.

    Args:
        lr: Client step size η.
        lam: Weight λ of the proximal term and of the correction; 1/λ in the paper.
        rho: Radius ρ of the perturbation; ρ = 0 gives FedDyn with α = λ.

    Deviations:
        The equations are those of the released FL-Simulator. The paper's server averages y_i + h_i over the cohort,
        and its clients mix g(y) and g(y + ρ g(y)) with a weight α; here h_i are averaged over all clients, α is 1
        and the perturbation has length ρ. The means are weighted; they are plain for equal clients.

    Example:
        >>> algorithm = fm.FedSpeed(lr=0.1, lam=0.1, rho=0.05)
        >>> result = fm.run(model, data, algorithm, fm.Uniform(m=3), rounds=2, local_steps=2, batch_size=8)
    """

    lr: float
    lam: float = 0.1
    rho: float = 0.1

    server_state: ClassVar[Sequence[Field]] = ("h",)
    client_state: ClassVar[Sequence[Field]] = ("h_i",)
    reduce = {"A": ("delta", "avg"), "P": ("delta", "p")}
    population_sums = {"h": "h_i"}

    def __post_init__(self) -> None:
        check(self, lr=positive, lam=non_negative, rho=non_negative)

    def direction(self, y: Tensor, s: Vectors, c: ClientContext, grad: Gradient, k: int) -> tuple[Tensor, Vectors]:
        return _sam(y, grad, self.rho) + self.lam * (y - c.x + c.own["h_i"]), s

    def finish(self, y: Tensor, s: Vectors, c: ClientContext, grad: Gradient) -> tuple[Vectors, Vectors]:
        delta = y - c.x
        return {"delta": delta}, {"h_i": c.own["h_i"] + delta}

    def delivered(self, upload: Vectors, own: Vectors, c: ClientContext) -> tuple[Vectors, Vectors]:
        return upload, own | {"h_i": c.own["h_i"] + upload["delta"]}  # keeps h = Σ p_i h_i

    def server(self, x: Tensor, state: Vectors, agg: Vectors, ctx: Context) -> tuple[Tensor, Vectors]:
        h = state["h"] + agg["P"]
        return x + agg["A"] + h, {"h": h}


@dataclass(frozen=True, kw_only=True)
class FedSMOO(FedSpeed):
    """FedSMOO (Sun et al., ICML 2023): FedSpeed whose perturbations agree between clients.

    Client: ĝ = g(y) − μ_i − s;  e = ρ ĝ/‖ĝ‖;  μ_i ← μ_i + e − s;  y ← y − η (g(y + e) + λ (y − x + h_i));
            h_i ← h_i + δ_i; uploads δ_i and μ_i.
    Server: μ = Σ_S w_i μ_i / Σ_S w_i;  s ← ρ μ/‖μ‖;  h ← h + Σ_S p_i δ_i;  x ← x + Σ_S w_i δ_i / Σ_S w_i + h.

    Args:
        lr: Client step size η.
        lam: Weight λ of the proximal term and of the correction.
        rho: Radius ρ of the perturbation; ρ = 0 gives FedDyn with α = λ.

    Deviations:
        As FedSpeed. s follows the released FL-Simulator, which leaves out the term of the clients' last
        perturbations from the paper's global dual.

    Example:
        >>> algorithm = fm.FedSMOO(lr=0.1, lam=0.1, rho=0.05)
        >>> result = fm.run(model, data, algorithm, fm.Uniform(m=3), rounds=2, local_steps=2, batch_size=8)
    """

    server_state = ("h", "s")
    client_state = ("h_i", "mu_i")
    down = ("x", "s")
    up = ("delta", "mu_i")
    reduce = FedSpeed.reduce | {"mu": ("mu_i", "avg")}
    tracked = ("mu_i",)

    def begin(self, y: Tensor, c: ClientContext, grad: Gradient) -> Vectors:
        return {"mu_i": c.own["mu_i"]}

    def direction(self, y: Tensor, s: Vectors, c: ClientContext, grad: Gradient, k: int) -> tuple[Tensor, Vectors]:
        e = self.rho * _unit(grad.raw(y) - s["mu_i"] - c.msg["s"])
        d = grad.perturbed(y, e) + self.lam * (y - c.x + c.own["h_i"])
        return d, {"mu_i": s["mu_i"] + e - c.msg["s"]}

    def finish(self, y: Tensor, s: Vectors, c: ClientContext, grad: Gradient) -> tuple[Vectors, Vectors]:
        upload, own = super().finish(y, s, c, grad)
        return upload | s, own | s

    def server(self, x: Tensor, state: Vectors, agg: Vectors, ctx: Context) -> tuple[Tensor, Vectors]:
        x, new = super().server(x, state, agg, ctx)
        return x, new | {"s": self.rho * _unit(agg["mu"])}


@dataclass(frozen=True, kw_only=True)
class FedLESAM(Algorithm):
    """FedLESAM (Fan et al., ICML 2024), Algorithm 1: the perturbation follows the server's model, at no extra gradient.

    Client: y ← y − η g(y + e), with e = ρ (x_i − x)/‖x_i − x‖;  x_i ← x, the model it received last.
    Server: x ← x + η_s Σ_S w_i δ_i.

    x_i, named `x_old`, starts at x_0.

    Args:
        lr: Client step size η.
        rho: Radius ρ of the perturbation.
        server_lr: Server step size η_s.

    Deviations:
        The released code perturbs all clients along the server's last step instead, and divides by the sum of the
        layers' norms.

    Example:
        >>> algorithm = fm.FedLESAM(lr=0.1, rho=0.05)
        >>> result = fm.run(model, data, algorithm, fm.Uniform(m=3), rounds=2, local_steps=2, batch_size=8)
    """

    lr: float
    rho: float = 0.1
    server_lr: float = 1.0

    client_state = ("x_old",)

    def __post_init__(self) -> None:
        check(self, lr=positive, rho=non_negative, server_lr=positive)

    def init(self, x: Tensor) -> Vectors:
        return {"x_old": x}

    def direction(self, y: Tensor, s: Vectors, c: ClientContext, grad: Gradient, k: int) -> tuple[Tensor, Vectors]:
        return grad.perturbed(y, self.rho * _unit(c.own["x_old"] - c.x)), s

    def finish(self, y: Tensor, s: Vectors, c: ClientContext, grad: Gradient) -> tuple[Vectors, Vectors]:
        return {"delta": y - c.x}, {"x_old": c.x}

    def server(self, x: Tensor, state: Vectors, agg: Vectors, ctx: Context) -> tuple[Tensor, Vectors]:
        return x + self.server_lr * agg["A"], {}


def _sam(y: Tensor, grad: Gradient, rho: float) -> Tensor:
    """Return SAM(y), the gradient at y + ρ g(y)/‖g(y)‖."""
    return grad.perturbed(y, rho * _unit(grad.raw(y)))


def _unit(v: Tensor) -> Tensor:
    """Return v/‖v‖, zero for v = 0."""
    norm: Tensor = v.norm(dim=-1, keepdim=True)
    return v / norm.clamp(min=torch.finfo(v.dtype).tiny)
