"""How evenly the final model serves clients."""

from __future__ import annotations

from typing import Any

import torch

from ..engine.task import Task
from .metrics import client_accuracies

_MOST = 201
"""Points of the distribution that a run keeps, however many clients there are."""


def client_accuracy(task: Task, x: torch.Tensor) -> dict[str, Any]:
    """The distribution over clients of the model's accuracy on each one's own training data, in numbers to be kept.

    Every client counts the same. `sorted` has the accuracies from the worst client to the best, of many clients some
    evenly spaced; `worst_tenth` is the mean of the worst 10 % (rounded up) of all. Empty where there are no classes.
    """
    accuracies = client_accuracies(task, x)
    if accuracies is None:
        return {}
    ascending = accuracies.sort().values
    shown = torch.linspace(0, len(ascending) - 1, min(_MOST, len(ascending)), dtype=torch.float64).round().long()
    return {
        "mean": float(ascending.mean()),
        "worst_tenth": float(ascending[: -(len(ascending) // -10)].mean()),
        "sorted": ascending[shown].tolist(),
    }
