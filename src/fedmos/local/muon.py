"""Muon: momentum whose matrices are orthogonalised."""

from __future__ import annotations

import math
from dataclasses import dataclass

from torch import Tensor

from ..algorithm import Layers, Vectors
from ..core.validation import below_one, boolean, check, count, non_negative
from .optimizer import LocalOptimizer

_A, _B, _C = 3.4445, -4.7750, 2.0315
"""Coefficients of the Newton-Schulz iteration (Jordan et al., 2024)."""
_EPS = 1e-7
"""The smallest norm that a matrix is divided by."""


@dataclass(frozen=True)
class Muon(LocalOptimizer):
    """Muon (Jordan et al., 2024) as `torch.optim.Muon`, with momentum μ and decoupled weight decay λ.

    m ← μ m + (1 − μ) d;  u = m, or (1 − μ) d + μ m with `nesterov`;
    d' = √max(1, rows/columns) · NS(u) + λ y for every parameter matrix, NS(u) ≈ U Vᵀ of the singular value
    decomposition u = U Σ Vᵀ.

    NS takes `steps` of the quintic Newton-Schulz iteration X ← a X + (b X Xᵀ + c (X Xᵀ)²) X from X = u / ‖u‖. It is
    computed in the run's dtype and with its precision of products.

    Every parameter with two or more axes is a matrix: a kernel of a convolution has a row for each output channel.
    Parameters with fewer axes (biases, scales of normalisation) take the momentum step, d' = u + λ y. Embeddings and
    output layers are matrices like the others.

    Args:
        momentum: Momentum μ.
        steps: Number of Newton-Schulz iterations.
        nesterov: Whether to use Nesterov's momentum.
        weight_decay: Factor λ: every step scales the model by 1 − lr · λ.
        keep: Whether each client keeps m between its rounds.
        average: Whether the server averages m over the cohort and sends it down (FedMuon).

    Deviations:
        `torch.optim.Muon` and the authors' code iterate in bfloat16, and leave parameters that are no matrices to
        another optimiser.

    Raises:
        ValueError: If a value is out of range.

    Example:
        >>> algorithm, selection, local = fm.FedAvg(lr=0.02), fm.Uniform(m=3), fm.local.Muon(momentum=0.95)
        >>> result = fm.run(model, data, algorithm, selection, rounds=2, local_steps=2, batch_size=8, local=local)
    """

    momentum: float = 0.95
    steps: int = 5
    nesterov: bool = True
    weight_decay: float = 0.0

    state = ("m",)

    def __post_init__(self) -> None:
        check(self, momentum=below_one, steps=count.up_to(99), nesterov=boolean, weight_decay=non_negative)
        super().__post_init__()

    def update(self, d: Tensor, y: Tensor, s: Vectors, lr: Tensor, layers: Layers) -> tuple[Tensor, Vectors]:
        m = self.momentum * s["m"] + (1 - self.momentum) * d
        u = (1 - self.momentum) * d + self.momentum * m if self.nesterov else m
        parts = {name: self._orthogonal(v, len(layers[name].shape)) for name, v in layers.split(u).items()}
        u = layers.join(parts)
        return u + self.weight_decay * y if self.weight_decay else u, {"m": m}

    def _orthogonal(self, u: Tensor, axes: int) -> Tensor:
        """Return the step of a parameter whose last `axes` axes are its own; others are of clients."""
        if axes < 2:
            return u
        matrix = u.flatten(-axes + 1)
        scale = math.sqrt(max(1, matrix.shape[-2] / matrix.shape[-1]))
        return (scale * newton_schulz(matrix, self.steps)).view(u.shape)


def newton_schulz(u: Tensor, steps: int) -> Tensor:
    """Return U S Vᵀ of the singular value decomposition u = U Σ Vᵀ of matrices (..., rows, columns), with S near 1."""
    tall = u.shape[-2] > u.shape[-1]
    X = u.mT if tall else u  # the Gram matrix is then the smaller one
    X = X / X.norm(dim=(-2, -1), keepdim=True).clamp(min=_EPS)
    for _ in range(steps):
        G = X @ X.mT
        X = _A * X + (_B * G + _C * (G @ G)) @ X
    found: Tensor = X.mT if tall else X
    return found
