"""Which metrics a task has."""

from __future__ import annotations

import torch
from torch import Tensor

from ..engine.inference import evaluation_mode
from ..engine.task import Task


def measurable(task: Task) -> list[str]:
    """Return the names of the metrics that a task has."""
    with evaluation_mode(task), torch.no_grad():
        inputs, targets = task.samples(torch.zeros(1, dtype=torch.int64, device=task.model.device))
        kinds = ["loss", *(["accuracy"] if has_classes(task.model(task.model.initial(), inputs), targets) else [])]
    tests = [] if task.data.test is None else ["test_loss", *kinds[1:]]
    return [f"train_{kind}" for kind in kinds] + tests


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
