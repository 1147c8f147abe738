"""The vectorised engine: the cohort's clients as rows of one (M, D) tensor, their gradients by one tensor program."""

from __future__ import annotations

from torch import Tensor

from .batches import Batch
from .gradients import Call, LocalGradient

_SAMPLES_AT_ONCE = 8192


class Batched(LocalGradient):
    """All clients of a chunk in one call.

    Batches of unequal size are filled up with samples of weight zero. The loss is therefore summed
    term by term instead of averaged, which rounds differently from the loop, and no more than that.
    """

    def loss_and_gradient(self, y: Tensor, batch: Batch) -> tuple[Tensor, Tensor]:
        y = y.expand(len(self.chunk.ids), -1)
        sums: tuple[Tensor, Tensor] = (y, y)
        for inputs, targets, keys, columns in self.parts(batch, self._width):
            g, value = self.task.program(y, inputs, targets, batch.weight[:, columns], keys)
            sums = (value, g) if columns.start == 0 else (sums[0] + value, sums[1] + g)
        return sums

    def descend(self, y: Tensor, lr: Tensor) -> Tensor:
        assert self.k is not None
        batch, program = self.batches.step(self.k), self.task.program
        if not program.compiles or self.task.clip is not None or batch.positions.shape[1] > self._width:
            return super().descend(y, lr)
        ((inputs, targets, keys, _),) = self.parts(batch, self._width)
        y, loss = program.descend(lr, y.expand(len(self.chunk.ids), -1), inputs, targets, batch.weight, keys)
        self._note(loss, Call(self.k, 0, self.k))
        return y

    @property
    def _width(self) -> int:
        """Columns of a batch at once."""
        return max(1, _SAMPLES_AT_ONCE // self.chunk.company)
