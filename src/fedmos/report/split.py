"""The split of a report: how many samples of which class each client has."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ..data.describe import describe
from ..data.federated import FederatedData
from .study import ReportStudy

_MOST = 50
"""Clients that the figure shows at most."""


class SplitFigure(NamedTuple):
    """Some clients, evenly spaced, and their samples of each class."""

    seed: int
    summary: str
    clients: list[int]
    classes: list[str]
    counts: np.ndarray
    """(clients drawn, classes)."""


def split_figure(study: ReportStudy) -> SplitFigure | str:
    """Rebuild the first seed's split from the configuration; return a sentence if that is not possible."""
    held = next((source for source in study.sources if source.federation is not None), None)
    if held is not None and held.federation is not None:
        return _figure(next(iter(held.results[0].runs)), held.federation)
    source = next((source for source in study.sources if source.data is not None), None)
    if source is None or source.data is None:
        return "The runs were started from Python, and their folders do not record how their data were made."
    seed, info = next(iter(source.results[0].infos.items()))
    try:
        data = source.data.make(seed)
    except (ValueError, OSError, RuntimeError, ImportError) as error:
        return f"The data could not be loaded again: {error}"
    if data.fingerprint() != info.get("data"):
        return "The data have changed since the runs."
    return _figure(seed, data)


def _figure(seed: int, data: FederatedData) -> SplitFigure | str:
    """Count the samples of each class and client; return a sentence if targets are no classes."""
    described = describe(data)
    if described.labels is None:
        return f"Targets are not class numbers.\n{described}"
    drawn = np.unique(np.linspace(0, len(data) - 1, min(_MOST, len(data))).astype(np.int64))
    counts = described.labels.counts[drawn]
    names = data.labels if data.labels is not None and len(data.labels) == counts.shape[1] else range(counts.shape[1])
    return SplitFigure(seed, str(described), drawn.tolist(), [str(name) for name in names], counts)
