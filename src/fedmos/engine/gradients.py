"""What every engine's gradient object shares: batches, clipping, weight decay, the reported loss."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from ..rng import Purpose, fold, stream
from .batches import Batch, Batches
from .task import Task


class LocalGradient:
    """Gradients of clients `ids` in round `t`; see `fedmos.algorithm.Gradient`."""

    name: str

    def __init__(self, task: Task, ids: Tensor, t: int) -> None:
        self.task, self.ids, self.t = task, ids, t
        self.batches = Batches(task, ids, t)
        self.k: int | None = 0
        """The current step; None once local work is over."""
        self._offset = task.data.offsets[ids].to(task.model.device)
        self._losses: dict[int, Tensor] = {}
        self.samples = torch.zeros(len(ids), dtype=torch.int64)
        """How many samples' gradients each client has computed."""

    def loss_and_gradient(self, y: Tensor, batch: Batch) -> tuple[Tensor, Tensor]:
        """Mean losses, (M,), and their gradients, shaped as y or a row per client."""
        raise TypeError(f"{type(self).__name__} must define loss_and_gradient")

    def __call__(self, y: Tensor) -> Tensor:
        return self._take(y, self.batches.step(self.k if self.k is not None else int(self.batches.K.max()) - 1))

    def full(self, y: Tensor) -> Tensor:
        return self._take(y, self.batches.all())

    def batch(self, y: Tensor, b: int) -> Tensor:
        return self._take(y, self.batches.first(b))

    def _take(self, y: Tensor, batch: Batch) -> Tensor:
        loss, g = self.loss_and_gradient(y, batch)
        self.samples += batch.size * (torch.ones_like(batch.size) if self.k is None else self.active(self.k))
        if self.k is not None:
            self._losses.setdefault(self.k, loss)
        if self.task.clip is not None:
            norm = g.norm(dim=-1, keepdim=True)
            g = g * (self.task.clip / norm.clamp(min=self.task.clip))
        return g + self.task.weight_decay * y if self.task.weight_decay else g

    def active(self, k: int) -> Tensor:
        """(M,), on the CPU: which clients still have a step k."""
        return k < self.batches.K

    def reported(self) -> Tensor:
        """(M,): each client's mean over its steps of the loss at the step's first gradient."""
        nan = torch.full((len(self.ids),), torch.nan, device=self.task.model.device)
        if not self._losses:
            return nan
        active = torch.stack([self.active(k) for k in self._losses]).to(nan.device)
        losses = torch.stack(list(self._losses.values()))
        return torch.where(active, losses, 0).sum(0) / active.sum(0)

    def parts(self, batch: Batch, width: int) -> Iterator[tuple[Tensor, Tensor, Tensor | None, slice]]:
        """The batch in pieces of at most `width` columns: inputs, targets, dropout keys, and the columns."""
        dropout = self._keys(Purpose.DROPOUT, batch.phase) if self.task.model.has_dropout else None
        augment = self._keys(Purpose.AUGMENT, batch.phase) if self.task.data.augment is not None else None
        for start in range(0, batch.positions.shape[1], width):
            columns = slice(start, min(start + width, batch.positions.shape[1]))
            number = torch.arange(columns.start, columns.stop, device=batch.positions.device)
            of_dropout, of_augment = (None if key is None else fold(key, number) for key in (dropout, augment))
            entries = self._offset[:, None] + batch.positions[:, columns]
            yield *self.task.samples(entries, of_augment), of_dropout, columns

    def _keys(self, purpose: Purpose, phase: Tensor) -> Tensor:
        """(M, 1): each client's stream in the current phase, to be folded with the numbers of its samples."""
        key = stream(self.task.seed, self.t, self.ids, purpose, self.task.model.device)
        return fold(key, phase.to(key.device))[:, None]

    # How an engine shapes what belongs to one chunk of clients. The defaults suit (M, D).

    @staticmethod
    def chunks(ids: Tensor) -> tuple[Tensor, ...]:
        """How a cohort is cut into chunks, each trained by one gradient object."""
        return (ids,)

    def start(self, x: Tensor) -> Tensor:
        """The clients' models before local work."""
        return x.expand(len(self.ids), -1)

    @staticmethod
    def rows(v: Any) -> Any:
        """A tensor with a row per client, as the engine hands it to the algorithm."""
        return v

    @staticmethod
    def unrows(v: Tensor, M: int) -> Tensor:
        """The way back: (M, D)."""
        return v.expand(M, -1)
