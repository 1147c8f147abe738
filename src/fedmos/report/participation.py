"""How often clients take part."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ..core.history import History
from ..data.describe import gini
from ..experiments.seed_statistics import MethodResult

_MOST = 200
"""Clients that a figure shows at most."""


class Participation(NamedTuple):
    """Clients by how often they take part, the most frequent first; means over seeds."""

    ranks: list[int]
    """From 1; of many clients, some evenly spaced."""
    shares: list[float]
    """The share of rounds in which the client of a rank takes part."""
    never: float
    """The share of clients that never take part."""
    gini: float
    """0 if all clients take part equally often, near 1 if few do all the work."""


def participation(result: MethodResult) -> Participation | None:
    """Measure how often clients take part in a method's runs; None if no run has a round."""
    clients = int(next(iter(result.infos.values()))["clients"])
    counts = [_counts(history, clients) / len(history) for history in result.runs.values() if len(history)]
    if not counts:
        return None
    ranked = np.mean([np.sort(c)[::-1] for c in counts], axis=0)
    drawn = np.unique(np.linspace(0, clients - 1, min(_MOST, clients)).astype(np.int64))
    return Participation(
        ranks=(drawn + 1).tolist(),
        shares=ranked[drawn].tolist(),
        never=float(np.mean([(c == 0).mean() for c in counts])),
        gini=float(np.mean([gini(c) if c.any() else 0.0 for c in counts])),
    )


def _counts(history: History, clients: int) -> np.ndarray:
    cohorts = [np.asarray(record.cohort, dtype=np.int64) for record in history]
    return np.bincount(np.concatenate(cohorts), minlength=clients)
