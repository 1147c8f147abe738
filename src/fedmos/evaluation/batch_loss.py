"""Metrics of a model whose loss is a function of a whole batch."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from ..engine.inference import all_outputs, evaluation_mode
from ..engine.task import Task


@torch.no_grad()
def batch_loss_metrics(
    task: Task, x: Tensor, correct: Callable[[Tensor, Tensor], Tensor] | None, train: bool
) -> Tensor:
    """Return the metrics of `measurable`, (k,), float64.

    train_loss is Σ p_i f(all data of client i), test_loss is f(the whole test set).
    """
    found: list[Tensor] = []
    with evaluation_mode(task):
        if train:
            entries = torch.arange(int(task.data.offsets[-1]), device=x.device)
            outputs, targets = all_outputs(task, x, entries)
            sizes = task.data.sizes.tolist()
            p = task.data.importance.to(x.device)
            parts = list(zip(outputs.split(sizes), targets.split(sizes), strict=True))
            found.append(p @ torch.stack([task.loss.mean(o, t).to(torch.float64) for o, t in parts]))
            if correct is not None:
                found.append(p @ torch.stack([correct(o, t).mean() for o, t in parts]))
        if task.data.test is not None:
            outputs, targets = all_outputs(task, x, None)
            found.append(task.loss.mean(outputs, targets).to(torch.float64))
            if correct is not None:
                found.append(correct(outputs, targets).mean())
    return torch.stack(found)
