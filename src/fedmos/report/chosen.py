"""How often clients took part."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ..core.history import History
from ..data.describe import gini
from ..experiments.seed_statistics import MethodResult

_MOST = 200


class Chosen(NamedTuple):
    """Clients by how often they took part, the most frequent first; means over seeds."""

    ranks: list[int]
    """From 1; of many clients, some evenly spaced."""
    shares: list[float]
    """In what share of the rounds the client of that rank took part."""
    never: float
    """The share of clients that never did."""
    gini: float
    """0 if all took part equally often, near 1 if few did all the work."""


def chosen(row: MethodResult) -> Chosen | None:
    """None if no round was played."""
    clients = int(next(iter(row.infos.values()))["clients"])
    counts = [_counts(history, clients) / len(history) for history in row.runs.values() if len(history)]
    if not counts:
        return None
    ranked = np.mean([np.sort(c)[::-1] for c in counts], axis=0)
    shown = np.unique(np.linspace(0, clients - 1, min(_MOST, clients)).astype(np.int64))
    return Chosen(
        ranks=(shown + 1).tolist(),
        shares=ranked[shown].tolist(),
        never=float(np.mean([(c == 0).mean() for c in counts])),
        gini=float(np.mean([gini(c) if c.any() else 0.0 for c in counts])),
    )


def _counts(history: History, clients: int) -> np.ndarray:
    cohorts = [np.asarray(record.cohort, dtype=np.int64) for record in history]
    return np.bincount(np.concatenate(cohorts), minlength=clients)
