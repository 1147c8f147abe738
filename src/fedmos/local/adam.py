"""Adam and AdamW."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from ..algorithm import Layers, Vectors
from ..core.validation import below_one, check, non_negative, positive
from .optimizer import LocalOptimizer


@dataclass(frozen=True)
class Adam(LocalOptimizer):
    """Adam (Kingma & Ba, ICLR 2015) as `torch.optim.Adam`, with weight decay λ as an L2 penalty.

    d ← d + λ y;  m ← β₁ m + (1 − β₁) d;  v ← β₂ v + (1 − β₂) d²;  t ← t + 1;
    d' = m̂ / (√v̂ + ε) with m̂ = m / (1 − β₁ᵗ), v̂ = v / (1 − β₂ᵗ).

    Args:
        beta1: Decay β₁ of the mean of directions.
        beta2: Decay β₂ of the mean of their squares.
        eps: Term ε of the denominator.
        weight_decay: Factor λ of the L2 penalty, which passes through the moments; `AdamW` decays the model itself.
        keep: Whether each client keeps m, v and t between its rounds.
        average: Whether the server averages m, v and t over the cohort and sends them down.

    Raises:
        ValueError: If a value is out of range.

    Example:
        >>> local = fm.local.Adam(beta2=0.99)
        >>> algorithm, selection = fm.FedAvg(lr=0.001), fm.Uniform(m=3)
        >>> result = fm.run(model, data, algorithm, selection, rounds=2, local_steps=2, batch_size=8, local=local)
    """

    beta1: float = 0.9
    beta2: float = 0.999
    eps: float = 1e-8
    weight_decay: float = 0.0

    state = ("m", "v", ("t", ()))

    def __post_init__(self) -> None:
        check(self, beta1=below_one, beta2=below_one, eps=positive, weight_decay=non_negative)
        super().__post_init__()

    def update(self, d: Tensor, y: Tensor, s: Vectors, lr: Tensor, layers: Layers) -> tuple[Tensor, Vectors]:
        return self._adapted(d + self.weight_decay * y if self.weight_decay else d, s)

    def _adapted(self, d: Tensor, s: Vectors) -> tuple[Tensor, Vectors]:
        """Return m̂ / (√v̂ + ε) and the new state."""
        m = self.beta1 * s["m"] + (1 - self.beta1) * d
        v = self.beta2 * s["v"] + (1 - self.beta2) * d**2
        t = s["t"] + 1
        m_hat, v_hat = m / _correction(self.beta1, t), v / _correction(self.beta2, t)
        return m_hat / (v_hat.sqrt() + self.eps), {"m": m, "v": v, "t": t}


@dataclass(frozen=True)
class AdamW(Adam):
    """AdamW (Loshchilov & Hutter, ICLR 2019) as `torch.optim.AdamW`: Adam with decoupled weight decay λ.

    d' = m̂ / (√v̂ + ε) + λ y, with m̂ and v̂ of `Adam` without weight decay.

    Args:
        beta1: Decay β₁ of the mean of directions.
        beta2: Decay β₂ of the mean of their squares.
        eps: Term ε of the denominator.
        weight_decay: Factor λ: every step scales the model by 1 − lr · λ.
        keep: Whether each client keeps m, v and t between its rounds.
        average: Whether the server averages m, v and t over the cohort and sends them down (FedAdamW).

    Raises:
        ValueError: If a value is out of range.

    Example:
        >>> local = fm.local.AdamW(weight_decay=0.01, average=True)
        >>> algorithm, selection = fm.FedAvg(lr=0.001), fm.Uniform(m=3)
        >>> result = fm.run(model, data, algorithm, selection, rounds=2, local_steps=2, batch_size=8, local=local)
        >>> sorted(result.server_state)
        ['local.m', 'local.t', 'local.v']
    """

    def update(self, d: Tensor, y: Tensor, s: Vectors, lr: Tensor, layers: Layers) -> tuple[Tensor, Vectors]:
        d, s = self._adapted(d, s)
        return d + self.weight_decay * y if self.weight_decay else d, s


def _correction(beta: float, t: Tensor) -> Tensor:
    """Return 1 − βᵗ, accurate in float32 as well."""
    return -torch.expm1(t * math.log(beta)) if beta else torch.ones_like(t)
