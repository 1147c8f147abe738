"""FedDyn and AdaBest: each client corrects its local steps by a running estimate of its drift."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from ..algorithm import Algorithm, ClientContext, Context, Gradient, Vectors
from ..core.validation import check, non_negative, positive


@dataclass(frozen=True, kw_only=True)
class FedDyn(Algorithm):
    """FedDyn (Acar et al., ICLR 2021), Algorithm 1, with K steps of SGD on the client's subproblem.

    Client: y ← y − η (g(y) − λ_i + α (y − x));  λ_i ← λ_i − α δ_i.
    Server: h ← h − α Σ_S p_i δ_i;  x ← x + Σ_S w_i δ_i / Σ_S w_i − h/α.

    λ_i, named `lambda_i`, is the paper's ∇L_i(θ_i).

    Args:
        lr: Client step size η.
        alpha: Weight α of the regulariser.

    Deviations:
        The paper's 1/N is p_i here, and its plain mean over the cohort is a weighted mean; they agree
        for equal clients.

    Example:
        >>> algorithm = fm.FedDyn(lr=0.1, alpha=0.01)
        >>> result = fm.run(model, data, algorithm, fm.Uniform(m=3), rounds=2, local_steps=2, batch_size=8)
    """

    lr: float
    alpha: float = 0.01

    server_state = ("h",)
    client_state = ("lambda_i",)
    reduce = {"A": ("delta", "avg"), "P": ("delta", "p")}
    population_sums = {"h": "lambda_i"}

    def __post_init__(self) -> None:
        check(self, lr=positive, alpha=positive)

    def direction(self, y: Tensor, s: Vectors, c: ClientContext, grad: Gradient, k: int) -> tuple[Tensor, Vectors]:
        return grad(y) - c.own["lambda_i"] + self.alpha * (y - c.x), s

    def finish(self, y: Tensor, s: Vectors, c: ClientContext, grad: Gradient) -> tuple[Vectors, Vectors]:
        delta = y - c.x
        return {"delta": delta}, {"lambda_i": c.own["lambda_i"] - self.alpha * delta}

    def delivered(self, upload: Vectors, own: Vectors, c: ClientContext) -> tuple[Vectors, Vectors]:
        return upload, {"lambda_i": c.own["lambda_i"] - self.alpha * upload["delta"]}  # keeps h = Σ p_i λ_i

    def server(self, x: Tensor, state: Vectors, agg: Vectors, ctx: Context) -> tuple[Tensor, Vectors]:
        h = state["h"] - self.alpha * agg["P"]
        return x + agg["A"] - h / self.alpha, {"h": h}


@dataclass(frozen=True, kw_only=True)
class AdaBest(Algorithm):
    """AdaBest (Varno et al., ECCV 2022), Algorithm 1.

    Client: y ← y − η (g(y) − h_i);  h_i ← h_i/(t − t_i) − μ δ_i, with t_i the client's previous round.
    Server: x̄ = x + Σ_S w_i δ_i;  h ← β (x̄_prev − x̄);  x ← x̄ − h.

    x̄, named `x_bar`, starts at x_0.

    Args:
        lr: Client step size η.
        mu: Factor μ of the update in the client's estimate h_i.
        beta: Factor β of the server's estimate h.

    Deviations:
        The mean over the cohort is Σ_S w_i δ_i with the selector's weights, as in FedAvg; with weights that do not
        sum to one in a round, x̄ moves by more or less than a mean.

    Example:
        >>> algorithm = fm.AdaBest(lr=0.1, mu=0.1, beta=0.85)
        >>> result = fm.run(model, data, algorithm, fm.Uniform(m=3), rounds=2, local_steps=2, batch_size=8)
    """

    lr: float
    mu: float = 0.1
    beta: float = 0.85

    server_state = ("h", "x_bar")
    client_state = ("h_i",)

    def __post_init__(self) -> None:
        check(self, lr=positive, mu=non_negative, beta=non_negative)

    def init(self, x: Tensor) -> Vectors:
        return {"x_bar": x}

    def direction(self, y: Tensor, s: Vectors, c: ClientContext, grad: Gradient, k: int) -> tuple[Tensor, Vectors]:
        return grad(y) - c.own["h_i"], s

    def finish(self, y: Tensor, s: Vectors, c: ClientContext, grad: Gradient) -> tuple[Vectors, Vectors]:
        delta = y - c.x
        return {"delta": delta}, {"h_i": c.own["h_i"] / (c.t - c.last) - self.mu * delta}

    def server(self, x: Tensor, state: Vectors, agg: Vectors, ctx: Context) -> tuple[Tensor, Vectors]:
        x_bar = x + agg["A"]
        h = self.beta * (state["x_bar"] - x_bar)
        return x_bar - h, {"h": h, "x_bar": x_bar}
