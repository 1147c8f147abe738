"""Properties of metrics that follow from their names."""

from __future__ import annotations

import re

from .validation import Rule, fraction, number

_OF_CLIENTS = re.compile(r"(client|personal|finetuned|unseen_finetuned|unseen)_(\w+?)(_worst|_weighted|_p\d\d)?")

_MODELS = {
    "client": "of clients on their own test samples",
    "personal": "of clients' own models",
    "finetuned": "of clients after fine-tuning",
    "unseen": "of unseen clients",
    "unseen_finetuned": "of unseen clients after fine-tuning",
}


def is_client_metric(metric: str) -> bool:
    """Return whether a name can be that of a summary over clients, such as "client_accuracy_worst"."""
    return _OF_CLIENTS.fullmatch(metric) is not None


def client_metric_title(metric: str) -> str:
    """Return a summary over clients in words, e.g. "accuracy of unseen clients, worst 10 %"."""
    found = _OF_CLIENTS.fullmatch(metric)
    if found is None:
        raise ValueError(f"{metric!r} is not the name of a summary over clients")
    model, measure, summary = found.groups()
    word = {"worst": ", worst 10 %", "weighted": ", weighted by samples"}
    suffix = "" if summary is None else word.get(summary[1:], f", percentile {summary[2:]}")
    return f"{measure.replace('_', ' ')} {_MODELS[model]}{suffix}"


def is_loss(metric: str) -> bool:
    """Return whether smaller values of the metric are better, which its name tells."""
    metric = _measure(metric)
    return metric.endswith(("loss", "error")) or metric in ("rmse", "mse", "mae")


def target_rule(metric: str) -> Rule:
    """Return the rule that a target for the metric must meet."""
    return fraction if _measure(metric) in ("accuracy", "train_accuracy") else number


def _measure(metric: str) -> str:
    """Return what a summary over clients is about, e.g. "accuracy"; other names stay as they are."""
    found = _OF_CLIENTS.fullmatch(metric)
    return metric if found is None else found[2]


def improves(metric: str, value: float, best: float, min_delta: float = 0.0) -> bool:
    """Return whether a value of the metric is better than the best one so far, by more than `min_delta`."""
    return value < best - min_delta if is_loss(metric) else value > best + min_delta
