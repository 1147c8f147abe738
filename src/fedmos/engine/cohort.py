"""The clients of one round, and what their selection cost."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from ..algorithm import Vectors
from ..data.federated import FederatedData
from .event_queue import EventQueue


class Cohort(NamedTuple):
    """Distinct clients in ascending order of their ids."""

    ids: Tensor
    weights: Tensor
    """float64: the summed aggregation weight of each client."""
    W: float
    """Σ weights."""
    max_samples: int
    """The largest number of samples of one client."""

    @classmethod
    def of(cls, ids: Tensor, weights: Tensor, data: FederatedData) -> Cohort:
        max_samples = int(np.maximum.reduce(data.sizes.numpy()[ids.numpy()])) if ids.shape[0] else 0
        return cls(ids, weights, float(weights.sum()), max_samples)

    @classmethod
    def empty(cls) -> Cohort:
        """Return a cohort without clients."""
        return cls(torch.empty(0, dtype=torch.int64), torch.empty(0, dtype=torch.float64), 0.0, 0)

    def scaled(self, W: float) -> Cohort:
        """Return the cohort with its weights scaled to the sum W, as far as they are not zero."""
        if self.W in (0.0, W):
            return self
        weights = self.weights * (W / self.W)
        return self._replace(weights=weights, W=float(weights.sum()))


class Probe(NamedTuple):
    """Clients that the selector requests a loss or a gradient of; they receive x first if they do not have it."""

    ids: Tensor
    samples: Tensor
    """The number of samples that each client computes on."""
    gradients: bool
    """Whether clients send their gradient, a vector; otherwise they send their loss, a number."""
    receives_model: Tensor
    """Which of these clients receive x for this probe."""


@dataclass(kw_only=True)
class SampledCohort:
    """A round's cohort, and what it took to select it."""

    cohort: Cohort
    available: int
    state: Vectors
    """The selector's state after this round."""
    has_model: Tensor
    """Clients that have received x already, ascending."""
    unresponsive: Tensor | None = None
    """Clients that did not answer a probe and count as unavailable."""
    numbers_up: int = 0
    """Single numbers that clients sent in probes."""
    vectors_up: int = 0
    """Vectors that clients sent in probes."""
    samples: int = 0
    """Samples whose loss or gradient was computed in probes."""
    probes: list[Probe] = field(default_factory=list)
    rounds: Tensor | None = None
    """By client of the cohort, the round whose model it was sent; None where that is the current one."""
    queue: EventQueue | None = None
    """In an asynchronous run, the clients that train after this round."""
