"""Properties of metrics that follow from their names."""

from __future__ import annotations

from .validation import Rule, fraction, number


def is_loss(metric: str) -> bool:
    """Whether smaller is better."""
    return metric.endswith("loss")


def target_rule(metric: str) -> Rule:
    """What a target for the metric must be."""
    return number if is_loss(metric) else fraction
