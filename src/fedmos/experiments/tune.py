"""Choose a method's values from a grid, by runs on a seed that the table does not use."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence

from ..config.fields import FinalOf
from ..config.schema import Tuning
from ..core.metric_names import is_loss
from ..run.result import Result
from .runner import AnyComparison, PlannedRun
from .seed_statistics import GridTrial, TunedValues, last_value, trains_alone


def judged_by(config: AnyComparison, results: Sequence[Result]) -> str:
    """Return the metric by which a method is tuned: the target's or, for local training alone, that of own models."""
    alone = any(trains_alone(one.info) for one in results) and not config.metric.startswith("personal_")
    names = ("personal_accuracy", "personal_loss") if alone else ()
    measured = (name for name in names if any(last_value(one.history, name) is not None for one in results))
    return next(measured, config.metric)


def trial_of(config: AnyComparison, run: PlannedRun, result: Result, metric: str) -> GridTrial:
    """Return the outcome of a tuning run. An interrupted run, e.g. one that diverged, has no final value."""
    level = config.level
    given = None if isinstance(level, FinalOf) or metric != config.metric else level
    rounds = None if given is None else result.rounds_to(metric, given)
    return GridTrial(dict(run.values), rounds, None if result.interrupted else last_value(result.history, metric))


def choose(tune: Tuning, metric: str, trials: Sequence[GridTrial]) -> TunedValues:
    """Return the best point of a grid. Of equally good points, it is the one with the smallest values.

    Args:
        tune: How trials are judged.
        metric: The target's metric.
        trials: One trial per point of the grid.
    """
    best = min(trials, key=lambda trial: (penalty(tune, metric, trial), *trial.values.values()))
    edges = {
        field: edge
        for field, value in best.values.items()
        if (edge := _edge(value, {trial.values[field] for trial in trials})) is not None
    }
    return TunedValues(best.values, edges, list(trials))


def penalty(tune: Tuning, metric: str, trial: GridTrial) -> tuple[float, float]:
    """Return what tuning minimises: the rounds to the target if they count, then how bad the final value is."""
    final = trial.final
    worst = math.inf if final is None or math.isnan(final) else final if is_loss(metric) else -final
    if tune.by == "final":
        return 0.0, worst
    return (math.inf, worst) if trial.rounds is None else (trial.rounds, 0.0)


def _edge(value: float, values: Collection[float]) -> str | None:
    low, high = min(values), max(values)
    if low == high or low < value < high:
        return None
    return "smallest" if value == low else "largest"
