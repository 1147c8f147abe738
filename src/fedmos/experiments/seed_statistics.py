"""Statistics over seeds: the cost of reaching a target, final values, and ratios between methods."""

from __future__ import annotations

import math
import re
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from ..core.history import History
from ..run.result import Result

_RESAMPLES = 10_000
_CONFIDENCE = 0.95

MIN_SEEDS = 3
"""Seeds that a bootstrap interval needs. Resampling two seeds gives only their range, or one value."""


class TargetCost(NamedTuple):
    """What a run has spent when it reaches the target."""

    rounds: int
    megabytes_down: float
    megabytes_up: float
    megabytes: float
    seconds: float | None
    """Simulated; None without a clock."""


def cost_to(history: History, metric: str, target: float) -> TargetCost | None:
    """Return the cost of reaching a target; None if it was never reached."""
    record = history.first(metric, target)
    if record is None:
        return None
    spent = [r for r in history if r.round <= record.round]
    down, up = sum(r.bytes_down for r in spent), sum(r.bytes_up for r in spent)
    return TargetCost(record.round, down / 1e6, up / 1e6, (down + up) / 1e6, record.clock)


class GridTrial(NamedTuple):
    """A point of a grid and the outcome of its run."""

    values: dict[str, float]
    rounds: int | None
    """Rounds to the target; None if it was never reached, or is the final value of a method."""
    final: float | None
    """The target's metric at the end; None for a run that diverged."""


class TunedValues(NamedTuple):
    """The best point of a method's grid."""

    values: dict[str, float]
    edges: dict[str, str]
    """Fields whose value is at an end of the grid, so that a better one can lie beyond: "smallest" or "largest"."""
    tried: list[GridTrial]

    def __str__(self) -> str:
        """Format the step size, other values, and a note for each value at an end of the grid."""
        words = [f"{value:g}" if field == "lr" else f"{field} {value:g}" for field, value in self.values.items()]
        notes = [f"{'' if field == 'lr' else field + ' '}{end} tried" for field, end in self.edges.items()]
        return ", ".join(words) + (f" ({', '.join(notes)})" if notes else "")


@dataclass(frozen=True, kw_only=True)
class MethodResult:
    """The runs of one method, by seed: a row of the table.

    Example:
        >>> results = {0: fm.run(...), 1: fm.run(..., seed=1)}
        >>> MethodResult.of("FedAvg", 0.1, results).final("accuracy")
    """

    label: str
    lr: float | None
    runs: Mapping[int, History]
    tuned: TunedValues | None = None
    """None for a method with the values of the configuration."""
    against: str | None = None
    """The label of the method that it is measured against, if that is not the table's baseline."""
    ended_early: frozenset[int] = frozenset()
    """Seeds whose run diverged or was interrupted."""
    infos: Mapping[int, Mapping[str, Any]] = field(default_factory=dict, repr=False)
    """The `info` of each run's result."""

    @classmethod
    def of(cls, label: str, lr: float | None, results: Mapping[int, Result], **more: Any) -> MethodResult:
        """Gather the results of a method's runs, by seed; `more` are further fields."""
        return cls(
            label=label,
            lr=lr,
            **more,
            runs={seed: result.history for seed, result in results.items()},
            ended_early=frozenset(seed for seed, result in results.items() if result.interrupted),
            infos={seed: result.info for seed, result in results.items()},
        )

    def trains(self, metric: str) -> bool:
        """Return whether the method trains the model that the metric is about.

        Local training alone has no global model: metrics but those of clients' own models are of the initial model.
        """
        return metric.startswith("personal_") or not any(map(trains_alone, self.infos.values()))

    def costs(self, metric: str, target: float) -> dict[int, TargetCost | None]:
        """Return the cost of reaching a target, by seed; None where it was never reached."""
        trained = self.trains(metric)
        return {seed: cost_to(run, metric, target) if trained else None for seed, run in self.runs.items()}

    def final(self, metric: str) -> dict[int, float | None]:
        """Return the last value of a metric, by seed; None where it was never measured, or not of a trained model."""
        trained = self.trains(metric)
        return {seed: last_value(run, metric) if trained else None for seed, run in self.runs.items()}

    @property
    def codecs(self) -> str:
        """The codecs of its messages in words; "" if it has none."""
        info = next(iter(self.infos.values()), {})
        links = {"up": info.get("uplink"), "down": info.get("downlink")}
        return ", ".join(f"{direction} {_codec(link)}" for direction, link in links.items() if link is not None)

    def worst_clients(self) -> dict[int, float]:
        """Return the mean accuracy of the worst 10 % of clients under the final model, by seed where it is known."""
        known = {seed: info.get("client_accuracy", {}) for seed, info in self.infos.items()}
        return {seed: float(found["worst_tenth"]) for seed, found in known.items() if "worst_tenth" in found}

    def mean_clients(self) -> dict[int, float]:
        """Return the mean accuracy over clients on their own test samples under the final models they use, by seed.

        Empty where clients were not evaluated on test samples (`evaluate_clients`).
        """
        known = {seed: info.get("client_accuracy", {}) for seed, info in self.infos.items()}
        return {seed: float(found["mean"]) for seed, found in known.items() if found.get("samples") == "test"}

    def epsilons(self) -> dict[int, float]:
        """Return the ε that each run has spent, by seed; empty for runs without privacy."""
        last = {seed: history[-1].epsilon for seed, history in self.runs.items() if len(history)}
        return {seed: epsilon for seed, epsilon in last.items() if epsilon is not None}


