"""The base class of gradient objects: batches, clipping, weight decay, the reported loss."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple, NoReturn

import torch
from torch import Tensor

from ..core.validation import count, require, suggest
from ..rng import Purpose, fold
from .batches import FIRST, FULL, Batches, Chunk, SampleBatch, sizes_of
from .task import Task

_METHODS = ("full", "batch", "raw", "perturbed")
"""The methods of `fedmos.algorithm.Gradient` beside the call."""


class Call(NamedTuple):
    """A gradient that was computed."""

    phase: int
    b: int
    k: int | None
    """The step; None after the last."""


class LossAndGradient(NamedTuple):
    """The mean losses of clients on a batch, their gradients and, where clients keep them, their new statistics."""

    loss: Tensor
    """(M,)."""
    gradient: Tensor
    """Shaped as y, or with a row per client."""
    statistics: Tensor | None = None
    """The running statistics of BatchNorm layers after the batch."""


class LocalGradient:
    """Gradients of a chunk of clients in round `t`; see `fedmos.algorithm.Gradient`."""

    ragged = True
    """Whether clients may have fewer steps than the chunk."""
    owner = "the algorithm"
    """The name of the algorithm, for errors."""

    def __init__(self, task: Task, chunk: Chunk, t: int | Tensor) -> None:
        self.task, self.chunk = task, chunk
        self.batches = Batches(task, chunk, t)
        self.k: int | None = 0
        """The current step; None after the last."""
        self.calls: list[Call] = []
        self._losses: dict[int, Tensor] = {}
        self._noise: _Noise | None = None
        self._statistics: Tensor | None = None

    def __getattr__(self, name: str) -> NoReturn:
        hint = suggest(name, _METHODS)
        known = ", ".join(f"grad.{method}" for method in _METHODS)
        raise AttributeError(f"{self.owner}: there is no grad.{name}; there are grad(y), {known}{hint}", name=name)

    def loss_and_gradient(self, y: Tensor, batch: SampleBatch) -> LossAndGradient:
        """Return the mean losses and their gradients."""
        raise TypeError(f"{type(self).__name__} must define loss_and_gradient")

    def __call__(self, y: Tensor) -> Tensor:
        k = self.k if self.k is not None else self.batches.steps - 1
        return self._compute(y, self.batches.step(k), k)

    def full(self, y: Tensor) -> Tensor:
        return self._compute(y, self.batches.all(), FULL)

    def batch(self, y: Tensor, b: int) -> Tensor:
        require(self.owner, "b", b, count)
        if b < self.task.model.least_batch:
            raise ValueError(
                f"Cannot take a gradient of {self.owner} on one sample because BatchNorm has one number per channel "
                "there; use at least two samples"
            )
        return self._compute(y, self.batches.first(b), FIRST, b)

    def raw(self, y: Tensor) -> Tensor:
        k = self.k if self.k is not None else self.batches.steps - 1
        return self._loss_gradient(y, self.batches.step(k), k)

    def perturbed(self, y: Tensor, e: Tensor) -> Tensor:
        if self.task.sam_radius:
            raise ValueError(
                f"Cannot use local=SAM(...) with {self.owner} because {self.owner} perturbs its gradients itself; use "
                "it without SAM"
            )
        return self._regularised(self.raw(y + e), y)

    def exact(self, y: Tensor) -> Tensor:
        """Return the gradient at y on all local data, clipped and with weight decay but without SAM; to measure it."""
        return self._regularised(self._loss_gradient(y, self.batches.all(), FULL), y)

    def key(self) -> Tensor:
        """Return the random stream of each client's methods in this round: 0-dimensional, or (M,)."""
        return self.rows(self.batches.stream(Purpose.ALGORITHM))

    def track(self, statistics: Tensor) -> None:
        """Have the first gradient of each step update these running statistics of BatchNorm layers."""
        self._statistics = statistics

    @property
    def statistics(self) -> Tensor:
        """The running statistics of BatchNorm layers: those that are tracked, or else those that the model has."""
        return self.task.model.statistics.initial() if self._statistics is None else self._statistics

    def _compute(self, y: Tensor, batch: SampleBatch, phase: int, b: int = 0) -> Tensor:
        g = self._loss_gradient(y, batch, phase, b)
        if self.task.sam_radius:
            g = self._loss_gradient(self.climb(y, g), batch, phase, b)
        return self._regularised(g, y)

    def _loss_gradient(self, y: Tensor, batch: SampleBatch, phase: int, b: int = 0) -> Tensor:
        loss, g, statistics = self.loss_and_gradient(y, batch)
        self._record(loss, Call(phase, b, self.k), statistics)
        if self._noise is not None and phase == self.k:
            self._noise.add(phase, g, self.active(phase))
        return g

    def _regularised(self, g: Tensor, y: Tensor) -> Tensor:
        """Return clip(g) + weight_decay · y."""
        if self.task.clip is not None:
            norm = g.norm(dim=-1, keepdim=True)
            g = g * (self.task.clip / norm.clamp(min=self.task.clip))
        return g + self.task.weight_decay * y if self.task.weight_decay else g

    def climb(self, y: Tensor, g: Tensor) -> Tensor:
        """Return the point at SAM's radius from y along g; a subclass may do it faster."""
        norm = g.norm(dim=-1, keepdim=True).clamp(min=torch.finfo(g.dtype).tiny)  # a gradient of zero stays zero
        reached: Tensor = y + self.task.sam_radius * (g / norm)
        return reached

    def descend(self, y: Tensor, lr: Tensor) -> Tensor:
        """Take a plain step, y − lr · g(y); a subclass may do it faster."""
        return self.move(y, lr, self(y))

    def move(self, y: Tensor, lr: Tensor, d: Tensor) -> Tensor:
        """Return y − lr · d; a subclass may do it faster."""
        return y - lr * d

    def _record(self, loss: Tensor, call: Call, statistics: Tensor | None) -> None:
        """Record a gradient. The first one of a step gives the loss of the step, and updates statistics."""
        self.calls.append(call)
        if call.k is None or call.k in self._losses:
            return
        self._losses[call.k] = loss
        if self._statistics is None or statistics is None:
            return
        if self.ragged and call.k >= self.task.least_steps:
            statistics = torch.where(self.active(call.k)[:, None], statistics, self._statistics)
        self._statistics = statistics

    def active(self, k: int) -> Tensor:
        """Return which clients have a step k, (M,)."""
        return k < self.batches.K

    def reported(self) -> Tensor:
        """Return each client's mean over its steps of the loss at the step's first gradient, (M,)."""
        if not self._losses:
            return torch.full((len(self.chunk.ids),), torch.nan, device=self.task.model.device)
        active = torch.stack([self.active(k) for k in self._losses])
        losses = torch.stack(list(self._losses.values()))
        return torch.where(active, losses, 0).sum(0) / active.sum(0)

    def measure_noise(self) -> None:
        """Have the gradients of the steps measured for `noise`."""
        self._noise = _Noise()

    def noise(self) -> Tensor:
        """Return Σ_k ‖g_k − g_{k−1}‖²/(2 (K − 1)) of each client, (M,), an estimate of its gradients' variance.

        g_k is the first gradient of step k, of the loss alone. Differences of successive gradients contain the noise of
        both and hardly any of the drift of y. A client with a single step, which has all its data in one batch,
        reports zero.
        """
        if self._noise is None or self._noise.total is None:
            return torch.zeros(len(self.chunk.ids), device=self.task.model.device)
        return self._noise.total / (2 * self._noise.pairs).clamp(min=1)

    def weights(self, batch: SampleBatch) -> Tensor:
        """Return the weight of each sample in the loss of its client's batch, (M, L)."""
        loss = self.task.loss
        if loss.uniform or loss.batch is not None:
            return batch.weight
        targets = self.task.targets_at(self.chunk.offset[:, None] + batch.positions)
        return loss.weights(targets, batch.weight > 0, self.task.model.dtype)

    def parts(self, batch: SampleBatch, width: int) -> Iterator[tuple[Tensor, Tensor, Tensor | None, slice]]:
        """Yield the batch in parts of at most `width` columns: inputs, targets, dropout keys, and the columns."""
        dropout = self._keys(Purpose.DROPOUT, batch.phase) if self.task.model.has_dropout else None
        augment = self._keys(Purpose.AUGMENT, batch.phase) if self.task.data.augment is not None else None
        for start in range(0, batch.positions.shape[1], width):
            columns = slice(start, min(start + width, batch.positions.shape[1]))
            of_dropout, of_augment = (None if key is None else _of_columns(key, columns) for key in (dropout, augment))
            samples = batch.samples
            if samples is None or columns.stop - columns.start < batch.positions.shape[1]:
                entries = self.chunk.offset[:, None] + batch.positions[:, columns]
                samples = self.task.samples(entries, of_augment)
            yield *samples, of_dropout, columns

    def _keys(self, purpose: Purpose, phase: Tensor) -> Tensor:
        """Return each client's stream in the current phase, (M, 1), to be folded with the numbers of its samples."""
        return fold(self.batches.stream(purpose), phase)[:, None]

    # The shapes of an engine's tensors. The defaults are for (M, D).

    def start(self, x: Tensor) -> Tensor:
        """Return the clients' models before local training."""
        return x.expand(len(self.chunk.ids), -1)

    @staticmethod
    def rows(v: Tensor) -> Tensor:
        """Convert a tensor with a row per client to the shape that the algorithm receives."""
        return v

    @staticmethod
    def unrows(v: Tensor) -> Tensor:
        """Convert an algorithm's tensor to one with a row per client; a tensor that clients share stays as it is."""
        return v


