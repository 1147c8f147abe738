"""The vectorised engine: the cohort's clients as rows of one (M, D) tensor, their gradients by one tensor program."""

from __future__ import annotations

from torch import Tensor

from .batches import Batch
from .gradients import LocalGradient

_SAMPLES_AT_ONCE = 8192


class Batched(LocalGradient):
    """All clients of a chunk in one call.

    Batches of unequal size are filled up with samples of weight zero. The loss is therefore summed
    term by term instead of averaged, which rounds differently from the loop, and no more than that.
    """

    def loss_and_gradient(self, y: Tensor, batch: Batch) -> tuple[Tensor, Tensor]:
        M = len(self.chunk.ids)
        y = y.expand(M, -1)
        sums: tuple[Tensor, Tensor] = (y, y)
        for inputs, targets, keys, columns in self.parts(batch, max(1, _SAMPLES_AT_ONCE // self.chunk.company)):
            g, value = self.task.program(y, inputs, targets, batch.weight[:, columns], keys)
            sums = (value, g) if columns.start == 0 else (sums[0] + value, sums[1] + g)
        return sums
