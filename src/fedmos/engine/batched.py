"""The vectorised engine: clients are rows of one (M, D) tensor, and one tensor program computes their gradients."""

from __future__ import annotations

import logging

import torch
from torch import Tensor

from .batches import SampleBatch
from .compiled import CannotCompile
from .gradients import Call, LocalGradient, LossAndGradient
from .program import ClientStatistics

_log = logging.getLogger("fedmos")

_SAMPLES_AT_ONCE = 8192


class Batched(LocalGradient):
    """Computes the gradients of all clients of a chunk in one call.

    Batches of unequal size are padded with samples of weight zero. The loss is therefore a weighted sum instead of a
    mean; the results differ from those of the loop only in rounding.
    """

    def loss_and_gradient(self, y: Tensor, batch: SampleBatch) -> LossAndGradient:
        y = y.expand(len(self.chunk.ids), -1)
        sums, new = (y, y), None
        weight, statistics = self.weights(batch), self._statistics_of(batch)
        for inputs, targets, keys, columns in self.parts(batch, self._width(batch)):
            g, value, *new_statistics = self.task.program(y, inputs, targets, weight[:, columns], keys, statistics)
            sums = (value, g) if columns.start == 0 else (sums[0] + value, sums[1] + g)
            new = new_statistics[0] if new_statistics else None  # a batch with statistics has one part
        return LossAndGradient(*sums, new)

    def _statistics_of(self, batch: SampleBatch) -> ClientStatistics | None:
        """Return the clients' statistics before the batch; None for a model without them."""
        if not self.task.model.has_client_statistics:
            return None
        rows = self.statistics.expand(len(self.chunk.ids), -1)
        return ClientStatistics(batch.weight, rows.contiguous() if self.task.program.compiles else rows)

    def descend(self, y: Tensor, lr: Tensor) -> Tensor:
        task, program, k = self.task, self.task.program, self.k
        unfused = not program.descends or task.clip is not None or bool(task.sam_radius) or self._noise is not None
        if k is None or not program.compiles or unfused:
            return self._descend_by_itself(y, lr)
        batch = self.batches.step(k)
        if batch.positions.shape[1] > (width := self._width(batch)):
            return self._descend_by_itself(y, lr)
        ((inputs, targets, keys, _),) = self.parts(batch, width)
        try:
            weight = self.weights(batch)
            whole, statistics = y.expand(len(self.chunk.ids), -1), self._statistics_of(batch)
            y_next, loss, *new = program.descend(lr, whole, inputs, targets, weight, keys, statistics)
        except CannotCompile as error:
            _log.warning("Compiling gradients alone because whole steps fail: %s", error)
            program.descends = False
            return self._descend_by_itself(y, lr)
        self._record(loss, Call(k, 0, k), new[0] if new else None)
        return y_next

    def _descend_by_itself(self, y: Tensor, lr: Tensor) -> Tensor:
        """Take the step after the gradient; on a CPU in the memory of the gradient, which nothing else uses."""
        g = self(y)
        own = self._noise is None and g.device.type == "cpu" and g.is_contiguous() and g.dtype == y.dtype == lr.dtype
        return torch.sub(y, g.mul_(lr), out=g) if own else self.move(y, lr, g)

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
