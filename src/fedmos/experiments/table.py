"""The table of a comparison, as text, Markdown, LaTeX, CSV and JSON."""

from __future__ import annotations

import csv
import io
import json
import math
import re
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any, NamedTuple

from ..storage.files import replace_file
from .seed_statistics import Cost, MethodResult, Ratio, Tuned, deviation, ratio, spread

_QUANTITIES = {"rounds": "rounds", "megabytes": "MB", "seconds": "simulated time"}
"""What a speed-up can be counted in."""


class Column(NamedTuple):
    """A heading, and a row's cell under it."""

    heading: str
    cell: Callable[[MethodResult], str]
    detail: bool = False
    """Left out where there is little room."""


@dataclass(frozen=True, kw_only=True)
class Table:
    """Methods, and what each needed to reach the target."""

    metric: str
    target: float | None
    """None to show only what methods have at the end."""
    baseline: str
    rows: Sequence[MethodResult]

    def columns(self, *, brief: bool = False) -> list[Column]:
        """All of them, or those that fit a terminal."""
        columns = [Column("method", lambda row: row.label)]
        if any(row.lr is not None for row in self.rows):
            columns.append(Column("step size", _step_size))
        if self.target is not None:
            columns += self._to_target()
        columns.append(Column(f"final {self.metric}", self._final))
        if any(row.worst_clients() for row in self.rows):
            columns.append(Column("accuracy of the worst 10 % of clients", _worst, detail=True))
        if self.target is not None and len(self.rows) > 1:
            columns += [
                Column(f"speed-up over {self.baseline} in {_QUANTITIES[name]}", partial(self._faster, name))
                for name in self._counted
            ]
        return [column for column in columns if not (brief and column.detail)]

    def cells(self, *, brief: bool = False) -> list[list[str]]:
        columns = self.columns(brief=brief)
        return [[column.cell(row) for column in columns] for row in self.rows]

    @cached_property
    def _costs(self) -> dict[str, dict[int, Cost | None]]:
        """By label and seed."""
        if self.target is None:
            return {row.label: dict.fromkeys(row.runs) for row in self.rows}
        return {row.label: row.costs(self.metric, self.target) for row in self.rows}

    @cached_property
    def _counted(self) -> list[str]:
        """What costs are counted in: seconds only if all runs had a clock."""
        clocks = [record.clock for row in self.rows for run in row.runs.values() for record in run]
        return [name for name in _QUANTITIES if name != "seconds" or (clocks and None not in clocks)]

    def costs(self, label: str, name: str) -> dict[int, float | None]:
        """What each seed's run of a method needed of a quantity."""
        return {seed: None if c is None else getattr(c, name) for seed, c in self._costs[label].items()}

    def reference(self, row: MethodResult) -> str:
        """The label of the row that a row is measured against."""
        return row.against or self.baseline

    def speed_up(self, row: MethodResult, name: str) -> Ratio | None:
        """Against the baseline, in a quantity."""
        return ratio(self.costs(self.reference(row), name), self.costs(row.label, name))

    def _to_target(self) -> list[Column]:
        def cell(name: str, digits: int) -> Callable[[MethodResult], str]:
            return lambda row: spread(list(self.costs(row.label, name).values()), digits)

        aim = f"{self.metric} {self.target:g}" if self.target is not None else ""
        columns = [
            Column(f"rounds to {aim}", cell("rounds", 0)),
            Column("MB down", cell("megabytes_down", 2), detail=True),
            Column("MB up", cell("megabytes_up", 2), detail=True),
            Column(f"MB to {aim}", cell("megabytes", 2)),
        ]
        if "seconds" in self._counted:
            columns.append(Column(f"simulated seconds to {aim}", cell("seconds", 1)))
        return columns

    def _final(self, row: MethodResult) -> str:
        values = list(row.final(self.metric).values())
        known = [v for v in values if v is not None]
        text = spread(known, 3) if known else "not measured"
        early = len(row.ended_early)
        return text if not early else f"{text} ({early} of {len(values)} ended early)"

    def _faster(self, name: str, row: MethodResult) -> str:
        if row.label == self.reference(row):
            return "baseline"
        costs = [self.costs(label, name) for label in (row.label, self.reference(row))]
        for own, words in zip(costs, ("not reached", "baseline not reached"), strict=True):
            if all(v is None for v in own.values()):
                return words
        found = self.speed_up(row, name)
        if found is None:
            return "no seed in common"
        notes = [] if found.low is None else [f"{found.low:.2f} to {found.high:.2f}"]
        if found.seeds < len(row.runs):
            notes.append(f"{found.seeds} of {len(row.runs)} seeds")
        return f"{found.value:.2f}×" + (f" ({'; '.join(notes)})" if notes else "")

    def to_dict(self) -> dict[str, Any]:
        """Everything in numbers; null for "not reached"."""
        return {
            "metric": self.metric,
            "target": self.target,
            "baseline": self.baseline,
            "methods": [self._numbers(row) for row in self.rows],
        }

    def _numbers(self, row: MethodResult) -> dict[str, Any]:
        names = [name for name in Cost._fields if name != "seconds" or "seconds" in self._counted]
        per_seed = {name: self.costs(row.label, name) for name in names} | {"final": row.final(self.metric)}
        if worst := row.worst_clients():
            per_seed["worst_clients"] = {seed: worst.get(seed) for seed in row.runs}
        known = {name: [v for v in values.values() if v is not None] for name, values in per_seed.items()}
        return {
            "method": row.label,
            "step_size": row.lr,
            "tuned": None if row.tuned is None else _tuning(row.tuned),
            "against": self.reference(row),
            "seeds": list(row.runs),
            "reached": len(known["rounds"]),
            "ended_early": sorted(row.ended_early),
            "per_seed": {name: [_finite(v) for v in values.values()] for name, values in per_seed.items()},
            "mean": {name: _finite(statistics.mean(v)) if v else None for name, v in known.items()},
            "std": {name: _finite(deviation(v)) if len(v) > 1 else None for name, v in known.items()},
            "speed_up": {
                name: None if (found := self.speed_up(row, name)) is None else found._asdict() for name in self._counted
            },
        }


