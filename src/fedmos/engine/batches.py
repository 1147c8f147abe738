"""The samples that a client uses in each step.

Each client has a random stream per round, so its batches depend neither on the rest of the cohort nor on how the cohort
is divided into chunks.

All tensor shapes here depend only on a chunk's size and `width`, so that local training can be captured as one graph
and replayed for other clients.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import NamedTuple

import torch
from torch import Tensor

from ..rng import Purpose, permute, words
from .task import Task

FULL, FIRST = -1, -2
"""Phases beside the steps 0, 1, …: all local data, and the batch of `Gradient.batch`."""

_ENTRIES_AT_ONCE = 2**22
_GATHERED_AT_ONCE = 2**20
"""Numbers in the samples of all steps: with more, gathering takes as long step by step."""


class Chunk(NamedTuple):
    """Clients that train together; tensors are (M,), on the run's device."""

    ids: Tensor
    offset: Tensor
    """The start of each client's data in the federation's index."""
    n: Tensor
    width: int
    """At least the largest n."""
    steps: int
    """The largest K."""
    parallel: int
    """The number of clients that batches are split for. If it and `width` are those of the whole cohort, a client's
    bits do not depend on the other clients of its chunk, as far as kernels allow."""

    @classmethod
    def of(cls, task: Task, ids: Tensor) -> Chunk:
        device, sizes = task.model.device, task.data.sizes[ids]
        steps = int(task.steps(sizes.max()))
        offsets = task.data.offsets[ids].to(device)
        return cls(ids.to(device), offsets, sizes.to(device), int(sizes.max()), steps, len(ids))


class SampleBatch(NamedTuple):
    """Samples of M clients. Row i has size[i] samples; further columns repeat the first."""

    positions: Tensor
    """(M, L), counted within each client's data."""
    size: Tensor
    """(M,)."""
    weight: Tensor
    """(M, L), in the run's dtype: 1/size in the columns that count, 0 in the rest."""
    phase: Tensor
    """(M,): the step, FULL or FIRST."""
    samples: tuple[Tensor, Tensor] | None = None
    """Inputs and targets, (M, L, …), of a small step, whose samples are gathered with those of all other steps."""

    def columns(self, columns: slice) -> SampleBatch:
        """Return the batch with these columns only."""
        samples = None if self.samples is None else (self.samples[0][:, columns], self.samples[1][:, columns])
        return self._replace(positions=self.positions[:, columns], weight=self.weight[:, columns], samples=samples)


class Batches:
    """The batches of a chunk of clients in round `t`."""

    def __init__(self, task: Task, chunk: Chunk, t: int | Tensor) -> None:
        self.chunk, self.n = chunk, chunk.n
        self.K = task.steps(chunk.n)
        self.steps = chunk.steps
        self._task, self._t = task, t
        if task.batch_size is None:
            return
        # With local steps, one random order per step, of which the step uses the first B; with epochs, one per epoch.
        orders = task.local_steps or task.local_epochs or 0
        keep = min(task.batch_size, chunk.width) if task.local_steps else chunk.width
        self._order = self._orders(Purpose.BATCH, orders, keep)
        if task.local_steps:  # for all steps together: on a GPU a small operation costs as much as a large one
            size = chunk.n.clamp(max=task.batch_size)
            positions, _, weight, phase, _ = self._batch(self._order, size[:, None], self._phases())
            of_steps = zip(positions.unbind(1), phase.unbind(1), self._samples(positions), strict=True)
            self._steps = [SampleBatch(one, size, weight[:, 0], k, samples) for one, k, samples in of_steps]

    def _samples(self, positions: Tensor) -> Iterable[tuple[Tensor, Tensor] | None]:
        """Return the samples of each step if they are few, from positions (M, steps, L); None for each otherwise."""
        data = self._task.data
        entries = positions.numel() * math.prod(data.x.shape[1:])
        if positions.device.type != "cpu" or data.augment is not None or entries > _GATHERED_AT_ONCE:
            return [None] * self.steps
        by_step = (self.chunk.offset[:, None, None] + positions).transpose(0, 1)
        inputs, targets = self._task.samples(by_step)
        return zip(inputs.unbind(), targets.unbind(), strict=True)

    def step(self, k: int) -> SampleBatch:
        """Return the batch of step k; a client without such a step keeps its last batch."""
        B = self._task.batch_size
        if B is not None and self._task.local_steps:
            return self._steps[k]
        step = self.K.sub(1).clamp(max=k)
        if B is None:
            return self.all()._replace(phase=step)
        size = sizes_of(self._task, self.n, k)
        per_epoch = -(self.n // -B)
        epoch, start = step // per_epoch, (step % per_epoch) * B
        columns = start[:, None] + torch.arange(min(B, self.chunk.width), device=self.n.device)
        columns = columns.clamp(max=self.chunk.width - 1)
        order = self._order.gather(1, epoch[:, None, None].expand(-1, 1, self._order.shape[2]))[:, 0]
        return self._batch(order.gather(1, columns), size, step)

    def all(self) -> SampleBatch:
        """Return all local data, in stored order."""
        positions = torch.arange(self.chunk.width, device=self.n.device).expand(len(self.n), -1)
        return self._batch(positions, self.n, torch.full_like(self.n, FULL))

    def first(self, b: int) -> SampleBatch:
        """Return min(b, n_i) samples without replacement, from a separate random stream."""
        order = self._orders(Purpose.FIRST_BATCH, 1, min(b, self.chunk.width))
        return self._batch(order[:, 0], self.n.clamp(max=b), torch.full_like(self.n, FIRST))

    def _orders(self, purpose: Purpose, count: int, keep: int) -> Tensor:
        """Return the first `keep` entries of `count` random orders of each client's data, (M, count, keep)."""
        keys = words(self.stream(purpose), count)
        at_once = max(1, _ENTRIES_AT_ONCE // (len(self.n) * self.chunk.width))
        parts = (keys,) if count <= at_once else keys.split(at_once, dim=1)
        orders = [permute(part, self.n[:, None], self.chunk.width, keep) for part in parts]
        return orders[0] if len(orders) == 1 else torch.cat(orders, dim=1)

    def _phases(self) -> Tensor:
        """Return the step that each client takes or, without such a step, its last one, (M, steps)."""
        return torch.minimum(self.K.sub(1)[:, None], torch.arange(self.steps, device=self.n.device))

    def _batch(self, positions: Tensor, size: Tensor, phase: Tensor) -> SampleBatch:
        used = torch.arange(positions.shape[-1], device=positions.device) < size[..., None]
        weight = used.to(self._task.model.dtype) / size[..., None]
        return SampleBatch(torch.where(used, positions, positions[..., :1]), size, weight, phase)

    def stream(self, purpose: Purpose) -> Tensor:
        """Return each client's random stream in this round, (M,)."""
        return self._task.stream(self._t, self.chunk.ids, purpose)


def sizes_of(task: Task, n: Tensor, phase: int, b: int = 0) -> Tensor:
    """Return the number of samples that clients with n samples use in a phase."""
    B = task.batch_size
    if phase == FIRST:
        return n.clamp(max=b)
    if phase == FULL or B is None:
        return n
    if task.local_steps is not None:
        return n.clamp(max=B)
    per_epoch = -(n // -B)
    step = task.steps(n).sub(1).clamp(max=phase)
    return (n - (step % per_epoch) * B).clamp(max=B)
