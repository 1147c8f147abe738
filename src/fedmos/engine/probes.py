"""The losses and gradients that a selector requests before a round, and what they cost."""

from __future__ import annotations

import torch
from torch import Tensor

from ..selection.selector import Selector
from .backend import Backend
from .cohort import Probe, SampledCohort
from .task import Task


class Probes:
    """Requests probes of clients and counts them in the sampled cohort."""

    def __init__(self, task: Task, backend: Backend, selector: Selector, *, private: bool, secure: bool) -> None:
        """`private`: clients answer no probes. `secure`: the server sees no vectors of single clients."""
        self._task, self._backend, self._owner = task, backend, type(selector).__name__
        self._private, self._secure = private, secure

    def losses(self, x: Tensor, t: int, ids: Tensor, batch: bool, sampled: SampledCohort) -> Tensor:
        """Return the loss of each of these clients at x, on all its data or on one random batch, (M,), float64."""
        self._refuse_if_private()
        if not len(ids):
            return torch.empty(0, dtype=torch.float64)
        losses = as_sent(self._backend.losses(x, t, ids, batch), x)
        sizes, B = self._task.data.sizes[ids], self._task.batch_size
        sampled.numbers_up += len(ids)
        _count(sampled, ids, sizes if B is None or not batch else sizes.clamp(max=B), gradients=False)
        return losses

    def gradients(self, x: Tensor, t: int, ids: Tensor, sampled: SampledCohort) -> Tensor:
        """Return ∇f_i(x) of each of these clients, (M, D)."""
        self._refuse_if_private()
        if self._secure:
            raise ValueError(
                f"Cannot use secure aggregation with {self._owner} because it asks single clients for their gradients; "
                "use another selection, such as fm.Uniform"
            )
        if not len(ids):
            return x.new_empty(0, len(x))
        rows = self._backend.gradients(x, t, ids)
        sampled.vectors_up += len(ids)
        _count(sampled, ids, self._task.data.sizes[ids], gradients=True)
        return rows

    def _refuse_if_private(self) -> None:
        if self._private:
            raise ValueError(
                f"Cannot use privacy= with {self._owner} because it asks clients for losses or gradients without "
                "noise; use fm.Bernoulli(rate=…) or fm.Uniform(m=…)"
            )


def _count(sampled: SampledCohort, ids: Tensor, samples: Tensor, gradients: bool) -> None:
    sampled.probes.append(Probe(ids, samples, gradients, ~torch.isin(ids, sampled.has_model)))
    sampled.has_model = torch.cat([sampled.has_model, ids]).unique()
    sampled.samples += int(samples.sum())


def as_sent(numbers: Tensor, x: Tensor) -> Tensor:
    """Round numbers to the run's dtype, that of x, in which clients send them."""
    return numbers.to(x.dtype).to(torch.float64)
