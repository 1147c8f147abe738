"""A Gaussian process over the loss changes of clients, for FedCor.

The change of the clients' losses in a round is Δ ~ N(0, XᵀX + σ²I), where column i of X, (d, N), is the position of
client i. Matrices of N × N are never formed.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor


def log_likelihood(X: Tensor, changes: Tensor, noise: float) -> Tensor:
    """Return ln N(change; 0, XᵀX + noise² I) + (n/2) ln 2π of each row of changes, (R, n)."""
    n, d = changes.shape[1], len(X)
    factor = torch.linalg.cholesky(X @ X.T + noise**2 * torch.eye(d, dtype=X.dtype))
    log_det = 2 * factor.diagonal().log().sum() + 2 * (n - d) * math.log(noise)
    explained = torch.linalg.solve_triangular(factor, X @ changes.T, upper=False)
    value: Tensor = -0.5 * (log_det + ((changes**2).sum(1) - (explained**2).sum(0)) / noise**2)
    return value


def fit(X: Tensor, changes: Tensor, factors: Tensor, noise: float, steps: int) -> Tensor:
    """Return the X that maximises the likelihood of changes, found with Adam from a starting point.

    Args:
        X: The starting point, (d, N).
        changes: (R, N), NaN where unknown.
        factors: The factor of each change in the log-likelihood, (R,).
        noise: The standard deviation of the noise.
        steps: Number of steps, of size 0.01.
    """
    masks, group = (~changes.isnan()).unique(dim=0, return_inverse=True)
    parts = [(mask, changes[group == g][:, mask], factors[group == g]) for g, mask in enumerate(masks)]
    with torch.enable_grad():
        positions = X.clone().requires_grad_()
        optimizer = torch.optim.Adam([positions], lr=0.01)
        for _ in range(steps):
            values = [factor @ log_likelihood(positions[:, mask], rows, noise) for mask, rows, factor in parts]
            (gradient,) = torch.autograd.grad(torch.stack(values).sum(), positions)
            positions.grad = -gradient
            optimizer.step()
    return positions.detach()


def greedy(X: Tensor, p: Tensor, alpha: Tensor, noise: float, m: int) -> Tensor:
    """Return m clients, one after another the one with the largest α_k Σ_i p_i Σ_ik/σ_k, given those before.

    After each choice, Σ becomes the posterior covariance given the change of the chosen client.
    """
    variance = (X**2).sum(0) + noise**2
    reach = X.T @ (X @ p) + noise**2 * p  # Σ_i p_i Σ_ik
    given: list[Tensor] = []
    free = torch.ones(len(p), dtype=torch.bool)
    chosen: list[int] = []
    for _ in range(m):
        score = alpha * reach / variance.clamp(min=1e-300).sqrt()
        k = int(torch.where(free, score, -math.inf).argmax())
        column = X.T @ X[:, k]
        column[k] += noise**2
        for b in given:
            column -= b * b[k]
        b = column / variance[k].clamp(min=1e-300).sqrt()
        given.append(b)
        variance, reach = variance - b**2, reach - b * (b @ p)
        free[k] = False
        chosen.append(k)
    return torch.tensor(chosen, dtype=torch.int64)
