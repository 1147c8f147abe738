"""The conclusion of a table in a sentence: the method that needs the least communication, and how certain that is."""

from __future__ import annotations

import statistics

from ..experiments.seed_statistics import MIN_SEEDS, MethodResult
from ..experiments.table import ComparisonTable


def answer(table: ComparisonTable) -> str:
    """Return the conclusion in plain words. Only methods that reached the target with every seed can be the best."""
    if table.target is None:
        return f"No target was given, so methods are shown by their final {table.metric}."
    goal = f"{table.metric} {table.target:g}"
    spent = {
        result.label: [v for v in table.costs(result.label, "megabytes").values() if v is not None]
        for result in table.results
    }
    sure = [result for result in table.results if len(spent[result.label]) == len(result.runs)]
    if not any(spent.values()):
        return f"No method reached {goal}."
    if not sure:
        return f"No method reached {goal} with every seed."
    best = min(sure, key=lambda result: statistics.mean(spent[result.label]))
    words = f"{best.label} needs the least communication to reach {goal}: {statistics.mean(spent[best.label]):.2f} MB"
    return f"{words}{_compared(table, best)}"


def _compared(table: ComparisonTable, best: MethodResult) -> str:
    """Return the second half of the sentence: how much less the best method needs than its baseline."""
    if len(table.results) == 1:
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
        return f"{words}. An interval needs {MIN_SEEDS} seeds or more."
    clear = "" if found.low > 1 else ", so seeds do not settle which needs less"
    return f"{words} (95 % interval over {found.seeds} seeds: {found.low:.2f} to {found.high:.2f}{clear})."
