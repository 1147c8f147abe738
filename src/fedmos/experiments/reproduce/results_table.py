"""The table of a part: published values beside measured ones, from the records."""

from __future__ import annotations

import statistics
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..seed_statistics import Ratio, ratio, spread
from .record import RunRecord, StudyRecords
from .study import ResultColumn, StudyPart
from .verdict import Verdict

_NOTHING = "–"


@dataclass(frozen=True)
class ResultsTable:
    """The runs of a part, by method, and the table that is made of them.

    Example:
        >>> print(ResultsTable.of(by_key("fedcm-table3/digits"), Path("docs/reproduction/data")).markdown())
    """

    part: StudyPart
    runs: Mapping[str, Sequence[RunRecord]]
    sessions: Sequence[Mapping[str, Any]]

    @classmethod
    def of(cls, part: StudyPart, folder: Path) -> ResultsTable:
        """Read the records in a folder."""
        source = part.source_of_runs
        records = StudyRecords(folder, source.study)
        return cls(part, {label: records.counted(source, label) for label in part.labels}, records.sessions(source))

    def values(self, column: ResultColumn, label: str) -> dict[int, float | None]:
        """Return a method's values of a column, by seed; None where one was not reached or not measured."""
        level = self._level(column)
        found = {run["seed"]: _value(column, run, level) for run in self.runs[label]}
        return {seed: None if v is None else v * column.scale for seed, v in found.items()}

    def _level(self, column: ResultColumn) -> float | None:
        """Return the value to reach of a `..._to_final` column: the mean of method `of` over its last rounds."""
        if column.of is None:
            return None
        ends = [run["mean_last"].get(column.metric) for run in self.runs.get(column.of, ())]
        known = [v for v in ends if v is not None]
        return statistics.mean(known) if known else None

    def headings(self) -> list[str]:
        """Return the headings of the columns."""
        headings = ["method", "step size", "seeds", "rounds"]
        for column in self.part.columns:
            headings += [f"{column.heading}: published", "measured"] if self._published(column) else [column.heading]
            if self._is_judged(column):
                headings.append("verdict")
        return headings

    def rows(self) -> list[list[str]]:
        """Return the formatted cells, one row per method that has run."""
        return [self._row(label) for label in self.part.labels if self.runs[label]]

    def _row(self, label: str) -> list[str]:
        runs = self.runs[label]
        cells = [label, self._step_size(label), str(len(runs)), _rounds(runs)]
        for column in self.part.columns:
            if self._published(column):
                cells.append(str(self.part.published.get(label, {}).get(column.key, _NOTHING)))
            cells.append(self._measured(column, label))
            if self._is_judged(column):
                cells.append(str(self.verdict(column, label) or _NOTHING))
        return cells

    def _is_judged(self, column: ResultColumn) -> bool:
        return self.part.agreement is not None and self._published(column)

    def verdict(self, column: ResultColumn, label: str) -> Verdict | None:
        """Return whether a measured value agrees with the published one.

        None if one of them is missing, or a run has fewer rounds than the published ones and has not diverged.
        """
        published = self.part.published.get(label, {}).get(column.key)
        rounds = int(self.part.source_of_runs.table["rounds"])
        short = any(run["rounds"] < rounds and run["ended"] != "diverged" for run in self.runs[label])
        if self.part.agreement is None or published is None or short:
            return None
        values = [v for v in self.values(column, label).values() if v is not None]
        return self.part.agreement.judge(published, values, column.digits) if values else None

    def verdicts(self) -> dict[tuple[str, str], Verdict]:
        """Return all verdicts, by method and column."""
        found = {(label, c.key): self.verdict(c, label) for label in self.part.labels for c in self.part.columns}
        return {key: verdict for key, verdict in found.items() if verdict is not None}

    @property
    def seconds(self) -> float:
        """The training time of all sessions."""
        return sum(float(one["seconds"] or 0.0) for one in self.sessions)

    def _published(self, column: ResultColumn) -> bool:
        return any(column.key in row for row in self.part.published.values())

    def _measured(self, column: ResultColumn, label: str) -> str:
        values = list(self.values(column, label).values())
        if column.of is not None and self._level(column) is None:
            return _NOTHING
        if all(v is None for v in values) and "_to" not in column.kind:
            return _NOTHING
        return spread(values, column.digits)

    def _step_size(self, label: str) -> str:
        """Format the step size of the runs, with a note if it is at an end of the grid."""
        lrs = sorted({float(run["lr"]) for run in self.runs[label]})
        tried = self.part.source_of_runs.table.get("tune", {}).get("lr", ())
        ends = {min(tried): " (smallest tried)", max(tried): " (largest tried)"} if len(tried) > 1 else {}
        return ", ".join(f"{lr:g}{ends.get(lr, '')}" for lr in lrs)

    def contrasts(self) -> list[list[str]]:
        """Return a table of how many times as much baselines need, with bootstrap intervals over common seeds."""
        columns = [column for column in self.part.columns if column.kind in ("rounds_to", "megabytes_to")]
        rows = []
        for label, baseline in self.part.versus:
            found = [ratio(self.values(column, baseline), self.values(column, label)) for column in columns]
            if any(found):
                rows.append([f"{baseline} against {label}", *map(_ratio, found)])
        return [["times as much", *(column.heading for column in columns)], *rows] if rows else []

    def facts(self) -> str:
        """Return a sentence on the hardware, the version of torch, the precision and the training time."""
        if not self.sessions:
            return ""
        kinds: dict[str, float] = {}
        for one in self.sessions:
            words = f"{one['hardware']}, torch {one['torch']}, {one['precision']}"
            kinds[words] = kinds.get(words, 0.0) + float(one["seconds"] or 0.0)
        unknown = any(one["seconds"] is None for one in self.sessions)
        times = [f"{words}: {duration(seconds)}" if seconds else words for words, seconds in kinds.items()]
        return "Trained on " + "; ".join(times) + ("; time not recorded." if unknown else ".")

    def not_run(self) -> str:
        """Return a sentence on the methods without runs and their published values; empty if all have run."""
        missing = [label for label in self.part.labels if not self.runs[label]]
        separator = "; " if any("," in label for label in missing) else ", "
        published = []
        for column in self.part.columns:
            rows = [(label, self.part.published.get(label, {}).get(column.key)) for label in missing]
            values = [f"{label}{':' * ('=' in label)} {value}" for label, value in rows if value is not None]
            published += [f"{separator.join(values)} ({column.heading})"] if values else []
        names = "." if len(missing) == len(self.part.labels) else f": {separator.join(missing)}."
        known = f" Published: {'; '.join(published)}." if published else ""
        return f"Not run{names}{known}" if missing else ""

    def markdown(self) -> str:
        """Return the tables as Markdown."""
        tables = [markdown([self.headings(), *self.rows()])] if any(self.runs.values()) else []
        tables += [markdown(self.contrasts())] if self.contrasts() else []
        missing = self.not_run()
        return "\n".join([*tables, wrapped(missing) + "\n"] if missing else tables)


