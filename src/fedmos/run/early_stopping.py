"""Early stopping: ends a run whose metric no longer improves."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import NamedTuple
from weakref import WeakKeyDictionary

from ..core.callback import Callback
from ..core.history import History
from ..core.metric_names import improves
from ..core.validation import Rule, check, count, non_negative


class _Plateau(NamedTuple):
    """What is known of the first rounds of a history."""

    rounds: int = 0
    best: float | None = None
    round: int = 0
    """The round, from 1, of the last improvement."""


@dataclass(frozen=True, eq=False)
class EarlyStopping(Callback):
    """Ends a run when a metric has not improved for some rounds.

    The run then counts as finished: its result is not `interrupted`, and resuming it with the same callback plays no
    further round. `result.info["stopped"]` names the callback.

    Args:
        metric: A metric of the run, such as "accuracy" or "test_loss". Whether smaller is better follows from its name.
        patience: Number of rounds without an improvement after which the run ends, at an evaluated round.
        min_delta: An improvement is larger than this.

    Raises:
        ValueError: If an argument is out of range; `fm.run` raises it if the run does not measure the metric.

    Example:
        >>> stopping = fm.EarlyStopping("test_loss", patience=3, min_delta=10.0)
        >>> result = fm.run(
        ...     model, data, fm.FedAvg(lr=0.1), fm.Uniform(m=3), rounds=50, local_steps=1, batch_size=8,
        ...     callbacks=[stopping],
        ... )
        >>> len(result.history), result.interrupted
        (4, False)
    """

    metric: str = "accuracy"
    patience: int = 10
    min_delta: float = 0.0
    _seen: WeakKeyDictionary[History, _Plateau] = field(default_factory=WeakKeyDictionary, init=False, repr=False)

    def __post_init__(self) -> None:
        check(
            self,
            metric=Rule("the name of a metric", lambda v: isinstance(v, str)),
            patience=count,
            min_delta=non_negative,
        )

    def should_stop(self, history: History) -> bool:
        """Return whether the last round is evaluated and `patience` rounds after the last improvement, or later."""
        plateau = self._seen.get(history, _Plateau())
        for record in history.since(plateau.rounds):
            value = record.value(self.metric)
            plateau = plateau._replace(rounds=record.round)
            if value is not None and math.isfinite(value) and self._improves(value, plateau.best):
                plateau = plateau._replace(best=value, round=record.round)
        self._seen[history] = plateau
        measured = len(history) > 0 and history[-1].value(self.metric) is not None
        return measured and plateau.rounds - plateau.round >= self.patience

    def _improves(self, value: float, best: float | None) -> bool:
        return best is None or improves(self.metric, value, best, self.min_delta)
