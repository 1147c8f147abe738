"""A check that the loss of a batch is the weighted sum over samples that the vectorised engine computes."""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from torch import Tensor

from ..core.formatting import one_line
from .inference import evaluation_mode
from .task import Task

_BATCH = 256
"""The largest number of samples of a checked batch."""
_TOLERANCE = 1e-3


def check_loss(task: Task) -> None:
    """Compare the loss of several batches, and its gradient, with the weighted sum over their samples.

    Raises:
        ValueError: If the loss fails, is not one number, or is no such sum.
    """
    for entries in _batches(task):
        inputs, targets = task.samples(entries.to(task.model.device))
        with evaluation_mode(task), torch.no_grad():
            outputs = task.model(task.model.initial(), inputs)
        try:
            whole, of_whole = _value_and_gradient(task, outputs, targets, whole=True)
            if task.loss.batch is not None:
                continue
            parts, of_parts = _value_and_gradient(task, outputs, targets, whole=False)
        except Exception as error:
            raise ValueError(
                f"Cannot apply the loss to the model's output because it fails there: {one_line(str(error))}"
            ) from error
        if not math.isfinite(whole):
            continue
        difference = float((of_whole - of_parts).norm())
        if abs(whole - parts) > _TOLERANCE * (1 + abs(whole)) or difference > _TOLERANCE * (
            1e-6 + float(of_whole.norm())
        ):
            raise ValueError(
                f"run: 'loss' must be a mean over the samples of a batch, but on {len(targets)} samples it is "
                f"{whole:.4g} and the mean of its values on each alone {parts:.4g}, with other gradients; use "
                "fm.losses.Batch(f) for a loss of the whole batch"
            )


def _value_and_gradient(task: Task, outputs: Tensor, targets: Tensor, whole: bool) -> tuple[float, Tensor]:
    """Return the loss and its gradient with respect to the outputs."""
    loss = task.loss
    with torch.enable_grad():
        leaf = outputs.detach().clone().requires_grad_()
        if whole:
            value = loss.mean(leaf, targets)
        else:
            counted = torch.ones(len(targets), dtype=torch.bool, device=targets.device)
            weights = counted.to(leaf.dtype) / len(targets)
            if not loss.uniform:
                weights = loss.weights(targets, counted, leaf.dtype)
            value = (weights * loss.each_or_loop(leaf, targets)).sum()
        (gradient,) = torch.autograd.grad(value, leaf, allow_unused=True)
    return float(value), torch.zeros_like(outputs) if gradient is None else gradient


def _batches(task: Task) -> Iterator[Tensor]:
    """Yield entries of batches that together contain every class, or the extremes of every real target."""
    total = int(task.data.offsets[-1])
    B = min(task.batch_size or _BATCH, _BATCH, total)
    if task.loss.named is not None:  # known to be a weighted sum; it is only tried
        yield torch.linspace(0, total - 1, min(B, 8)).long()
        return
    spaced = torch.linspace(0, total - 1, B).long()
    yield spaced
    yield (spaced + max(1, total // (2 * B))) % total
    targets = task.targets_at(torch.arange(total, device=task.data.y.device)).cpu()
    covering = _covering(targets)
    for part in covering.split(max(1, B // 2)):
        yield torch.cat([part, spaced[: B - len(part)]])


def _covering(targets: Tensor) -> Tensor:
    """Return entries of one sample of every class (at most 1,000) or of the extremes of every real target."""
    rows = targets.flatten(1) if targets.ndim > 1 else targets[:, None]
    if targets.is_floating_point() or targets.ndim > 1:
        extremes: Tensor = torch.cat([rows.argmin(0), rows.argmax(0)]).unique()
        return extremes[:1000]
    classes, first = torch.unique(targets, return_inverse=True)
    entries = torch.full((len(classes),), len(targets)).scatter_reduce(
        0, first, torch.arange(len(targets)), "amin", include_self=True
    )
    return entries[:1000]
