"""Which metrics a task has, and which predictions are correct."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..core.losses import per_sample
from ..engine.inference import evaluation_mode
from ..engine.task import Task

Correct = Callable[[Tensor, Tensor], Tensor]
"""(outputs, targets) → the fraction of correct predictions of each sample, (B,), float64."""


def measurable(task: Task) -> list[str]:
    """Return the names of the metrics that a task has."""
    kinds = ["loss", *([] if correctness(task) is None else ["accuracy"])]
    tests = [] if task.data.test is None else ["test_loss", *kinds[1:]]
    return [f"train_{kind}" for kind in kinds] + tests


def correctness(task: Task) -> Correct | None:
    """Return the function that compares predictions with targets; None if the task has no classes."""
    with evaluation_mode(task), torch.no_grad():
        inputs, targets = task.samples(torch.zeros(task.model.least_rows, dtype=torch.int64, device=task.model.device))
        outputs = task.model(task.model.initial(), inputs)
    if has_classes(outputs, targets):
        return correct_classes
    return correct_binary if _is_binary(task, outputs, targets) else None


def has_classes(outputs: Tensor, targets: Tensor) -> bool:
    """Whether outputs are class scores, on axis 1 as in PyTorch, and targets are class numbers.

    Outputs (B, classes, …) go with targets (B, …).
    """
    return (
        not targets.is_floating_point()
        and outputs.ndim == targets.ndim + 1
        and outputs.shape[1] > 1
        and outputs.shape[2:] == targets.shape[1:]
    )


def correct_classes(outputs: Tensor, targets: Tensor) -> Tensor:
    """Return the fraction of positions of each sample whose largest score is that of the target."""
    return per_sample((outputs.argmax(1) == targets).to(torch.float64), targets)


def correct_binary(outputs: Tensor, targets: Tensor) -> Tensor:
    """Return whether a logit is positive where the target is 1, for one logit per sample."""
    right = (outputs > 0) == (targets > 0.5)
    return right.reshape(len(targets)).to(torch.float64)


def _is_binary(task: Task, outputs: Tensor, targets: Tensor) -> bool:
    """Whether the loss is a cross-entropy of one logit per sample, and all targets are 0 or 1."""
    loss = task.loss.function
    logistic = loss in ("bce", F.binary_cross_entropy_with_logits) or isinstance(loss, nn.BCEWithLogitsLoss)
    if not logistic or outputs.shape != targets.shape or outputs.numel() != len(outputs):
        return False
    return all(bool(((y == 0) | (y == 1)).all()) for _, y in task.data.all_targets())
