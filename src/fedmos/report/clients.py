"""How evenly a method's final models serve clients."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ..experiments.seed_statistics import MethodResult

_POINTS = 101


class Served(NamedTuple):
    """The final models' accuracy on clients' own training data, from the worst client to the best; means over seeds."""

    shares: list[float]
    """The share of clients that come before."""
    accuracies: list[float]
    mean: float
    worst_tenth: float
    median: float


def served(row: MethodResult) -> Served | None:
    """None where no run has measured it."""
    kept = [info.get("client_accuracy", {}) for info in row.infos.values()]
    kept = [found for found in kept if "sorted" in found]
    if not kept:
        return None
    shares = np.linspace(0, 1, _POINTS)
    lines = [np.interp(shares, np.linspace(0, 1, len(found["sorted"])), found["sorted"]) for found in kept]
    accuracies = np.mean(lines, axis=0)
    return Served(
        shares=shares.tolist(),
        accuracies=accuracies.tolist(),
        mean=float(np.mean([found["mean"] for found in kept])),
        worst_tenth=float(np.mean([found["worst_tenth"] for found in kept])),
        median=float(accuracies[_POINTS // 2]),
    )
