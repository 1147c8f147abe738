"""The best model of a run so far: the option `keep_best`."""

from __future__ import annotations

import math

from torch import Tensor

from ..core.history import History
from ..core.metric_names import improves
from ..engine.snapshot import BestModel


class BestModelKeeper:
    """Keeps the model of the round in which a metric was best.

    Args:
        metric: The metric; None to keep nothing.
        best: The best model of the earlier part of a resumed run.
    """

    def __init__(self, metric: str | None, best: BestModel | None) -> None:
        self._metric, self._best = metric, best

    def update(self, history: History, x: Tensor) -> None:
        """Keep the model x of the last round if it is the best. Calling it twice after a round is harmless."""
        metric = self._metric
        value = None if metric is None or not len(history) else history[-1].value(metric)
        if metric is None or value is None or not math.isfinite(value):
            return
        best = None if self._best is None else history[self._best.round - 1].value(metric)
        if best is None or improves(metric, value, best):
            self._best = BestModel(history[-1].round, x.clone())

    def on_cpu(self) -> BestModel | None:
        """Return the best model for a snapshot."""
        return None if self._best is None else self._best._replace(params=self._best.params.cpu())
