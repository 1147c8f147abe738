"""The accuracy of a method's final models on each client's own data."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ..experiments.seed_statistics import MethodResult

_POINTS = 101


class ClientAccuracy(NamedTuple):
    """Accuracy on clients' own training data, from the worst client to the best; means over seeds."""

    shares: list[float]
    """The share of clients with a lower accuracy."""
    accuracies: list[float]
    mean: float
    worst_tenth: float
    median: float


def client_accuracy(result: MethodResult) -> ClientAccuracy | None:
    """Read the accuracy per client from a method's runs; None if no run has measured it."""
    measured = [info.get("client_accuracy", {}) for info in result.infos.values()]
    measured = [one for one in measured if "sorted" in one]
    if not measured:
        return None
    shares = np.linspace(0, 1, _POINTS)
    curves = [np.interp(shares, np.linspace(0, 1, len(one["sorted"])), one["sorted"]) for one in measured]
    accuracies = np.mean(curves, axis=0)
    return ClientAccuracy(
        shares=shares.tolist(),
        accuracies=accuracies.tolist(),
        mean=float(np.mean([one["mean"] for one in measured])),
        worst_tenth=float(np.mean([one["worst_tenth"] for one in measured])),
        median=float(accuracies[_POINTS // 2]),
    )
