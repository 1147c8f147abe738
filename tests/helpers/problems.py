"""Federations whose gradients are known in closed form."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import torch
from torch import nn

import fedmos as fm

Vector = np.ndarray
Rows = Sequence[int]
Batches = Mapping[tuple[int, int], Sequence[Rows]]
"""(round, client) → the samples of its steps 0 … K_i−1."""


class Problem:
    """Clients with samples (a, b) of unequal number, and importances that have nothing to do with that number."""

    loss: str | Callable

    def __init__(self, samples: Sequence[tuple[np.ndarray, np.ndarray]], importance: Sequence[float], x0: Vector):
        self.samples = list(samples)
        self.n = [len(a) for a, _ in samples]
        self.p = np.asarray(importance) / np.sum(importance)
        self.x0 = x0

    def __len__(self) -> int:
        return len(self.samples)

    def sample_gradients(self, w: Vector, a: np.ndarray, b: np.ndarray) -> np.ndarray:
        """One row per sample."""
        raise NotImplementedError

    def gradient(self, i: int, w: Vector, rows: Rows | slice = slice(None)) -> Vector:
        """The mean gradient at w over some samples of client i; over all of them it is ∇f_i(w)."""
        a, b = self.samples[i]
        return self.sample_gradients(w, a[rows], b[rows]).mean(0)

    def module(self) -> nn.Module:
        raise NotImplementedError

    def model(self) -> nn.Module:
        """The module, holding x_0."""
        module = self.module().double()
        nn.utils.vector_to_parameters(torch.tensor(self.x0), module.parameters())
        return module

    def data(self) -> fm.FederatedData:
        return fm.FederatedData.from_arrays(self.samples, importance=self.p)

    def changed(self, i: int) -> Problem:
        """The same federation, but for the inputs of client i."""
        samples = [(a + (j == i), b) for j, (a, b) in enumerate(self.samples)]
        return type(self)(samples, self.p, self.x0)


class _Diagonal(nn.Module):
    def __init__(self, size: int) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.zeros(size))

    def forward(self, a: torch.Tensor) -> torch.Tensor:
        return a * self.w


def half_squares(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """½ ‖outputs − targets‖², averaged over the batch."""
    return (outputs - targets).square().sum(1).mean() / 2


class Quadratic(Problem):
    """Sample loss ½ Σ_j (a_j w_j − b_j)² = ½ Σ_j h_j (w_j − e_j)² with h = a² and e = b/a: every sample has its
    own curvature and its own minimum."""

    loss = staticmethod(half_squares)

    def sample_gradients(self, w: Vector, a: np.ndarray, b: np.ndarray) -> np.ndarray:
        return a * (a * w - b)

    def module(self) -> nn.Module:
        return _Diagonal(len(self.x0))

    def curvature(self, i: int) -> Vector:
        """H_i of ∇f_i(w) = H_i (w − e_i), elementwise."""
        return (self.samples[i][0] ** 2).mean(0)

    def minimum(self, i: int) -> Vector:
        """e_i."""
        a, b = self.samples[i]
        return (a * b).mean(0) / self.curvature(i)

    def optimum(self, pull: Callable[[Vector], Vector] = lambda H: H) -> Vector:
        """The zero of Σ p_i pull(H_i) (w − e_i): for pull = identity the minimum of Σ p_i f_i."""
        pulls = [self.p[i] * pull(self.curvature(i)) for i in range(len(self))]
        return sum(q * self.minimum(i) for i, q in enumerate(pulls)) / sum(pulls)


class Logistic(Problem):
    """Multinomial logistic regression, 4 features and 3 classes; w is the (3, 4) weights, then the 3 biases."""

    loss = "cross_entropy"

    def sample_gradients(self, w: Vector, a: np.ndarray, b: np.ndarray) -> np.ndarray:
        z = a @ w[:12].reshape(3, 4).T + w[12:]
        error = np.exp(z) / np.exp(z).sum(1, keepdims=True) - np.eye(3)[b]
        return np.hstack([(error[:, :, None] * a[:, None, :]).reshape(len(a), 12), error])

    def module(self) -> nn.Module:
        return nn.Linear(4, 3)


SIZES = (5, 9, 3, 12, 7, 4, 6)
IMPORTANCE = (0.30, 0.05, 0.17, 0.08, 0.21, 0.02, 0.11)


def quadratic(sizes: Sequence[int] = SIZES, importance: Sequence[float] = IMPORTANCE, size: int = 5) -> Quadratic:
    """Curvatures within [.2, 2.3] and minima around a centre that differs from client to client."""
    rng = np.random.default_rng(1)
    samples = []
    for n in sizes:
        a = rng.uniform(0.5, 1.5, (n, size))
        samples.append((a, a * (rng.normal(0, 1, size) + rng.normal(0, 0.5, (n, size)))))
    return Quadratic(samples, importance, rng.normal(0, 1, size))


def logistic(sizes: Sequence[int] = SIZES, importance: Sequence[float] = IMPORTANCE) -> Logistic:
    """Clients whose inputs have different centres and whose labels favour different classes."""
    rng = np.random.default_rng(2)
    samples = []
    for n in sizes:
        samples.append((rng.normal(rng.normal(0, 1, 4), 1, (n, 4)), rng.choice(3, n, p=rng.dirichlet(np.ones(3)))))
    return Logistic(samples, importance, rng.normal(0, 0.3, 15))
