"""The accuracy of a model on each client's own data."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from ..engine.inference import evaluation_mode, samples_at_once
from ..engine.task import Task
from .measurable import correctness
from .sample_weights import labelled

_MOST = 201
"""The largest number of points of the distribution that a run stores."""
_EACH = 1000
"""The largest number of clients whose accuracy a run records by client."""


def client_accuracy(task: Task, x: torch.Tensor) -> dict[str, Any]:
    """Return the distribution over clients of the accuracy of x on their own training data; empty without classes."""
    accuracies = client_accuracies(task, x)
    return {} if accuracies is None else distribution(accuracies, task.data.names)


def distribution(accuracies: Tensor, names: Sequence[str] | None) -> dict[str, Any]:
    """Return the distribution over clients of their accuracies; empty if none is known.

    Every client has the same weight. `sorted` lists the accuracies from the worst client to the best (evenly spaced
    quantiles if there are many clients); `worst_tenth` is the mean of the worst 10 %, rounded up. `clients` has the
    accuracy of each client by name, if clients have names and are not many.

    Args:
        accuracies: The accuracy of each client; NaN where it is not known.
        names: The names of the clients.
    """
    ascending = accuracies[~accuracies.isnan()].sort().values
    if not len(ascending):
        return {}
    points = torch.linspace(0, len(ascending) - 1, min(_MOST, len(ascending)), dtype=torch.float64).round().long()
    found: dict[str, Any] = {
        "mean": float(ascending.mean()),
        "worst_tenth": worst_tenth(ascending),
        "sorted": ascending[points].tolist(),
    }
    if len(accuracies) <= _MOST and names is not None:
        by_name = zip(names, accuracies.tolist(), strict=True)
        found["clients"] = {name: accuracy for name, accuracy in by_name if not math.isnan(accuracy)}
    return found


def tested_distribution(values: Mapping[str, Tensor], names: Sequence[str] | None) -> dict[str, Any]:
    """Return the distribution over clients of the accuracy on their own test samples, of the models that they use.

    These are clients' own models if the algorithm has such models (`model` is then "personal"), otherwise the global
    one. `each` has the clients, evenly spaced if there are many, and their accuracies.

    Args:
        values: The scores of all clients by name; see `ClientScores`.
        names: The names of the clients.
    """
    kind = "personal" if "personal_accuracy" in values else "client"
    accuracies = values.get(f"{kind}_accuracy")
    if accuracies is None or not (found := distribution(accuracies, names)):
        return {}
    known = (~accuracies.isnan()).nonzero().flatten()
    some = known[torch.linspace(0, len(known) - 1, min(_EACH, len(known)), dtype=torch.float64).round().long()]
    each = {"ids": some.tolist(), "accuracies": accuracies[some].tolist()}
    return found | {"samples": "test", "model": "personal" if kind == "personal" else "global", "each": each}


def worst_tenth(ascending: Tensor) -> float:
    """Return the mean of the first tenth of the values, rounded up."""
    return float(ascending[: -(len(ascending) // -10)].mean())


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
