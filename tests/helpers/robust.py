"""Aggregation rules in NumPy, row by row and coordinate by coordinate."""

from __future__ import annotations

import numpy as np

from fedmos import aggregation

RULES = [
    aggregation.Mean(),
    aggregation.Median(),
    aggregation.TrimmedMean(0.2),
    aggregation.Krum(1),
    aggregation.Krum(1, keep=3),
    aggregation.GeometricMedian(),
    aggregation.ClippedMean(0.03),
]
"""Every rule, for rounds of five clients or more."""


def oracle(rule, rows: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Return what the rule takes for the mean of the rows."""
    rows, weights = np.asarray(rows, np.float64), np.asarray(weights, np.float64)
    return {
        aggregation.Mean: lambda: np.average(rows, axis=0, weights=weights),
        aggregation.Median: lambda: np.array([_median(column, weights) for column in rows.T]),
        aggregation.TrimmedMean: lambda: np.array([_trimmed(column, weights, rule.fraction) for column in rows.T]),
        aggregation.Krum: lambda: _krum(rows, weights, rule.faulty, rule.keep),
        aggregation.GeometricMedian: lambda: _geometric_median(rows, weights),
        aggregation.ClippedMean: lambda: _clipped(rows, weights, rule.bound),
    }[type(rule)]()


def _median(values: np.ndarray, weights: np.ndarray) -> float:
    """Return the midpoint of all values with at most half of the weight below and at most half above."""
    half = weights.sum() / 2 + 1e-9
    central = [v for v in values if weights[values < v].sum() <= half and weights[values > v].sum() <= half]
    return (min(central) + max(central)) / 2


def _trimmed(values: np.ndarray, weights: np.ndarray, fraction: float) -> float:
    k, order = int(fraction * len(values) + 1e-9), np.argsort(values)
    kept = order[k : len(values) - k]
    return float(np.average(values[kept], weights=weights[kept]))


def _krum(rows: np.ndarray, weights: np.ndarray, faulty: int, keep: int) -> np.ndarray:
    scores = []
    for i, row in enumerate(rows):
        distances = sorted(float(((row - other) ** 2).sum()) for j, other in enumerate(rows) if j != i)
        scores.append(sum(distances[: len(rows) - faulty - 2]))
    kept = np.argsort(scores)[:keep]
    return np.average(rows[kept], axis=0, weights=weights[kept])


def _geometric_median(rows: np.ndarray, weights: np.ndarray) -> np.ndarray:
    z = np.median(rows, axis=0)
    for _ in range(2000):
        b = weights / np.maximum(np.linalg.norm(rows - z, axis=1), 1e-12)
        z = np.average(rows, axis=0, weights=b)
    return z


def _clipped(rows: np.ndarray, weights: np.ndarray, bound: float) -> np.ndarray:
    factors = [min(1.0, bound / np.linalg.norm(row)) for row in rows]
    return np.average(rows * np.array(factors)[:, None], axis=0, weights=weights)
