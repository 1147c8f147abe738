"""The answer of a table in a sentence or two: who needs the least communication, and how sure that is."""

from __future__ import annotations

import statistics

from ..experiments.seed_statistics import MethodResult
from ..experiments.table import Table


def answer(table: Table) -> str:
    """Plain words; methods that reached the target with every seed come first."""
    if table.target is None:
        return f"No target was given, so methods are shown by their final {table.metric}."
    aim = f"{table.metric} {table.target:g}"
    spent = {
        row.label: [v for v in table.costs(row.label, "megabytes").values() if v is not None] for row in table.rows
    }
    sure = [row for row in table.rows if len(spent[row.label]) == len(row.runs)]
    if not any(spent.values()):
        return f"No method reached {aim}."
    if not sure:
        return f"No method reached {aim} with every seed."
    best = min(sure, key=lambda row: statistics.mean(spent[row.label]))
    words = f"{best.label} needs the least communication to reach {aim}: {statistics.mean(spent[best.label]):.2f} MB"
    return f"{words}{_compared(table, best)}"


def _compared(table: Table, best: MethodResult) -> str:
    """How much less that is than the baseline's."""
    if len(table.rows) == 1:
        return "."
    baseline = table.reference(best)
    if best.label == baseline:
        return "; it is the baseline."
    found = table.speed_up(best, "megabytes")
    if found is None:
        reached = any(v is not None for v in table.costs(baseline, "megabytes").values())
        return f"; {baseline}, the baseline, {'has no seed in common' if reached else 'did not reach it'}."
    words = f", {found.value:.2f} times less than {baseline}"
    if found.low is None or found.high is None:
        return f"{words}. One seed says nothing of chance."
    clear = "" if found.low > 1 else ", so seeds do not settle which needs less"
    return f"{words} (95 % interval over {found.seeds} seeds: {found.low:.2f} to {found.high:.2f}{clear})."
