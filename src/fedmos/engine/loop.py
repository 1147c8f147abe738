"""The reference engine: one client after another, with vectors of shape (D,)."""

from __future__ import annotations

import torch
from torch import Tensor

from .batches import SampleBatch
from .gradients import LocalGradient, LossAndGradient

_SAMPLES_AT_ONCE = 4096


class Loop(LocalGradient):
    """Plain autograd on one client's samples."""

    ragged = False

    def loss_and_gradient(self, y: Tensor, batch: SampleBatch) -> LossAndGradient:
        n = int(batch.size[0])
        batch = batch.columns(slice(n))
        loss, gradient = torch.zeros((), device=y.device, dtype=y.dtype), None
        weight, new = None if self.task.loss.uniform else self.weights(batch), None
        for inputs, targets, keys, columns in self.parts(batch, self._width(n)):
            with torch.enable_grad():
                y_leaf = y.detach().requires_grad_()
                images = self.task.model.laid_out(inputs[0])
                outputs, new = self._outputs(y_leaf, images, None if keys is None else keys[0])
                mean = self._loss(outputs, targets[0], None if weight is None else weight[0, columns], n)
            (g,) = torch.autograd.grad(mean, y_leaf)
            share = (columns.stop - columns.start) / n if weight is None else 1.0
            loss = loss + share * mean.detach()
            # In the memory of g, which is as large as the model. Adding zero gives zeros their sign.
            part = (g if g.is_contiguous() else g.contiguous()).mul_(share)
            gradient = part.add_(0.0) if gradient is None else gradient.add_(part)
            del g, part
        return LossAndGradient(loss[None], torch.zeros_like(y) if gradient is None else gradient, new)

    def _outputs(self, y: Tensor, inputs: Tensor, keys: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """Return the outputs and, where the client keeps statistics, those after the batch."""
        model = self.task.model
        if not model.has_client_statistics:
            return model(y, inputs, keys), None
        return model.with_statistics(y, self.statistics, inputs, None, keys)

    def _loss(self, outputs: Tensor, targets: Tensor, weight: Tensor | None, n: int) -> Tensor:
        """Return the loss of a part of a batch of n samples: by the user's function where the part is the batch."""
        if weight is None or (len(outputs) == n and bool((weight > 0).any())):
            return self.task.loss.mean(outputs, targets)
        return self.task.loss.weighted(outputs, targets, weight)

    def _width(self, n: int) -> int:
        """Return the number of samples per call: a step's batch at once, larger ones in parts."""
        of_step = self.task.batch_size or 1
        if self.task.loss.batch is not None or self.task.model.mixes_samples:
            return n
        return _SAMPLES_AT_ONCE if n <= of_step else min(_SAMPLES_AT_ONCE, max(of_step, self.task.samples_at_once))

    def start(self, x: Tensor) -> Tensor:
        return x.clone()

    def descend(self, y: Tensor, lr: Tensor) -> Tensor:
        g = self(y)
        if self._noise is not None or g.dtype != y.dtype:
            return self.move(y, lr, g)
        return torch.sub(y, g.mul_(lr), out=g)  # in the memory of the gradient, which is as large as the model

    @staticmethod
    def rows(v: Tensor) -> Tensor:
        return v[0]

    @staticmethod
    def unrows(v: Tensor) -> Tensor:
        return v[None]
