"""The reference engine: one client after another, with vectors of shape (D,)."""

from __future__ import annotations

import torch
from torch import Tensor

from .batches import Batch
from .gradients import LocalGradient

_SAMPLES_AT_ONCE = 4096


class Loop(LocalGradient):
    """Plain autograd on one client's samples."""

    ragged = False

    def loss_and_gradient(self, y: Tensor, batch: Batch) -> tuple[Tensor, Tensor]:
        n = int(batch.size[0])
        batch = batch._replace(positions=batch.positions[:, :n])
        loss, gradient = torch.zeros((), device=y.device, dtype=y.dtype), torch.zeros_like(y)
        for inputs, targets, keys, columns in self.parts(batch, self._width(n)):
            with torch.enable_grad():
                y_leaf = y.detach().requires_grad_()
                images = self.task.model.laid_out(inputs[0])
                outputs = self.task.model(y_leaf, images, None if keys is None else keys[0])
                mean = self.task.loss.mean(outputs, targets[0])
            (g,) = torch.autograd.grad(mean, y_leaf)
            share = (columns.stop - columns.start) / n
            loss, gradient = loss + share * mean.detach(), gradient + share * g
        return loss[None], gradient

    def _width(self, n: int) -> int:
        """Return the number of samples per call: a step's batch at once, larger ones in parts."""
        of_step = self.task.batch_size or 1
        return _SAMPLES_AT_ONCE if n <= of_step else min(_SAMPLES_AT_ONCE, max(of_step, self.task.samples_at_once))

    def start(self, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def rows(v: Tensor) -> Tensor:
        return v[0]

    @staticmethod
    def unrows(v: Tensor, M: int) -> Tensor:
        return v[None]
