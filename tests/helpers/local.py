"""Local optimisers by numpy, one client at a time: (d, y, s) → d', s'. State that is missing is zero."""

from __future__ import annotations

import numpy as np

SHAPES = {"tall": (5, 3), "wide": (2, 4), "bias": (4,), "scale": (), "kernel": (4, 2, 3, 3)}
"""Parameters of every kind."""


def orthogonal(u: np.ndarray, steps: int) -> np.ndarray:
    """The quintic Newton-Schulz iteration of Jordan et al. (2024) by the singular values: σ ← aσ + bσ³ + cσ⁵."""
    norm = max(np.sqrt((u**2).sum()), 1e-7)
    U, sigma, Vh = np.linalg.svd(u / norm, full_matrices=False)
    for _ in range(steps):
        sigma = 3.4445 * sigma - 4.7750 * sigma**3 + 2.0315 * sigma**5
    return (U * sigma) @ Vh


def muon_direction(u: np.ndarray, steps: int, shapes: dict[str, tuple[int, ...]]) -> np.ndarray:
    """What Muon makes of the flat momentum u."""
    found, offset = [], 0
    for shape in shapes.values():
        part = u[offset : offset + int(np.prod(shape))]
        offset += part.size
        if len(shape) > 1:
            matrix = part.reshape(shape[0], -1)
            part = max(1, matrix.shape[0] / matrix.shape[1]) ** 0.5 * orthogonal(matrix, steps).ravel()
        found.append(part)
    return np.concatenate(found)


def sgd(d, y, s, momentum=0.0, nesterov=False, weight_decay=0.0):
    d = d + weight_decay * y
    m = momentum * s.get("m", 0.0) + d
    return (d + momentum * m if nesterov else m), {"m": m}


def adam(d, y, s, beta1=0.9, beta2=0.999, eps=1e-8, weight_decay=0.0, decoupled=False):
    d = d if decoupled else d + weight_decay * y
    m = beta1 * s.get("m", 0.0) + (1 - beta1) * d
    v = beta2 * s.get("v", 0.0) + (1 - beta2) * d**2
    t = s.get("t", 0.0) + 1
    d = m / (1 - beta1**t) / (np.sqrt(v / (1 - beta2**t)) + eps)
    return (d + weight_decay * y if decoupled else d), {"m": m, "v": v, "t": t}


def adamw(d, y, s, **fields):
    return adam(d, y, s, **fields, decoupled=True)


def muon_of(shapes: dict[str, tuple[int, ...]]):
    """Muon for parameters of these shapes."""

    def update(d, y, s, momentum=0.95, steps=5, nesterov=True, weight_decay=0.0):
        m = momentum * s.get("m", 0.0) + (1 - momentum) * d
        u = (1 - momentum) * d + momentum * m if nesterov else m
        return muon_direction(u, steps, shapes) + weight_decay * y, {"m": m}

    return update
