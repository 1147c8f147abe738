"""Problems made up by formula: Synthetic(α, β), and quadratics with a known optimum."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from ..core.validation import LARGE, count, non_negative, require
from ..core.validation import seed as seed_rule
from ..rng import Purpose, generator
from .federated import FederatedData


def synthetic(alpha: float = 1.0, beta: float = 1.0, clients: int = 30, seed: int = 0) -> FederatedData:
    """Synthetic(α, β) (Li et al., MLSys 2020): each client labels its samples by a linear model of its own.

    u_k ~ N(0, α) is the mean of the client's model W_k, b_k; B_k ~ N(0, β) that of the mean v_k of its inputs;
    x ~ N(v_k, diag(j^−1.2)) in 60 dimensions; y = argmax(W_k x + b_k) among 10 classes. A client has
    ⌊LogNormal(4, 2)⌋ + 50 samples; a tenth of each client's are test data.
    """
    require("synthetic", "alpha", alpha, non_negative.up_to(LARGE))
    require("synthetic", "beta", beta, non_negative.up_to(LARGE))
    require("synthetic", "clients", clients, count.up_to(100_000))
    require("synthetic", "seed", seed, seed_rule)
    rng = generator(seed, Purpose.PARTITION)
    scale = np.arange(1, 61) ** -0.6  # the root of j^−1.2
    train, test = [], []
    for n in rng.lognormal(4, 2, clients).astype(np.int64) + 50:
        u, centre = rng.normal(0, np.sqrt(alpha)), rng.normal(0, np.sqrt(beta))
        W, b = rng.normal(u, 1, (60, 10)), rng.normal(u, 1, 10)
        x = rng.normal(centre, 1, 60) + rng.normal(size=(n, 60)) * scale
        y = (x @ W + b).argmax(1)
        cut = n - n // 10
        x = x.astype(np.float32)
        train.append((x[:cut], y[:cut]))
        test.append((x[cut:], y[cut:]))
    x_test, y_test = (np.concatenate(parts) for parts in zip(*test, strict=True))
    return FederatedData.from_arrays(train, test=(x_test, y_test))


@dataclass(frozen=True, eq=False)
class Quadratic:
    """F_k(w) = ½ h_k ‖w‖² − e_kᵀ w + ½ ‖e_k‖²/h_k with importances p_k (Power-of-Choice, eq. (86)); min F_k = 0."""

    h: Tensor
    e: Tensor
    """(K, v)."""
    p: Tensor

    @property
    def optimum(self) -> Tensor:
        """w* = Σ p_k e_k / Σ p_k h_k."""
        return (self.p @ self.e) / (self.p @ self.h)

    def losses(self, w: Tensor) -> Tensor:
        """F_k at each of the points w, (..., v): (..., K)."""
        h, e = self.h, self.e
        return 0.5 * h * (w**2).sum(-1, keepdim=True) - w @ e.T + 0.5 * (e**2).sum(1) / h

    def loss(self, w: Tensor) -> Tensor:
        """F = Σ p_k F_k."""
        return self.losses(w) @ self.p

    @property
    def gap(self) -> float:
        """Γ = F* − Σ p_k F_k*, the local-global objective gap."""
        return float(self.loss(self.optimum))

    # The same problem for `fm.run`: each client has one sample, with no input to speak of and (h_k, e_k) for a target.

    def data(self) -> FederatedData:
        targets = torch.cat([self.h[:, None], self.e], dim=1)
        return FederatedData.from_arrays([(np.zeros((1, 1)), t[None]) for t in targets], importance=self.p)

    def model(self, w: Tensor | None = None) -> nn.Module:
        """A module whose only parameter is w, by default zero."""
        return _Point(torch.zeros(self.e.shape[1], dtype=torch.float64) if w is None else w)

    @staticmethod
    def objective(outputs: Tensor, targets: Tensor) -> Tensor:
        """The loss for `fm.run(loss=...)`."""
        h, e = targets[:, 0], targets[:, 1:]
        terms = 0.5 * h * (outputs**2).sum(1) - (outputs * e).sum(1) + 0.5 * (e**2).sum(1) / h
        return terms.mean()


class _Point(nn.Module):
    def __init__(self, w: Tensor) -> None:
        super().__init__()
        self.w = nn.Parameter(w.clone())

    def forward(self, x: Tensor) -> Tensor:
        return self.w.expand(len(x), -1)


def quadratic(clients: int = 30, dimensions: int = 5, spread: float = 1.0, seed: int = 0) -> Quadratic:
    """Power-of-Choice's quadratic problem: h_k ~ U(1, 20), p_k ∝ draws of density 3x² on [0, 1].

    The paper leaves e_k open ("arbitrary"); here the clients' own optima e_k/h_k are ~ N(0, spread²).
    """
    require("quadratic", "clients", clients, count)
    require("quadratic", "dimensions", dimensions, count)
    require("quadratic", "seed", seed, seed_rule)
    require("quadratic", "spread", spread, non_negative)
    rng = generator(seed, Purpose.PARTITION)
    p = rng.random(clients) ** (1 / 3)
    h = rng.uniform(1, 20, clients)
    e = h[:, None] * rng.normal(0, spread, (clients, dimensions))
    return Quadratic(h=torch.from_numpy(h), e=torch.from_numpy(e), p=torch.from_numpy(p / p.sum()))
