"""The vectorised engine: clients are rows of one (M, D) tensor, and one tensor program computes their gradients."""

from __future__ import annotations

import logging

from torch import Tensor

from .batches import SampleBatch
from .gradients import Call, LocalGradient
from .program import CannotCompile

_log = logging.getLogger("fedmos")

_SAMPLES_AT_ONCE = 8192


class Batched(LocalGradient):
    """Computes the gradients of all clients of a chunk in one call.

    Batches of unequal size are padded with samples of weight zero. The loss is therefore a weighted sum instead of a
    mean; the results differ from those of the loop only in rounding.
    """

    def loss_and_gradient(self, y: Tensor, batch: SampleBatch) -> tuple[Tensor, Tensor]:
        y = y.expand(len(self.chunk.ids), -1)
        sums: tuple[Tensor, Tensor] = (y, y)
        weight = self.weights(batch)
        for inputs, targets, keys, columns in self.parts(batch, self._width(batch)):
            g, value = self.task.program(y, inputs, targets, weight[:, columns], keys)
            sums = (value, g) if columns.start == 0 else (sums[0] + value, sums[1] + g)
        return sums

    def descend(self, y: Tensor, lr: Tensor) -> Tensor:
        task, program, k = self.task, self.task.program, self.k
        unfused = not program.descends or task.clip is not None or bool(task.sam_radius) or self._noise is not None
        if k is None or not program.compiles or unfused:
            return super().descend(y, lr)
        batch = self.batches.step(k)
        if batch.positions.shape[1] > (width := self._width(batch)):
            return super().descend(y, lr)
        ((inputs, targets, keys, _),) = self.parts(batch, width)
        try:
            weight = self.weights(batch)
            y_next, loss = program.descend(lr, y.expand(len(self.chunk.ids), -1), inputs, targets, weight, keys)
        except CannotCompile as error:
            _log.warning("Compiling gradients alone because whole steps fail: %s", error)
            program.descends = False
            return super().descend(y, lr)
        self._record(loss, Call(k, 0, k))
        return y_next

    def climb(self, y: Tensor, g: Tensor) -> Tensor:
        program = self.task.program
        return program.climb(y, g, self.task.sam_radius) if program.fuses else super().climb(y, g)

    def move(self, y: Tensor, lr: Tensor, d: Tensor) -> Tensor:
        return self.task.program.move(y, lr, d) if self.task.program.fuses else super().move(y, lr, d)

    def _regularised(self, g: Tensor, y: Tensor) -> Tensor:
        if self.task.program.fuses and self.task.clip is not None:
            return self.task.program.regularise(g, y)
        return super()._regularised(g, y)

    def _width(self, batch: SampleBatch) -> int:
        """Return the number of sample columns per call. Longer batches are split into multiples of a step's batch."""
        columns, of_step = batch.positions.shape[1], self.task.batch_size or 1
        if self.task.loss.batch is not None or self.task.model.mixes_samples:
            return columns
        width = max(1, _SAMPLES_AT_ONCE // self.chunk.parallel)
        if columns <= of_step:
            return width
        width = min(width, self.task.samples_at_once // self.chunk.parallel)
        return columns if columns <= width else max(1, width // of_step) * of_step
