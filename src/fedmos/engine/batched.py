"""The vectorised engine: the cohort's clients as rows of one (M, D) tensor, their gradients by `vmap`."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.func import grad_and_value, vmap

from .batches import Batch
from .gradients import LocalGradient

_SAMPLES_AT_ONCE = 8192


class Batched(LocalGradient):
    """All clients of the cohort in one call.

    Batches of unequal size are filled up with samples of weight zero. The loss is therefore summed
    term by term instead of averaged, which rounds differently from the loop, and no more than that.
    """

    name = "batched"

    def loss_and_gradient(self, y: Tensor, batch: Batch) -> tuple[Tensor, Tensor]:
        model, M = self.task.model, len(self.ids)
        y = y.expand(M, -1)
        size = batch.size.to(y.device)[:, None]
        loss, gradient = torch.zeros(M, device=y.device, dtype=y.dtype), torch.zeros_like(y)

        def weighted(y: Tensor, inputs: Tensor, targets: Tensor, weight: Tensor, keys: Tensor | None) -> Tensor:
            return (weight * self.task.loss.each(model(y, inputs, keys), targets)).sum()

        for inputs, targets, keys, columns in self.parts(batch, max(1, _SAMPLES_AT_ONCE // M)):
            used = torch.arange(columns.start, columns.stop, device=y.device) < size
            weight = used.to(y.dtype) / size
            over = (0, 0, 0, 0, None if keys is None else 0)
            g, value = vmap(grad_and_value(weighted), in_dims=over)(y, inputs, targets, weight, keys)
            loss, gradient = loss + value, gradient + g
        return loss, gradient
