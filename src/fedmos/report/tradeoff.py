"""The metric that methods reach for the megabytes they have sent, and the Pareto front of all methods."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

from .curves import Curve


class BestSoFar(NamedTuple):
    """The best value of a method, mean over seeds, by the megabytes sent in both directions; only improvements."""

    megabytes: list[float]
    values: list[float]


class FrontPoint(NamedTuple):
    """A value that no method reaches with fewer megabytes."""

    megabytes: float
    value: float
    method: int
    """The number of the method."""


class Tradeoff(NamedTuple):
    """What methods reach for the megabytes they have sent."""

    methods: list[BestSoFar | None]
    """None for a method without values."""
    front: list[FrontPoint]
    """By megabytes; values improve from point to point."""

    def stretches(self) -> list[tuple[FrontPoint, FrontPoint]]:
        """Return the parts of the front that belong to one method: its first and its last point."""
        if not self.front:
            return []
        starts = [0, *(k for k, (a, b) in enumerate(pairwise(self.front), 1) if a.method != b.method), len(self.front)]
        return [(self.front[a], self.front[b - 1]) for a, b in pairwise(starts)]


def tradeoff(lines: Sequence[Curve], lower: bool) -> Tradeoff:
    """Compare curves of a metric by the megabytes sent. `lower`: whether smaller values are better."""
    methods = [_best_so_far(line, lower) for line in lines]
    points = [
        FrontPoint(x, y, i)
        for i, best in enumerate(methods)
        if best is not None
        for x, y in zip(best.megabytes, best.values, strict=True)
    ]
    front: list[FrontPoint] = []
    sign = 1 if lower else -1
    for point in sorted(points, key=lambda p: (p.megabytes, sign * p.value, p.method)):
        if not front or sign * point.value < sign * front[-1].value:
            front.append(point)
    return Tradeoff(methods, front)


def _best_so_far(line: Curve, lower: bool) -> BestSoFar | None:
    sign = 1 if lower else -1
    best = BestSoFar([], [])
    for x, y in zip(line.megabytes, line.mean, strict=True):
        if not best.values or sign * y < sign * best.values[-1]:
            best.megabytes.append(x)
            best.values.append(y)
    return best if best.values else None
