"""Properties of metrics that follow from their names."""

from __future__ import annotations

from .validation import Rule, fraction, number


def is_loss(metric: str) -> bool:
    """Return whether smaller values of the metric are better, which its name tells."""
    return metric.endswith(("loss", "error")) or metric in ("rmse", "mse", "mae")


def target_rule(metric: str) -> Rule:
    """Return the rule that a target for the metric must meet."""
    return fraction if metric in ("accuracy", "train_accuracy") else number


def improves(metric: str, value: float, best: float, min_delta: float = 0.0) -> bool:
    """Return whether a value of the metric is better than the best one so far, by more than `min_delta`."""
    return value < best - min_delta if is_loss(metric) else value > best + min_delta
