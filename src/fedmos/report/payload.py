"""The data of the report's figures, as the page's scripts read them."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from typing import Any

from ..core.history import METRICS
from ..core.metric_names import client_metric_title, is_client_metric, is_loss
from ..evaluation.diagnostics import MEASURES
from ..experiments.table import ComparisonTable
from .client_accuracy import ClientAccuracy, ClientScatter
from .curves import Curve, curve
from .participation import Participation
from .split import SplitFigure
from .study import ReportStudy
from .tradeoff import Tradeoff

COLOURS = ("#1e91e6", "#af4b1e", "#4ba087", "#be7d00", "#644bf0", "#a582be", "#556e7d", "#cd4150")
"""Each has a contrast of at least 3 to a white and to a dark page; all differ with red-green colour blindness too."""
_TITLES = {
    "accuracy": "test accuracy",
    "test_loss": "test loss",
    "train_loss": "training loss",
    "train_accuracy": "training accuracy",
    "client_accuracy_worst": "accuracy of the worst 10 % of clients",
}
AXES = {"rounds": "round", "megabytes": "megabytes sent, both ways", "seconds": "simulated seconds"}
"""Horizontal axes and their titles."""


def title(metric: str) -> str:
    """Return how the page names a metric."""
    if metric in _TITLES:
        return _TITLES[metric]
    return client_metric_title(metric) if is_client_metric(metric) else metric.replace("_", " ")


def metrics_of(study: ReportStudy) -> list[str]:
    """Return the metrics of every run, then those that the user has given."""
    own = [name for result in study.results for run in result.runs.values() for name in run.metric_names]
    return list(dict.fromkeys([*METRICS, *own]))


def all_curves(study: ReportStudy) -> tuple[dict[str, list[Curve]], dict[str, str]]:
    """Return the curves of every measured metric, the target's first, and the horizontal axes that they have."""
    results, first = study.results, study.table.metric
    measured = {name for result in results for run in result.runs.values() for r in run for name in r.diagnostics or ()}
    order = [first, *(m for m in metrics_of(study) if m != first), *(m for m in MEASURES if m in measured)]
    curves = {metric: [curve(result, metric) for result in results] for metric in order}
    curves = {metric: lines for metric, lines in curves.items() if any(line.rounds for line in lines)}
    clocked = any(line.seconds is not None for lines in curves.values() for line in lines)
    return curves, {name: words for name, words in AXES.items() if name != "seconds" or clocked}


def payload(
    study: ReportStudy,
    curves: dict[str, list[Curve]],
    axes: dict[str, str],
    split: SplitFigure | str,
    accuracies: Sequence[ClientAccuracy | None],
    participations: Sequence[Participation | None],
    traded: Tradeoff | None = None,
) -> dict[str, Any]:
    """Return everything that the scripts of the page draw."""
    groups = tuning_groups(study)
    return {
        "methods": [result.label for result in study.results],
        "colours": COLOURS,
        "axes": axes,
        "metrics": [_metric(study, metric, lines) for metric, lines in curves.items()],
        "sort": {"final": final_values(study.table), "cost": target_costs(study.table)},
        "split": _bubbles(split) if isinstance(split, SplitFigure) else None,
        "groups": groups,
        "styles": [groups[:i].count(group) for i, group in enumerate(groups)],
        "served": [
            None
            if a is None
            else {"shares": a.shares, "accuracies": _rounded(a.accuracies), "histogram": _rounded(a.histogram)}
            for a in accuracies
        ],
        "chosen": [None if p is None else {"ranks": p.ranks, "shares": _rounded(p.shares)} for p in participations],
        "traded": None if traded is None else _traded(traded, study.table),
        "live": None if study.progress is None else {"every": study.progress.every},
    }


def scatter_data(scatter: ClientScatter | None) -> dict[str, Any] | None:
    """Return the accuracies of clients with each method and with the one that they are held against."""
    if scatter is None:
        return None
    return {
        "reference": scatter.reference,
        "methods": [
            None if one is None else {"reference": _rounded(one.reference), "own": _rounded(one.own)}
            for one in scatter.methods
        ],
    }


def tuning_groups(study: ReportStudy) -> list[str]:
    """Return for each method whether its values are those of the configuration ("given") or "tuned"."""
    return ["given" if result.tuned is None else "tuned" for result in study.results]


def final_values(table: ComparisonTable) -> list[float | None]:
    """Return each method's final value, as the mean over its seeds."""
    values = [[v for v in result.final(table.metric).values() if v is not None] for result in table.results]
    return [_finite_mean(known) for known in values]


def target_costs(table: ComparisonTable) -> list[float | None]:
    """Return the megabytes that each method needs for the target; None unless every seed reaches it."""
    costs = [list(table.costs(result.label, "megabytes").values()) for result in table.results]
    return [_finite_mean([v for v in one if v is not None]) if None not in one else None for one in costs]


def _finite_mean(values: Sequence[float]) -> float | None:
    mean = statistics.fmean(values) if values else math.nan
    return float(f"{mean:.6g}") if math.isfinite(mean) else None


def _metric(study: ReportStudy, metric: str, lines: list[Curve]) -> dict[str, Any]:
    return {
        "name": metric,
        "title": title(metric),
        "lower": is_loss(metric),
        "target": study.table.target if metric == study.table.metric else None,
        "curves": [_drawn(line) for line in lines],
    }


def _traded(traded: Tradeoff, table: ComparisonTable) -> dict[str, Any]:
    return {
        "title": title(table.metric),
        "target": table.target,
        "methods": [
            None if best is None else {"megabytes": _rounded(best.megabytes), "values": _rounded(best.values)}
            for best in traded.methods
        ],
        "front": {
            "megabytes": _rounded([point.megabytes for point in traded.front]),
            "values": _rounded([point.value for point in traded.front]),
            "methods": [point.method for point in traded.front],
        },
    }


def _rounded(values: Sequence[float]) -> list[float]:
    """Round to six significant digits."""
    return [float(f"{v:.6g}") for v in values]


def _drawn(line: Curve) -> dict[str, Any] | None:
    if not line.rounds:
        return None
    thin = line.thinned()
    several = max(thin.seeds) > 1
    return {
        "rounds": thin.rounds,
        "megabytes": _rounded(thin.megabytes),
        "seconds": None if thin.seconds is None else _rounded(thin.seconds),
        "mean": _rounded(thin.mean),
        "low": _rounded(thin.low) if several else None,
        "high": _rounded(thin.high) if several else None,
        "seeds": thin.seeds if several else None,
    }


def _bubbles(split: SplitFigure) -> dict[str, Any]:
    points = [(i, c, int(n)) for i, line in enumerate(split.counts) for c, n in enumerate(line) if n > 0]
    return {
        "clients": split.clients,
        "classes": split.classes,
        "points": points,
        "largest": max((n for _, _, n in points), default=1),
    }