def _step_size(row: MethodResult) -> str:
    if row.tuned is not None:
        return str(row.tuned)
    return "" if row.lr is None else f"{row.lr:g}"


def _worst(row: MethodResult) -> str:
    known = list(row.worst_clients().values())
    return spread(known, 3) if known else "not measured"


def _tuning(tuned: Tuned) -> dict[str, Any]:
    tried = [one._replace(final=_finite(one.final))._asdict() for one in tuned.tried]
    return tuned._asdict() | {"tried": tried}


def _finite(v: float | None) -> float | None:
    return v if v is not None and math.isfinite(v) else None


def as_json(table: Table) -> str:
    return json.dumps(table.to_dict(), indent=1, ensure_ascii=False, allow_nan=False) + "\n"


def as_csv(table: Table) -> str:
    """A line for each method, a column for each number; what was not reached is empty."""
    lines = [_flat({k: v for k, v in one.items() if k != "per_seed"}) for one in table.to_dict()["methods"]]
    for line in lines:
        line.pop("tuned_tried", None)
    out = io.StringIO()
    writer = csv.DictWriter(out, list(dict.fromkeys(key for line in lines for key in line)), lineterminator="\n")
    writer.writeheader()
    writer.writerows(lines)
    return out.getvalue()


def _flat(table: Mapping[str, Any], before: str = "") -> dict[str, Any]:
    """Without tables inside."""
    flat: dict[str, Any] = {}
    for key, value in table.items():
        if isinstance(value, Mapping):
            flat |= _flat(value, f"{before}{key}_")
        else:
            flat[before + key] = " ".join(map(str, value)) if isinstance(value, list) else value
    return flat


def as_markdown(table: Table) -> str:
    columns = table.columns()
    lines = [[c.heading for c in columns], [":--", *["--:"] * (len(columns) - 1)], *table.cells()]
    escaped = [[re.sub(r"([|\\`*_<>\[\]])", r"\\\1", cell) for cell in line] for line in lines]
    escaped[1] = lines[1]
    return "".join(f"| {' | '.join(line)} |\n" for line in escaped)


_LATEX = {c: f"\\{c}" for c in "&%$#_{}"} | {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "±": r"$\pm$",
    "×": r"$\times$",
    "<": r"$<$",
    ">": r"$>$",
    "[": "{[}",  # which, like a star, would belong to the line break before it
    "*": "{*}",
}


def as_latex(table: Table) -> str:
    """A `tabular` with the rules of the package booktabs."""

    def line(cells: Sequence[str]) -> str:
        return " & ".join("".join(_LATEX.get(c, c) for c in cell) for cell in cells) + r" \\"

    columns = table.columns()
    return "\n".join(
        [
            rf"\begin{{tabular}}{{l{'r' * (len(columns) - 1)}}}",
            r"\toprule",
            line([c.heading for c in columns]),
            r"\midrule",
            *map(line, table.cells()),
            r"\bottomrule",
            r"\end{tabular}",
            "",
        ]
    )


def write(table: Table, folder: Path) -> None:
    """table.json, table.csv, table.md and table.tex."""
    for ending, text in (("json", as_json), ("csv", as_csv), ("md", as_markdown), ("tex", as_latex)):
        replace_file(folder / f"table.{ending}", text(table).encode())
