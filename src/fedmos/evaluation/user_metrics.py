"""Metrics of the user, computed on the outputs of the whole test set."""

from __future__ import annotations

from collections.abc import Mapping

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..core.batch_losses import Cox
from ..core.formatting import format_value, one_line
from ..core.metric_functions import AUC, R2, RMSE, CIndex, MacroF1, Metric, MetricFunction, Metrics, named_metrics
from ..engine.inference import all_outputs, evaluation_mode
from ..engine.task import Task

_REGRESSION = (nn.MSELoss, nn.L1Loss, nn.SmoothL1Loss, nn.HuberLoss)


@torch.no_grad()
def measure(task: Task, x: Tensor, metrics: Mapping[str, MetricFunction]) -> dict[str, float]:
    """Return the value of every metric of model x on the test set."""
    with evaluation_mode(task):
        outputs, targets = (v.cpu() for v in all_outputs(task, x, None))
    return {name: metric_value(name, function, outputs, targets) for name, function in metrics.items()}


def metric_value(name: str, function: MetricFunction, outputs: Tensor, targets: Tensor) -> float:
    """Return the value of a metric; an error in the user's function names it.

    A function gets copies, because it may change them in place.
    """
    own = not isinstance(function, Metric)
    try:
        value = function(outputs.clone(), targets.clone()) if own else function(outputs, targets)
    except Exception as error:  # a user's function may raise anything
        shapes = f"outputs {tuple(outputs.shape)} and targets {tuple(targets.shape)}"
        raise ValueError(
            f"Cannot compute the metric {name!r} because it fails on {shapes}: {one_line(str(error))}"
        ) from error
    try:
        return float(value)
    except (TypeError, ValueError, RuntimeError):
        raise ValueError(f"run: the metric {name!r} must return a number, got {format_value(value)}") from None


def choose_metrics(task: Task, metrics: Metrics | None, of_clients: bool = False) -> dict[str, MetricFunction]:
    """Return the metrics of the user by name, or those that suit the task if the user names none.

    Args:
        task: The task of the run.
        metrics: The option `metrics`.
        of_clients: Whether they are measured on the test samples of clients, too.

    Raises:
        ValueError: If there is no test set to measure them on.
    """
    if metrics is not None:
        named = named_metrics(metrics)
        if named and task.data.test is None and not of_clients:
            raise ValueError("Cannot measure 'metrics' because the data has no test set; use data with one")
        return named
    if task.data.test is None and not of_clients:
        return {}
    with evaluation_mode(task), torch.no_grad():
        inputs, targets = task.samples(torch.zeros(task.model.least_rows, dtype=torch.int64, device=task.model.device))
        outputs = task.model(task.model.initial(), inputs)
    return {metric.name: metric for metric in _suitable(task, outputs, targets)}


def _suitable(task: Task, outputs: Tensor, targets: Tensor) -> list[Metric]:
    loss = task.loss.function
    if isinstance(loss, Cox):
        return [CIndex()]
    if loss in ("mse", F.mse_loss, F.l1_loss, F.huber_loss) or isinstance(loss, _REGRESSION):
        return [RMSE(), R2()] if outputs.numel() == targets.numel() else []
    if loss in ("bce", F.binary_cross_entropy_with_logits) or isinstance(loss, nn.BCEWithLogitsLoss):
        binary = all(bool(((y == 0) | (y == 1)).all()) for _, y in task.data.all_targets())
        return [] if not binary else [AUC()] if outputs.numel() == 1 else [MacroF1(), AUC()]
    classes = not targets.is_floating_point() and outputs.ndim == targets.ndim + 1 and outputs.ndim == 2
    return [AUC()] if classes and outputs.shape[1] == 2 else []