def _of_columns(key: Tensor, columns: slice) -> Tensor:
    """Return a stream for each sample of these columns of a batch, from those of the clients, (M, 1)."""
    return fold(key, torch.arange(columns.start, columns.stop, device=key.device))


class _Noise:
    """Sums of the squared differences of successive step gradients."""

    def __init__(self) -> None:
        self.total: Tensor | None = None
        self.pairs = torch.zeros(())
        self._last: tuple[int, Tensor] | None = None

    def add(self, k: int, g: Tensor, active: Tensor) -> None:
        """Add the first gradient of step k; later ones of the same step are ignored."""
        if self._last is not None and self._last[0] == k:
            return
        if self._last is not None:
            squared = torch.where(active, ((g - self._last[1]) ** 2).sum(-1).reshape(-1), 0)
            first = self.total is None
            self.total = squared if self.total is None else self.total + squared
            self.pairs = active.to(squared) if first else self.pairs + active
        self._last = (k, g)


def samples_taken(task: Task, calls: Iterable[Call], n: Tensor) -> Tensor:
    """Return the number of per-sample gradients that clients with n samples computed in these calls, (M,)."""
    total, K = torch.zeros_like(n), task.steps(n)
    for call in calls:
        sizes = sizes_of(task, n, call.phase, call.b)
        total += sizes if call.k is None else sizes * (call.k < K)
    return total
