"""Generated problems: Synthetic(α, β), and quadratics with a known optimum."""

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
    """Synthetic(α, β) (Li et al., MLSys 2020): each client labels its samples with its own linear model.

    u_k ~ N(0, α) is the mean of the client's model W_k, b_k; B_k ~ N(0, β) that of the mean v_k of its inputs;
    x ~ N(v_k, diag(j^−1.2)) in 60 dimensions; y = argmax(W_k x + b_k) among 10 classes. A client has
    ⌊LogNormal(4, 2)⌋ + 50 samples, of which a tenth are test data.

    Args:
        alpha: Variance α of the models between clients.
        beta: Variance β of the inputs between clients.
        clients: Number of clients.
        seed: Seed of the random numbers.

    Returns:
        A `FederatedData` with a test set.

    Raises:
        ValueError: If an argument is out of range.

    Example:
        >>> fm.datasets.synthetic(alpha=1.0, beta=1.0, clients=30)
        FederatedData(30 clients, ... samples)
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
    """F_k(w) = ½ h_k ‖w‖² − e_kᵀ w + ½ ‖e_k‖²/h_k with importances p_k (Power-of-Choice, eq. (86)); min F_k = 0.

    `data`, `model` and `objective` define the same problem for `fm.run`.

    Example:
        >>> problem = fm.datasets.quadratic(clients=4, dimensions=2)
        >>> result = fm.run(
        ...     problem.model(), problem.data(), fm.FedAvg(lr=0.02), fm.Full(), loss=problem.objective,
        ...     rounds=3, local_steps=1, batch_size=1,
        ... )
        >>> bool(problem.loss(problem.optimum) <= problem.loss(torch.zeros(2, dtype=torch.float64)))
        True
    """

    h: Tensor
    """Curvatures, (K,)."""
    e: Tensor
    """Linear terms, (K, v)."""
    p: Tensor
    """Importances, (K,), with sum one."""

    @property
    def optimum(self) -> Tensor:
        """w* = Σ p_k e_k / Σ p_k h_k."""
        return (self.p @ self.e) / (self.p @ self.h)

    def losses(self, w: Tensor) -> Tensor:
        """Return F_k, (..., K), at each of the points w, (..., v)."""
        h, e = self.h, self.e
        return 0.5 * h * (w**2).sum(-1, keepdim=True) - w @ e.T + 0.5 * (e**2).sum(1) / h

    def loss(self, w: Tensor) -> Tensor:
        """Return F = Σ p_k F_k at each of the points w."""
        return self.losses(w) @ self.p

    @property
    def gap(self) -> float:
        """Γ = F* − Σ p_k F_k*, the local-global objective gap."""
        return float(self.loss(self.optimum))

    # The same problem for `fm.run`: each client has one sample with input zero and target (h_k, e_k).

    def data(self) -> FederatedData:
        """Return a federation with one sample per client."""
        targets = torch.cat([self.h[:, None], self.e], dim=1)
        return FederatedData.from_arrays([(np.zeros((1, 1)), t[None]) for t in targets], importance=self.p)

    def model(self, w: Tensor | None = None) -> nn.Module:
        """Return a module with the single parameter w, by default zero."""
        return _Point(torch.zeros(self.e.shape[1], dtype=torch.float64) if w is None else w)

    @staticmethod
    def objective(outputs: Tensor, targets: Tensor) -> Tensor:
        """Return the loss for `fm.run(loss=...)`."""
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

    The paper does not specify e_k ("arbitrary"); here the optima of the clients, e_k/h_k, are ~ N(0, spread²).

    Args:
        clients: Number of clients K.
        dimensions: Dimension v of w.
        spread: Standard deviation of the clients' optima.
        seed: Seed of the random numbers.

    Returns:
        A `Quadratic`.

    Raises:
        ValueError: If an argument is out of range.

    Example:
        >>> fm.datasets.quadratic(clients=4, dimensions=2).optimum.shape
        torch.Size([2])
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
