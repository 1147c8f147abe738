"""Metrics of a model on the test set beside loss and accuracy: `fedmos.metrics`.

A metric is a function (outputs, targets) → number over the whole test set. The classes here are such functions with a
name, so that they can be given in a list: `metrics=[fm.metrics.AUC()]`.

Example:
    >>> fm.metrics.MAE()(torch.zeros(2), torch.tensor([1.0, 3.0]))
    2.0
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from .formatting import format_value
from .history import CLIENT_METRICS, METRICS
from .losses import PADDING

MetricFunction = Callable[[Tensor, Tensor], Any]


@dataclass(frozen=True)
class Metric:
    """A metric with a name. Subclasses define `__call__(outputs, targets) -> float`.

    Example:
        >>> fm.metrics.RMSE()(torch.tensor([1.0, 3.0]), torch.tensor([1.0, 1.0]))
        1.4142135...
    """

    name: ClassVar[str] = ""

    def __call__(self, outputs: Tensor, targets: Tensor) -> float:
        raise TypeError(f"{type(self).__name__} must define __call__(outputs, targets)")


@dataclass(frozen=True)
class RMSE(Metric):
    """The root of the mean squared error of a regression.

    Example:
        >>> fm.metrics.RMSE()(torch.zeros(2), torch.tensor([3.0, 4.0]))
        3.5355339...
    """

    name: ClassVar[str] = "rmse"

    def __call__(self, outputs: Tensor, targets: Tensor) -> float:
        return float(_real(outputs, targets).sub(targets.double()).square().mean().sqrt())


@dataclass(frozen=True)
class MAE(Metric):
    """The mean absolute error of a regression.

    Example:
        >>> fm.metrics.MAE()(torch.zeros(2), torch.tensor([3.0, -4.0]))
        3.5
    """

    name: ClassVar[str] = "mae"

    def __call__(self, outputs: Tensor, targets: Tensor) -> float:
        return float(_real(outputs, targets).sub(targets.double()).abs().mean())


@dataclass(frozen=True)
class R2(Metric):
    """The coefficient of determination of a regression, averaged over outputs; NaN for constant targets.

    Example:
        >>> fm.metrics.R2()(torch.tensor([1.0, 2.0]), torch.tensor([1.0, 2.0]))
        1.0
    """

    name: ClassVar[str] = "r2"

    def __call__(self, outputs: Tensor, targets: Tensor) -> float:
        true = targets.double().reshape(len(targets), -1)
        residual = (_real(outputs, targets).reshape(true.shape) - true).square().sum(0)
        total = (true - true.mean(0)).square().sum(0)
        return float(torch.where(total > 0, 1 - residual / total, torch.nan).mean())


@dataclass(frozen=True)
class MacroF1(Metric):
    """The mean over classes (or labels) of the F1 score. A class without samples and predictions does not count.

    Example:
        >>> fm.metrics.MacroF1()(torch.eye(3), torch.tensor([0, 1, 2]))
        1.0
    """

    name: ClassVar[str] = "macro_f1"

    def __call__(self, outputs: Tensor, targets: Tensor) -> float:
        predicted, true = _indicators(outputs, targets)
        hits = (predicted & true).sum(0).double()
        total = predicted.sum(0) + true.sum(0)
        return float((2 * hits / total)[total > 0].mean())


@dataclass(frozen=True)
class BalancedAccuracy(Metric):
    """The mean over classes of the recall.

    Example:
        >>> fm.metrics.BalancedAccuracy()(torch.eye(2)[[0, 0, 0]], torch.tensor([0, 0, 1]))
        0.5
    """

    name: ClassVar[str] = "balanced_accuracy"

    def __call__(self, outputs: Tensor, targets: Tensor) -> float:
        predicted, true = _indicators(outputs, targets)
        counts = true.sum(0)
        return float(((predicted & true).sum(0).double() / counts)[counts > 0].mean())


@dataclass(frozen=True)
class AUC(Metric):
    """The area under the ROC curve. With several classes or labels, the mean of one against the rest.

    The score of a class is its probability: the softmax of the outputs, unless they are probabilities already. A class
    with only positive or only negative samples does not count; NaN if none counts, or a score is NaN.

    Example:
        >>> fm.metrics.AUC()(torch.tensor([0.1, 0.4, 0.35, 0.8]), torch.tensor([0.0, 0.0, 1.0, 1.0]))
        0.75
    """

    name: ClassVar[str] = "auc"

    def __call__(self, outputs: Tensor, targets: Tensor) -> float:
        outputs, targets = _labelled(outputs, targets)
        if not targets.is_floating_point() and outputs.ndim == targets.ndim + 1:
            scores = outputs.double()
            if outputs.shape[1] == 2:
                scores = scores[:, 1:] - scores[:, :1]
            elif not _are_probabilities(scores):
                scores = scores.log_softmax(1)
            classes = [1] if outputs.shape[1] == 2 else range(outputs.shape[1])
            areas = [_area(scores[:, i], targets == c) for i, c in enumerate(classes)]
        else:
            scores, labels = outputs.double().reshape(len(targets), -1), targets.reshape(len(targets), -1) > 0.5
            areas = [_area(s, y) for s, y in zip(scores.T, labels.T, strict=True)]
        known = [area for area in areas if area is not None]
        return sum(known) / len(known) if known else float("nan")


@dataclass(frozen=True)
class CIndex(Metric):
    """Harrell's concordance index of survival times: higher outputs should mean earlier events.

    Outputs are one log hazard per sample, targets (time, event) as for `fm.losses.Cox`. Ties of outputs count one half;
    NaN if an output that counts is NaN.

    Example:
        >>> fm.metrics.CIndex()(torch.tensor([2.0, 1.0]), torch.tensor([[1.0, 1.0], [2.0, 0.0]]))
        1.0
    """

    name: ClassVar[str] = "c_index"

    def __call__(self, outputs: Tensor, targets: Tensor) -> float:
        scores, times, events = outputs.double().reshape(len(targets)), targets[:, 0], targets[:, 1] > 0
        comparable = events[:, None] & (times[:, None] < times[None, :])
        comparable |= events[:, None] & ~events[None, :] & (times[:, None] == times[None, :])
        difference = scores[:, None] - scores[None, :]
        concordant = torch.where(difference.isnan(), torch.nan, (difference > 0).double() + 0.5 * (difference == 0))
        return float(concordant[comparable].mean())


METRIC_CLASSES: dict[str, type[Metric]] = {
    kind.__name__: kind for kind in (AUC, BalancedAccuracy, CIndex, MAE, MacroF1, R2, RMSE)
}

Metrics = Mapping[str, MetricFunction] | Sequence[Metric]


def named_metrics(metrics: Metrics) -> dict[str, MetricFunction]:
    """Return the metrics by name.

    Raises:
        ValueError: If a metric has no name or that of a value of every record, or is not callable, or two have the same
            name.

    Example:
        >>> list(fm.metrics.named_metrics([fm.metrics.AUC(), fm.metrics.MacroF1()]))
        ['auc', 'macro_f1']
    """
    if isinstance(metrics, Mapping):
        found = dict(metrics)
    else:
        for metric in metrics:
            if not isinstance(metric, Metric):
                raise ValueError(
                    f"run: 'metrics' must be a mapping of names to functions, or a list of fm.metrics, got "
                    f"{format_value(metric)}"
                )
        found = {metric.name: metric for metric in metrics}
        if len(found) < len(metrics):
            raise ValueError("run: 'metrics' must have different names")
    for name, function in found.items():
        if not isinstance(name, str) or not name.isidentifier() or isinstance(function, type) or not callable(function):
            raise ValueError(
                f"run: 'metrics' must map names such as 'f1' to functions of (outputs, targets), got "
                f"{format_value(name)}: {format_value(function)}"
            )
        if name in (*METRICS, *CLIENT_METRICS):
            raise ValueError(
                f"run: 'metrics' must not be called {name!r} because records have another value of that name; use "
                "another name"
            )
    return found


def _real(outputs: Tensor, targets: Tensor) -> Tensor:
    return outputs.double().reshape(targets.shape)


def _labelled(outputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """Return samples and positions that are not ignored, with positions as samples of their own."""
    if targets.is_floating_point() or outputs.ndim != targets.ndim + 1:
        return outputs, targets
    if targets.ndim > 1:
        outputs, targets = outputs.movedim(1, -1).reshape(-1, outputs.shape[1]), targets.reshape(-1)
    counted = targets != PADDING
    return outputs[counted], targets[counted]


def _indicators(outputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """Return predicted and true indicators, (n, classes): of classes, or of labels with a logit each."""
    outputs, targets = _labelled(outputs, targets)
    if not targets.is_floating_point() and outputs.ndim == targets.ndim + 1:
        classes = torch.arange(outputs.shape[1])
        return outputs.argmax(1)[:, None].cpu() == classes, targets[:, None].cpu() == classes
    predicted, true = (outputs > 0).reshape(len(targets), -1), (targets > 0.5).reshape(len(targets), -1)
    if predicted.shape[1] == 1:  # one label: both of its values are classes
        return torch.cat([~predicted, predicted], 1), torch.cat([~true, true], 1)
    return predicted, true


def _are_probabilities(scores: Tensor) -> bool:
    return bool((scores >= 0).all()) and bool(((scores.sum(1) - 1).abs() < 1e-4).all())


def _area(scores: Tensor, positive: Tensor) -> float | None:
    """Return the fraction of pairs of a positive and a negative sample in the right order; ties count one half."""
    positives, negatives = int(positive.sum()), int((~positive).sum())
    if positives == 0 or negatives == 0:
        return None
    if bool(scores.isnan().any()):
        return math.nan
    _, inverse, counts = torch.unique(scores, return_inverse=True, return_counts=True)
    ends = counts.cumsum(0)
    ranks = (ends - (counts - 1) / 2).double()[inverse]
    return float((ranks[positive].sum() - positives * (positives + 1) / 2) / (positives * negatives))
