"""FedNova and FedExP: the updates themselves set the length of the server's step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ..algorithm import Algorithm, ClientContext, Context, Field, Gradient, Vectors
from ..core.validation import boolean, check, positive


@dataclass(frozen=True, kw_only=True)
class FedNova(Algorithm):
    """FedNova (Wang et al., NeurIPS 2020), equation (9) for local SGD: updates normalised by the number of steps.

    Client: y ← y − η g(y), with any K_i; uploads δ_i and τ_i = K_i.
    Server: x ← x + η_s τ Σ_S w_i δ_i/K_i / Σ_S w_i, with τ = Σ_S w_i τ_i.

    FedAvg weights a client by w_i K_i in effect and so minimises another objective where K_i differ; FedNova does not.

    Args:
        lr: Client step size η.
        server_lr: Server step size η_s.

    Deviations:
        The paper's weights sum to one. Here the normalised updates are averaged, so that the step is FedAvg's for
        equal K_i, whatever the weights. The paper's normalisers ‖a_i‖₁ of local momentum and proximal terms are not
        implemented: τ_i counts steps.

    Example:
        >>> result = fm.run(model, data, fm.FedNova(lr=0.1), fm.Uniform(m=3), rounds=2, local_epochs=1, batch_size=8)
    """

    lr: float
    server_lr: float = 1.0

    up = ("delta", ("tau", ()))
    reduce = {"step": ("delta", "avg/K"), "tau": ("tau", "w")}

    def __post_init__(self) -> None:
        check(self, lr=positive, server_lr=positive)

    def finish(self, y: Tensor, s: Vectors, c: ClientContext, grad: Gradient) -> tuple[Vectors, Vectors]:
        return {"delta": y - c.x, "tau": c.K}, {}

    def server(self, x: Tensor, state: Vectors, agg: Vectors, ctx: Context) -> tuple[Tensor, Vectors]:
        return x + self.server_lr * agg["tau"] * agg["step"], {}


@dataclass(frozen=True, kw_only=True)
class FedExP(Algorithm):
    """FedExP (Jhunjhunwala, Wang & Joshi, ICLR 2023), Algorithm 1: a server step extrapolated as in POCS.

    Client: y ← y − η g(y); uploads δ_i and ‖δ_i‖².
    Server: x ← x + η_s Σ_S w_i δ_i, with η_s = max(1, q/(2 (‖Ā‖² + ε))), where q and Ā are the means
            Σ_S w_i ‖δ_i‖² / Σ_S w_i and Σ_S w_i δ_i / Σ_S w_i.

    Where updates disagree, ‖Ā‖² is much smaller than q and the step is longer than FedAvg's.

    Args:
        lr: Client step size η.
        eps: The constant ε, which limits η_s where ‖Ā‖ is small.
        average: Whether the model that is evaluated and returned is the mean of the last two iterates, as in the
            paper's experiments: the iterates of a long step oscillate.

    Deviations:
        The means are weighted, as in the authors' code; the paper has equal clients. That code also multiplies ε by
        |S| and by the square of the decay of η.

    Example:
        >>> algorithm = fm.FedExP(lr=0.1, eps=0.001)
        >>> result = fm.run(model, data, algorithm, fm.Uniform(m=3), rounds=2, local_steps=2, batch_size=8)
    """

    lr: float
    eps: float = 0.001
    average: bool = False

    up = ("delta", ("norm2", ()))
    reduce = {"A": ("delta", "w"), "mean": ("delta", "avg"), "q": ("norm2", "avg")}

    def __post_init__(self) -> None:
        check(self, lr=positive, eps=positive, average=boolean)

    @property
    def server_state(self) -> Sequence[Field]:
        return ("x_prev",) if self.average else ()

    def init(self, x: Tensor) -> Vectors:
        return {"x_prev": x} if self.average else {}

    def finish(self, y: Tensor, s: Vectors, c: ClientContext, grad: Gradient) -> tuple[Vectors, Vectors]:
        delta = y - c.x
        return {"delta": delta, "norm2": _norm2(delta)}, {}

    def delivered(self, upload: Vectors, own: Vectors, c: ClientContext) -> tuple[Vectors, Vectors]:
        return upload | {"norm2": _norm2(upload["delta"])}, own  # of the same vectors as Ā

    def server(self, x: Tensor, state: Vectors, agg: Vectors, ctx: Context) -> tuple[Tensor, Vectors]:
        server_lr = torch.clamp(agg["q"] / (2 * (agg["mean"].square().sum() + self.eps)), min=1)
        return x + server_lr * agg["A"], {"x_prev": x} if self.average else {}

    def evaluated(self, x: Tensor, state: Vectors, ctx: Context) -> Tensor:
        return (x + state["x_prev"]) / 2 if self.average else x


def _norm2(v: Tensor) -> Tensor:
    norm2: Tensor = v.square().sum(-1, keepdim=True)
    return norm2
