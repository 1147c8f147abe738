"""Which samples a client uses in which step.

Each client has a stream per round, so its batches depend neither on who else is in the cohort
nor on how the cohort is cut into chunks.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from ..rng import Purpose, fold, permute, stream
from .task import Task

FULL, FIRST = -1, -2
"""Phases apart from the steps 0, 1, …: all local data, and the batch drawn by `Gradient.batch`."""

_RANKS_AT_ONCE = 2**22


class Batch(NamedTuple):
    """Samples of M clients. Row i means its first size[i] columns; the rest repeats its first sample."""

    positions: Tensor
    """(M, L), counted within each client's data."""
    size: Tensor
    """(M,), on the CPU."""
    phase: Tensor
    """(M,): the step, or one of the phases apart."""


class Batches:
    """The batches of clients `ids` in round `t`."""

    def __init__(self, task: Task, ids: Tensor, t: int) -> None:
        self.n = task.data.sizes[ids]
        self.K = task.steps(self.n)
        self._task, self._ids, self._t = task, ids, t
        self._width = int(self.n.max())
        self._n = self.n.to(task.model.device)
        if task.batch_size is None:
            return
        # Steps: one order of the local data per step, of which a step uses the first B. Epochs: one per epoch.
        orders = task.local_steps or task.local_epochs or 0
        keep = min(task.batch_size, self._width) if task.local_steps else self._width
        self._order = self._orders(Purpose.BATCH, orders, keep)

    def step(self, k: int) -> Batch:
        """The batch of step k; a client that has no such step keeps its last."""
        B = self._task.batch_size
        step = self.K.sub(1).clamp(max=k)
        if B is None:
            return self.all()._replace(phase=step)
        if self._task.local_steps is not None:
            return _batch(self._order[:, k], self.n.clamp(max=B), step)
        per_epoch = -(self.n // -B)
        epoch, start = step // per_epoch, (step % per_epoch) * B
        size = (self.n - start).clamp(max=B)
        columns = start[:, None] + torch.arange(int(size.max()))
        columns = columns.clamp(max=self._width - 1).to(self._order.device)
        rows = torch.arange(len(self.n), device=self._order.device)
        return _batch(self._order[rows, epoch.to(rows.device)].gather(1, columns), size, step)

    def all(self) -> Batch:
        """All local data, in stored order."""
        positions = torch.arange(self._width, device=self._task.model.device).expand(len(self.n), -1)
        return _batch(positions, self.n, torch.full_like(self.n, FULL))

    def first(self, b: int) -> Batch:
        """min(b, n_i) samples without replacement, from a stream of their own."""
        order = self._orders(Purpose.FIRST_BATCH, 1, min(b, self._width))
        return _batch(order[:, 0], self.n.clamp(max=b), torch.full_like(self.n, FIRST))

    def _orders(self, purpose: Purpose, count: int, keep: int) -> Tensor:
        """(M, count, keep): the beginnings of `count` random orders of each client's data."""
        device = self._task.model.device
        key = stream(self._task.seed, self._t, self._ids, purpose, device)[:, None]
        at_once = max(1, _RANKS_AT_ONCE // (len(self.n) * self._width))
        parts = torch.arange(count, device=device).split(at_once)
        return torch.cat([permute(fold(key, part), self._n[:, None], self._width)[..., :keep] for part in parts], dim=1)


def _batch(positions: Tensor, size: Tensor, phase: Tensor) -> Batch:
    used = torch.arange(positions.shape[1]) < size[:, None]
    return Batch(torch.where(used.to(positions.device), positions, positions[:, :1]), size, phase)