def wrapped(text: str) -> str:
    """Return a paragraph in lines of at most 120 characters."""
    return textwrap.fill(text.strip(), 120, break_long_words=False, break_on_hyphens=False)


def markdown(lines: Sequence[Sequence[str]]) -> str:
    """Return a Markdown table; the first line holds the headings."""
    rule = ["---"] + ["---:"] * (len(lines[0]) - 1)
    return "".join("| " + " | ".join(cells) + " |\n" for cells in (lines[0], rule, *lines[1:]))


def _ratio(found: Ratio | None) -> str:
    if found is None:
        return _NOTHING
    interval = "" if found.low is None else f"{found.low:.2f} to {found.high:.2f}; "
    return f"{found.value:.2f} ({interval}seeds: {found.seeds})"


def _value(column: ResultColumn, run: RunRecord, level: float | None) -> float | None:
    match column.kind:
        case "given":
            return _number(run["given"].get(column.key))
        case "last" | "mean_last" | "best":
            return _number(run.get(column.kind, {}).get(column.metric))
        case "best_clients":
            return _number(run.get("clients", {}).get("best"))
        case "mean_quarter":
            points = zip(run["curve"]["round"], run["curve"].get(column.metric, ()), strict=False)
            late = [value for at, value in points if at > 0.75 * run["rounds"]]
            return statistics.mean(late) if late else None
        case "rounds_to" | "megabytes_to":
            found = run["first"].get(column.target_key)
            return None if found is None else _number(found[column.kind == "megabytes_to"])
        case _:
            climb = run.get("climb", {}).get(column.metric, [])
            reached = next((point for point in climb if level is not None and point[1] >= level), None)
            return None if reached is None else _number(reached[0 if column.kind == "rounds_to_final" else 2])


def _number(v: Any) -> float | None:
    return None if v is None else float(v)


def _rounds(runs: Sequence[RunRecord]) -> str:
    """Format the numbers of rounds, and how many runs diverged."""
    lengths = sorted({int(run["rounds"]) for run in runs})
    text = f"{lengths[0]:,}" if len(lengths) == 1 else f"{lengths[0]:,} to {lengths[-1]:,}"
    diverged = sum(run["ended"] == "diverged" for run in runs)
    return text + (f" ({diverged} diverged)" if diverged else "")


def duration(seconds: float) -> str:
    """Format a time in seconds, minutes or hours."""
    minutes = seconds / 60
    if minutes < 2:
        return f"{seconds:.0f} s"
    return f"{minutes:.0f} min" if minutes < 120 else f"{minutes / 60:.1f} h"
