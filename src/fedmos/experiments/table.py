"""The table of a comparison: its columns, cells and numbers."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, Literal, NamedTuple

from ..core.metric_names import is_loss
from .seed_statistics import MethodResult, Ratio, TargetCost, TunedValues, deviation, ratio, spread

_QUANTITIES = {"rounds": "rounds", "megabytes": "MB", "seconds": "simulated time"}
"""Quantities that have a speed-up, and how headings name them."""
_NO_MODEL = "–"
"""The cell of a method that has no global model, in a column about it."""


class TableColumn(NamedTuple):
    """A heading, and the function that formats a method's cell."""

    heading: str
    cell: Callable[[MethodResult], str]
    detail: bool = False
    """Whether brief tables leave the column out."""
    value: Callable[[MethodResult], float | None] | None = None
    """The number of a cell, for sorting; None unless it is known for every seed."""
    best: Literal["lowest", "highest"] | None = None
    """Which number of the column is the best."""


@dataclass(frozen=True, kw_only=True)
class ComparisonTable:
    """Methods and their cost of reaching the target, one row per method.

    Example:
        >>> table = compare(config, Path("runs/demo"))
        >>> print(as_markdown(table))
    """

    metric: str
    target: float | None
    """None to show only the final values."""
    baseline: str
    """The label of the method that others are measured against."""
    results: Sequence[MethodResult]

    def columns(self, *, brief: bool = False) -> list[TableColumn]:
        """Return all columns or, if `brief`, those that fit a terminal."""
        columns = [TableColumn("method", lambda result: result.label)]
        if any(result.lr is not None for result in self.results):
            columns.append(TableColumn("step size", _step_size, value=lambda result: result.lr))
        if self.coded:
            columns.append(TableColumn("codec", lambda result: result.codecs or "none"))
        if self.target is not None:
            columns += self._to_target()
        best: Literal["lowest", "highest"] = "lowest" if is_loss(self.metric) else "highest"
        final = partial(_final_mean, self.metric)
        columns.append(TableColumn(f"final {self.metric}", self._final, value=final, best=best))
        if any(result.epsilons() for result in self.results):
            columns.append(TableColumn("ε", _epsilon, value=_epsilon_mean, best="lowest"))
        tested = any(result.mean_clients() for result in self.results)
        if tested:
            columns.append(TableColumn("mean accuracy of clients", _clients, False, _clients_mean, "highest"))
        if any(result.worst_clients() for result in self.results):
            heading = "accuracy of the worst 10 % of clients"
            columns.append(TableColumn(heading, _worst, not tested, _worst_mean, "highest"))
        if self.target is not None and len(self.results) > 1:
            columns += [
                TableColumn(
                    f"speed-up over {self.baseline} in {_QUANTITIES[name]}",
                    partial(self._faster, name),
                    value=partial(self._ratio, name),
                    best="highest",
                )
                for name in self._counted
            ]
        return [column for column in columns if not (brief and column.detail)]

    @property
    def coded(self) -> bool:
        """Whether messages of a method are coded."""
        return any(result.codecs for result in self.results)

    def cells(self, *, brief: bool = False) -> list[list[str]]:
        """Return the formatted cells, row by row."""
        columns = self.columns(brief=brief)
        return [[column.cell(result) for column in columns] for result in self.results]

    @cached_property
    def _costs(self) -> dict[str, dict[int, TargetCost | None]]:
        """The cost of each run, by label and seed."""
        if self.target is None:
            return {result.label: dict.fromkeys(result.runs) for result in self.results}
        return {result.label: result.costs(self.metric, self.target) for result in self.results}

    @cached_property
    def _counted(self) -> list[str]:
        """Quantities of the table: seconds only if all runs have a simulated clock."""
        clocks = [record.clock for result in self.results for run in result.runs.values() for record in run]
        return [name for name in _QUANTITIES if name != "seconds" or (clocks and None not in clocks)]

    def costs(self, label: str, name: str) -> dict[int, float | None]:
        """Return how much of a quantity a method's runs needed to reach the target, by seed."""
        return {seed: None if c is None else getattr(c, name) for seed, c in self._costs[label].items()}

    def reference(self, result: MethodResult) -> str:
        """Return the label of the method that a method is measured against."""
        return result.against or self.baseline

    def speed_up(self, result: MethodResult, name: str) -> Ratio | None:
        """Return a method's speed-up over its baseline in a quantity; None if no seed reached the target with both."""
        return ratio(self.costs(self.reference(result), name), self.costs(result.label, name))

    def _to_target(self) -> list[TableColumn]:
        def column(heading: str, name: str, digits: int, detail: bool = False) -> TableColumn:
            def cell(result: MethodResult) -> str:
                costs = list(self.costs(result.label, name).values())
                return spread(costs, digits) if result.trains(self.metric) else _NO_MODEL

            def value(result: MethodResult) -> float | None:
                return _mean_of_all(list(self.costs(result.label, name).values()))

            return TableColumn(heading, cell, detail, value, "lowest")

        aim = f"{self.metric} {self.target:g}" if self.target is not None else ""
        columns = [
            column(f"rounds to {aim}", "rounds", 0),
            column("MB down", "megabytes_down", 2, detail=True),
            column("MB up", "megabytes_up", 2, detail=True),
            column(f"MB to {aim}", "megabytes", 2),
        ]
        if "seconds" in self._counted:
            columns.append(column(f"simulated seconds to {aim}", "seconds", 1))
        return columns

    def _final(self, result: MethodResult) -> str:
        values = list(result.final(self.metric).values())
        known = [v for v in values if v is not None]
        text = spread(known, 3) if known else "not measured" if result.trains(self.metric) else _NO_MODEL
        early = len(result.ended_early)
        return text if not early else f"{text} ({early} of {len(values)} ended early)"

    def _ratio(self, name: str, result: MethodResult) -> float | None:
        """Return a method's speed-up as a number; None unless every seed has reached the target."""
        found = self.speed_up(result, name)
        return found.value if found is not None and found.seeds == len(result.runs) else None

    def _faster(self, name: str, result: MethodResult) -> str:
        if result.label == self.reference(result):
            return "baseline"
        if not result.trains(self.metric):
            return _NO_MODEL
        costs = [self.costs(label, name) for label in (result.label, self.reference(result))]
        for own, words in zip(costs, ("not reached", "baseline not reached"), strict=True):
            if all(v is None for v in own.values()):
                return words
        found = self.speed_up(result, name)
        if found is None:
            return "no seed in common"
        notes = [] if found.low is None else [f"{found.low:.2f} to {found.high:.2f}"]
        if found.seeds < len(result.runs):
            notes.append(f"{found.seeds} of {len(result.runs)} seeds")
        return f"{found.value:.2f}×" + (f" ({'; '.join(notes)})" if notes else "")

    def to_dict(self) -> dict[str, Any]:
        """Return all numbers; None where the target was not reached."""
        return {
            "metric": self.metric,
            "target": self.target,
            "baseline": self.baseline,
            "methods": [self._numbers(result) for result in self.results],
        }

    def _numbers(self, result: MethodResult) -> dict[str, Any]:
        names = [name for name in TargetCost._fields if name != "seconds" or "seconds" in self._counted]
        per_seed = {name: self.costs(result.label, name) for name in names} | {"final": result.final(self.metric)}
        if spent := result.epsilons():
            per_seed["epsilon"] = {seed: spent.get(seed) for seed in result.runs}
        if means := result.mean_clients():
            per_seed["mean_clients"] = {seed: means.get(seed) for seed in result.runs}
        if worst := result.worst_clients():
            per_seed["worst_clients"] = {seed: worst.get(seed) for seed in result.runs}
        known = {name: [v for v in values.values() if v is not None] for name, values in per_seed.items()}
        speed_ups = {name: self.speed_up(result, name) for name in self._counted}
        return {
            "method": result.label,
            "step_size": result.lr,
            **({"codec": result.codecs} if self.coded else {}),
            "tuned": None if result.tuned is None else _tuning(result.tuned),
            "against": self.reference(result),
            "seeds": list(result.runs),
            "reached": len(known["rounds"]),
            "ended_early": sorted(result.ended_early),
            "per_seed": {name: [_finite(v) for v in values.values()] for name, values in per_seed.items()},
            "mean": {name: _finite(statistics.mean(v)) if v else None for name, v in known.items()},
            "std": {name: _finite(deviation(v)) if len(v) > 1 else None for name, v in known.items()},
            "speed_up": {name: None if found is None else found._asdict() for name, found in speed_ups.items()},
        }


