"""What each method needed to reach a target, and what it had at the end: numbers over seeds."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from ..core.history import History
from ..run.result import Result

_RESAMPLES = 10_000
_CONFIDENCE = 0.95


class Cost(NamedTuple):
    """What a run had spent when it reached the target."""

    rounds: int
    megabytes_down: float
    megabytes_up: float
    megabytes: float
    seconds: float | None
    """Simulated; None without a clock."""


def cost_to(history: History, metric: str, target: float) -> Cost | None:
    """None if the target was never reached."""
    record = history.first(metric, target)
    if record is None:
        return None
    spent = [r for r in history if r.round <= record.round]
    down, up = sum(r.bytes_down for r in spent), sum(r.bytes_up for r in spent)
    return Cost(record.round, down / 1e6, up / 1e6, (down + up) / 1e6, record.clock)


class Tried(NamedTuple):
    """A point of a grid, and what became of it."""

    values: dict[str, float]
    rounds: int | None
    """To the target; None if it was never reached, or cannot be known yet."""
    final: float | None
    """The target's metric at the end; None for a run that diverged."""


class Tuned(NamedTuple):
    """The numbers that a method took from its grid."""

    values: dict[str, float]
    edges: dict[str, str]
    """Of those at an end of the grid, beyond which something better may lie: "smallest" or "largest"."""
    tried: list[Tried]

    def __str__(self) -> str:
        """The step size, other numbers, and a warning where the grid was too narrow."""
        words = [f"{value:g}" if field == "lr" else f"{field} {value:g}" for field, value in self.values.items()]
        notes = [f"{'' if field == 'lr' else field + ' '}{end} tried" for field, end in self.edges.items()]
        return ", ".join(words) + (f" ({', '.join(notes)})" if notes else "")


@dataclass(frozen=True, kw_only=True)
class MethodResult:
    """One method: its runs, by seed."""

    label: str
    lr: float | None
    runs: Mapping[int, History]
    tuned: Tuned | None = None
    """None for one with numbers of its own."""
    against: str | None = None
    """The label of the row that it is measured against, where that is not the table's baseline."""
    ended_early: frozenset[int] = frozenset()
    """The seeds whose run diverged or was interrupted."""
    infos: Mapping[int, Mapping[str, Any]] = field(default_factory=dict, repr=False)
    """What ran, by seed, as a result's `info`."""

    @classmethod
    def of(cls, label: str, lr: float | None, results: Mapping[int, Result], **more: Any) -> MethodResult:
        return cls(
            label=label,
            lr=lr,
            **more,
            runs={seed: result.history for seed, result in results.items()},
            ended_early=frozenset(seed for seed, result in results.items() if result.interrupted),
            infos={seed: result.info for seed, result in results.items()},
        )

    def costs(self, metric: str, target: float) -> dict[int, Cost | None]:
        """By seed."""
        return {seed: cost_to(history, metric, target) for seed, history in self.runs.items()}

    def final(self, metric: str) -> dict[int, float | None]:
        """By seed; None where nothing was measured."""
        return {seed: last_value(history, metric) for seed, history in self.runs.items()}

    def worst_clients(self) -> dict[int, float]:
        """The mean accuracy of the tenth of clients that the final model serves worst, by seed where it is known."""
        known = {seed: info.get("client_accuracy", {}) for seed, info in self.infos.items()}
        return {seed: float(found["worst_tenth"]) for seed, found in known.items() if "worst_tenth" in found}


def last_value(history: History, metric: str) -> float | None:
    """The newest value of a metric."""
    values = [getattr(record, metric) for record in history if getattr(record, metric) is not None]
    return values[-1] if values else None


def final_mean(row: MethodResult, metric: str) -> float:
    """What a method has at the end, in the mean over its seeds."""
    known = [v for v in row.final(metric).values() if v is not None]
    if not known:
        raise ValueError(f"Cannot take the final {metric} of {row.label} for a target because it was never measured")
    mean = statistics.mean(known)
    if not math.isfinite(mean):
        raise ValueError(f"Cannot take the final {metric} of {row.label} for a target because it is {mean}")
    return mean


class Ratio(NamedTuple):
    """How many times less a method needs than the baseline."""

    value: float
    low: float | None
    high: float | None
    """A 95 % bootstrap interval over seeds; None for a single seed."""
    seeds: int
    """In how many seeds both reached the target."""


def ratio(baseline: Mapping[int, float | None], own: Mapping[int, float | None]) -> Ratio | None:
    """The baseline's mean over the method's, over the seeds in which both are known; None if there are none.

    Seeds are drawn again with replacement, both methods' numbers of a seed together: they share its split and its
    initial weights. The draws are the same in every call.
    """
    pairs = [(baseline[seed], own[seed]) for seed in own if baseline.get(seed) is not None and own[seed] is not None]
    table = np.array(pairs, dtype=np.float64).reshape(-1, 2)
    if not len(table) or not table[:, 1].all():
        return None
    value = float(table[:, 0].sum() / table[:, 1].sum())
    if len(table) == 1:
        return Ratio(value, None, None, 1)
    draws = np.random.Generator(np.random.PCG64(0)).integers(len(table), size=(_RESAMPLES, len(table)))
    sums = table[draws].sum(1)
    tail = (1 - _CONFIDENCE) / 2
    low, high = np.quantile(sums[:, 0] / sums[:, 1], [tail, 1 - tail])
    return Ratio(value, float(low), float(high), len(table))


def deviation(values: Sequence[float]) -> float:
    """The sample standard deviation; nan where not all are finite."""
    return statistics.stdev(values) if all(map(math.isfinite, values)) else math.nan


def spread(values: Sequence[float | None], digits: int = 0) -> str:
    """mean ± standard deviation; "not reached" where all are missing, and how many were reached where some are."""
    known = [v for v in values if v is not None]
    if not known:
        return "not reached"
    text = f"{statistics.mean(known):.{digits}f}"
    if len(known) > 1:
        text += f" ± {deviation(known):.{digits}f}"
    return text if len(known) == len(values) else f"{text} ({len(known)} of {len(values)} reached it)"
