"""Forward passes in evaluation mode."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor

from .task import Task

SAMPLES_AT_ONCE = 1024
_SCORES_AT_ONCE = 2**26


@contextmanager
def evaluation_mode(task: Task) -> Iterator[None]:
    """Put the model in evaluation mode within the context."""
    module = task.model.module
    was_training = module.training
    module.eval()
    try:
        yield
    finally:
        module.train(was_training)


def samples_at_once(task: Task, x: Tensor) -> int:
    """Return how many samples to evaluate together."""
    inputs, _ = task.samples(torch.zeros(1, dtype=torch.int64, device=x.device))
    return most_at_once(x.device, task.model(x, inputs).numel())


def most_at_once(device: torch.device, outputs: int) -> int:
    """Return how many samples to evaluate together: fewer where the model has many outputs per sample."""
    most = SAMPLES_AT_ONCE * (1 if device.type == "cpu" else 8)
    return max(1, min(most, _SCORES_AT_ONCE // outputs))


def client_losses(task: Task, x: Tensor, ids: Tensor, positions: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
    """Return each client's mean loss and mean squared loss at x over the given positions of its data."""
    owner = torch.repeat_interleave(torch.arange(len(ids)), torch.tensor([len(part) for part in positions]))
    entries = task.data.offsets[ids][owner] + torch.cat(list(positions))
    sums = torch.zeros(2, len(ids), dtype=torch.float64)
    with evaluation_mode(task):
        for part in torch.arange(len(entries)).split(samples_at_once(task, x)):
            inputs, targets = task.samples(entries[part].to(x.device))
            outputs = task.model(x, task.model.laid_out(inputs))
            losses = task.loss.each_or_loop(outputs, targets).to("cpu", torch.float64)
            sums.index_add_(1, owner[part], torch.stack([losses, losses**2]))
    mean, squared = sums / torch.tensor([len(part) for part in positions])
    return mean, squared
