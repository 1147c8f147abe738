"""The accuracy of a model on each client's own data."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from ..engine.inference import evaluation_mode, samples_at_once
from ..engine.task import Task
from .measurable import correctness
from .sample_weights import labelled

_MOST = 201
"""The largest number of points of the distribution that a run stores."""


def client_accuracy(task: Task, x: torch.Tensor) -> dict[str, Any]:
    """Return the distribution over clients of the accuracy of x on their own training data.

    Every client has the same weight. `sorted` lists the accuracies from the worst client to the best (evenly spaced
    quantiles if there are many clients); `worst_tenth` is the mean of the worst 10 %, rounded up. `clients` has the
    accuracy of each client by name, if clients have names and are not many.
    Empty without classes.
    """
    accuracies = client_accuracies(task, x)
    if accuracies is None:
        return {}
    ascending = accuracies[~accuracies.isnan()].sort().values
    if not len(ascending):
        return {}
    points = torch.linspace(0, len(ascending) - 1, min(_MOST, len(ascending)), dtype=torch.float64).round().long()
    found: dict[str, Any] = {
        "mean": float(ascending.mean()),
        "worst_tenth": float(ascending[: -(len(ascending) // -10)].mean()),
        "sorted": ascending[points].tolist(),
    }
    if len(accuracies) <= _MOST and task.data.names is not None:
        by_name = zip(task.data.names, accuracies.tolist(), strict=True)
        found["clients"] = {name: accuracy for name, accuracy in by_name if not math.isnan(accuracy)}
    return found


def client_accuracies(task: Task, x: Tensor) -> Tensor | None:
    """Return the accuracy of x on each client's training samples, (N,); None without classes.

    Samples whose target is ignored do not count; a client without others has the accuracy NaN.
    """
    correct = correctness(task)
    if correct is None:
        return None
    owner = torch.repeat_interleave(torch.arange(len(task.data)), task.data.sizes)
    hits, counts = (torch.zeros(len(task.data), dtype=torch.float64) for _ in range(2))
    with evaluation_mode(task), torch.no_grad():
        for part in torch.arange(len(owner)).split(samples_at_once(task, x)):
            inputs, targets = task.samples(part.to(x.device))
            outputs = task.model(x, task.model.laid_out(inputs))
            counted = labelled(targets)
            hits.index_add_(0, owner[part], (correct(outputs, targets) * counted).cpu())
            counts.index_add_(0, owner[part], counted.cpu())
    return hits / counts
