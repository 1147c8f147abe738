"""The weights of samples in the reported losses and accuracies."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from ..core.losses import has_label
from ..engine.task import Task

_MUCH_FEWER = 0.8
"""If each federation uses at most this share of all samples, each model is evaluated on its own samples."""


def pool_samples(tasks: Sequence[Task]) -> tuple[Tensor, Tensor]:
    """Return the samples to evaluate, (1 or R, n), and their weights for each task, (1 or R, 1 or 2, n).

    Every model is evaluated on the samples of all federations, or on its own where those are much fewer. The weights
    are those of the loss and of the accuracy, or one row if these are equal.
    """
    federations = [task.data for task in tasks]
    device = federations[0].x.device
    weights = [_train_weights(task).to(device) for task in tasks]
    indices = [
        torch.arange(int(d.offsets[-1]), device=device) if d.index is None else d.index[: int(d.offsets[-1])].to(device)
        for d in federations
    ]
    if len(tasks) == 1:
        return indices[0][None], weights[0][None]
    samples = torch.cat(indices).unique()
    if max(map(len, indices)) <= _MUCH_FEWER * len(samples):
        padded = pad_sequence([w.T for w in weights], batch_first=True).transpose(1, 2)
        return pad_sequence(indices, batch_first=True), padded
    table = torch.zeros((len(tasks), len(weights[0]), len(samples)), dtype=torch.float64, device=device)
    for row, index, weight in zip(table, indices, weights, strict=True):
        row.index_add_(1, torch.searchsorted(samples, index), weight)
    return samples[None], table


def test_weights(task: Task) -> Tensor:
    """Return the weights of the test samples, (1 or 2, n), float64: the loss and the accuracy of the whole test set."""
    assert task.data.test is not None
    targets = task.targets(task.data.test[1])
    n = len(targets)
    if _equal_weights(task, targets):
        return torch.full((1, n), 1 / n, dtype=torch.float64, device=targets.device)
    counted = torch.ones(n, dtype=torch.bool, device=targets.device)
    loss = task.loss.weights(targets, counted, torch.float64)
    counted_labels = labelled(targets)
    return torch.stack([loss, counted_labels / counted_labels.sum().clamp(min=1)])


def _train_weights(task: Task) -> Tensor:
    """Return the weights of the training samples in Σ p_i f_i and in Σ p_i accuracy_i, (1 or 2, n), float64."""
    data = task.data
    p, sizes = data.importance, data.sizes
    if _equal_weights(task, data.y):
        return (p / sizes).repeat_interleave(sizes)[None]
    targets = task.targets_at(torch.arange(int(data.offsets[-1]), device=data.y.device)).cpu()
    owner = torch.repeat_interleave(torch.arange(len(sizes)), sizes)

    def shares(norms: Tensor) -> Tensor:
        """Return p_i / Σ norms of client i for each sample with a norm; 0 for clients without any."""
        total = torch.zeros(len(sizes), dtype=torch.float64).index_add_(0, owner, norms.to(torch.float64))
        return torch.where(total > 0, p / total.where(total > 0, 1), 0)[owner]

    norms = task.loss.norms(targets.to(data.y.device)).cpu()
    loss = p[owner] if task.loss.sums else shares(norms)
    counted_labels = labelled(targets)
    return torch.stack([loss, shares(counted_labels) * counted_labels])


def _equal_weights(task: Task, targets: Tensor) -> bool:
    """Whether all samples of a client have the same weight in loss and accuracy."""
    return (task.loss.uniform or task.loss.batch is not None) and bool(has_label(targets).all())


def labelled(targets: Tensor) -> Tensor:
    """Return 1 for samples with a label, 0 for those whose labels are ignored, float64."""
    return has_label(targets).to(torch.float64)
