"""Choosing a method's numbers from a grid, by runs on a seed that the table does not use."""

from __future__ import annotations

import math
from collections.abc import Sequence

from ..config.fields import FinalOf
from ..config.schema import CompareConfig, Method, Tuning
from ..core.metric_names import is_loss
from ..run.result import Result
from .seed_statistics import Tried, Tuned, last_value


def choose(config: CompareConfig, tune: Tuning, method: Method, results: Sequence[Result]) -> Tuned:
    """The best point of a method's grid; `results` are of its points in order."""
    points = tune.points(method)
    tried = [_tried(config, point, result) for point, result in zip(points, results, strict=True)]
    # The smallest of equally good ones.
    best = min(tried, key=lambda one: (badness(tune, config.metric, one.rounds, one.final), *one.values.values()))
    edges = {field: end for field, values in tune.grid(method).items() if (end := _edge(best.values[field], values))}
    return Tuned(best.values, edges, tried)


def _tried(config: CompareConfig, point: dict[str, float], result: Result) -> Tried:
    level = config.level
    rounds = None if isinstance(level, FinalOf) else result.rounds_to(config.metric, level)
    return Tried(point, rounds, None if result.interrupted else last_value(result.history, config.metric))


def badness(tune: Tuning, metric: str, rounds: int | None, final: float | None) -> tuple[float, float]:
    """What to minimise: rounds to the target if it was reached and counts, then how bad the last value is."""
    worst = math.inf if final is None or math.isnan(final) else final if is_loss(metric) else -final
    if tune.by == "final":
        return 0.0, worst
    return (math.inf, worst) if rounds is None else (rounds, 0.0)


def _edge(value: float, values: Sequence[float]) -> str | None:
    if len(values) == 1 or min(values) < value < max(values):
        return None
    return "smallest" if value == min(values) else "largest"