def _step_size(result: MethodResult) -> str:
    if result.tuned is not None:
        return str(result.tuned)
    return "" if result.lr is None else f"{result.lr:g}"


def _epsilon(result: MethodResult) -> str:
    known = list(result.epsilons().values())
    if any(math.isinf(epsilon) for epsilon in known):
        return "∞"
    return spread(known, 3) if known else "∞"


def _epsilon_mean(result: MethodResult) -> float | None:
    return _mean_of_all(list(result.epsilons().values()))


def _clients(result: MethodResult) -> str:
    known = list(result.mean_clients().values())
    return spread(known, 3) if known else "not measured"


def _clients_mean(result: MethodResult) -> float | None:
    return _mean_of_all(list(result.mean_clients().values()))


def _worst(result: MethodResult) -> str:
    known = list(result.worst_clients().values())
    return spread(known, 3) if known else "not measured"


def _worst_mean(result: MethodResult) -> float | None:
    return _mean_of_all(list(result.worst_clients().values()))


def _final_mean(metric: str, result: MethodResult) -> float | None:
    return _mean_of_all(list(result.final(metric).values()))


def _mean_of_all(values: Sequence[float | None]) -> float | None:
    """Return the mean; None if a value is missing or not finite, or there is none."""
    known = [v for v in values if v is not None and math.isfinite(v)]
    return statistics.mean(known) if known and len(known) == len(values) else None


def _tuning(tuned: TunedValues) -> dict[str, Any]:
    tried = [one._replace(final=_finite(one.final))._asdict() for one in tuned.tried]
    return tuned._asdict() | {"tried": tried}


def _finite(v: float | None) -> float | None:
    return v if v is not None and math.isfinite(v) else None