def trains_alone(info: Mapping[str, Any]) -> bool:
    """Return whether a run, by its `info`, is one of local training alone."""
    return re.match(r"LocalOnly\b", str(info.get("algorithm", ""))) is not None


def last_value(history: History, metric: str) -> float | None:
    """Return the last measured value of a metric; None if it was never measured."""
    values = [value for record in history if (value := record.value(metric)) is not None]
    return values[-1] if values else None


def final_mean(result: MethodResult, metric: str) -> float:
    """Return a method's final value, as the mean over its seeds.

    Raises:
        ValueError: If the metric was never measured, or the mean is not finite.
    """
    known = [v for v in result.final(metric).values() if v is not None]
    if not known:
        raise ValueError(f"Cannot take the final {metric} of {result.label} for a target because it was never measured")
    mean = statistics.mean(known)
    if not math.isfinite(mean):
        raise ValueError(f"Cannot take the final {metric} of {result.label} for a target because it is {mean}")
    return mean


class Ratio(NamedTuple):
    """How many times less a method needs than its baseline."""

    value: float
    low: float | None
    high: float | None
    """Ends of the 95 % bootstrap interval over seeds; None for fewer than three seeds."""
    seeds: int
    """Number of seeds with which both reached the target."""


def ratio(baseline: Mapping[int, float | None], own: Mapping[int, float | None]) -> Ratio | None:
    """Return the baseline's mean divided by the method's, over the seeds for which both are known; None without any.

    The bootstrap resamples seeds, with both methods' numbers of a seed kept together, because they share its split and
    its initial weights. The draws are the same in every call.
    """
    pairs = [(baseline[seed], own[seed]) for seed in own if baseline.get(seed) is not None and own[seed] is not None]
    table = np.array(pairs, dtype=np.float64).reshape(-1, 2)
    if not len(table) or not table[:, 1].all():
        return None
    value = float(table[:, 0].sum() / table[:, 1].sum())
    if len(table) < MIN_SEEDS:
        return Ratio(value, None, None, len(table))
    draws = np.random.Generator(np.random.PCG64(0)).integers(len(table), size=(_RESAMPLES, len(table)))
    sums = table[draws].sum(1)
    tail = (1 - _CONFIDENCE) / 2
    low, high = np.quantile(sums[:, 0] / sums[:, 1], [tail, 1 - tail])
    return Ratio(value, float(low), float(high), len(table))


def deviation(values: Sequence[float]) -> float:
    """Return the sample standard deviation; nan if not all values are finite."""
    return statistics.stdev(values) if all(map(math.isfinite, values)) else math.nan


def spread(values: Sequence[float | None], digits: int = 0) -> str:
    """Format mean ± standard deviation.

    "not reached" if all values are missing; if some are, a note gives the number of the others.

    Example:
        >>> spread([3, 5, None])
        '4 ± 1 (2 of 3 reached it)'
    """
    known = [v for v in values if v is not None]
    if not known:
        return "not reached"
    text = f"{statistics.mean(known):.{digits}f}"
    if len(known) > 1:
        text += f" ± {deviation(known):.{digits}f}"
    return text if len(known) == len(values) else f"{text} ({len(known)} of {len(values)} reached it)"


def _codec(link: Any) -> str:
    """Return the recorded option `uplink` or `downlink` in few words: codecs without the names of their fields."""
    if isinstance(link, Mapping):
        return ", ".join(f"{name} {_codec(one)}" for name, one in link.items())
    words = f"[{', '.join(link)}]" if isinstance(link, list) else str(link)
    return re.sub(r"\b[A-Za-z_]\w*=", "", words)
