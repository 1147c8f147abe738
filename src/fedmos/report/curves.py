"""A method's metric over rounds, megabytes and simulated time, with the range over its seeds."""

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Any

from ..experiments.seed_statistics import MethodResult
from ..experiments.table import ComparisonTable
from .figure import Line, line_chart

MOST = 300
"""Points of a curve in a report at most."""


@dataclass(frozen=True, kw_only=True)
class Curve:
    """A metric by round: the mean over the seeds that measured it, their range, and their number."""

    label: str
    rounds: list[int]
    megabytes: list[float]
    seconds: list[float] | None
    """Simulated time; None without a clock."""
    mean: list[float]
    low: list[float]
    high: list[float]
    seeds: list[int]

    def thinned(self, most: int = MOST) -> Curve:
        """Return a curve of at most `most` points: both ends, and the lowest and highest mean of each interval."""
        n = len(self.rounds)
        if n <= most:
            return self
        kept = {0, n - 1}
        intervals = (most - 2) // 2
        for i in range(intervals):
            interval = range(i * n // intervals, (i + 1) * n // intervals)
            kept |= {min(interval, key=self.mean.__getitem__), max(interval, key=self.mean.__getitem__)}
        order = sorted(kept)
        thin: dict[str, Any] = {
            name: [values[i] for i in order] for name, values in vars(self).items() if isinstance(values, list)
        }
        return replace(self, **thin)


def curve(result: MethodResult, metric: str) -> Curve:
    """Return the curve of a metric, or of a measure of `fm.Diagnostics`, without values that are not finite.

    It is empty if the method does not train the model that the metric is about.
    """
    points: dict[int, list[tuple[float, float, float | None]]] = {}
    for history in result.runs.values() if result.trains(metric) else ():
        spent = accumulate((r.bytes_down + r.bytes_up) / 1e6 for r in history)
        for record, megabytes in zip(history, spent, strict=True):
            value = record.value(metric)
            if value is None:
                value = (record.diagnostics or {}).get(metric)
            if value is not None and math.isfinite(value):
                points.setdefault(record.round, []).append((value, megabytes, record.clock))
    rounds = sorted(points)
    values = [[value for value, _, _ in points[t]] for t in rounds]
    clocks = [[clock for _, _, clock in points[t] if clock is not None] for t in rounds]
    return Curve(
        label=result.label,
        rounds=rounds,
        megabytes=[statistics.fmean(m for _, m, _ in points[t]) for t in rounds],
        seconds=[statistics.fmean(c) for c in clocks] if rounds and all(clocks) else None,
        mean=[statistics.fmean(v) for v in values],
        low=[min(v) for v in values],
        high=[max(v) for v in values],
        seeds=[len(v) for v in values],
    )


def chart(table: ComparisonTable, title: str) -> str | None:
    """Return an SVG document of the target's metric over rounds, mean and range; None if it was never measured."""
    curves = [c for c in (curve(result, table.metric).thinned() for result in table.results) if c.rounds]
    lines = [Line(label=c.label, x=c.rounds, y=c.mean, low=c.low, high=c.high) for c in curves]
    if not lines:
        return None
    return line_chart(lines, title=title, x="round", y=table.metric, level=table.target)
