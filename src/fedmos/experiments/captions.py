"""Notes below the table of a comparison: how its numbers were obtained."""

from __future__ import annotations

from collections.abc import Sequence

from ..config.schema import CompareConfig
from .runner import AnyComparison
from .seed_statistics import MIN_SEEDS
from .table import ComparisonTable


def caption(config: AnyComparison) -> str:
    """Return the note below the table: seeds, and where the step sizes come from."""
    how = "its own step size"
    if config.tune is not None:
        tune = config.tune
        best = {"rounds": "reached it first", "final": "ended best"}[tune.by]
        within = "" if tune.rounds is None else f" within {tune.rounds} rounds"
        picked = f"the {_grid_words(config)} that {best}{within} on seed {tune.seed}"
        if isinstance(config, CompareConfig) and any(method.grid for method in config.methods):
            picked += " (some with a grid of their own)"
        how = picked if tune.rows == "tuned" else f"{how} and, where it says tuned, with {picked}"
    many = len(config.seeds)
    spread = f"Mean ± standard deviation over {many} seeds" if many > 1 else "One seed"
    return f"{spread}; every method with {how}. MB count both directions."


def _grid_words(config: AnyComparison) -> str:
    """Return what was tried."""
    if isinstance(config, CompareConfig):
        return f"step size among {_joined(config.tune.lr if config.tune is not None else ())}"
    tried = "; ".join(f"{name} {_joined(values)}" for name, values in config.shared_grid.items())
    return f"values of its grid{f' ({tried})' if tried else ''}"


def _joined(values: Sequence[float]) -> str:
    return ", ".join(f"{value:g}" for value in values)


def notes(table: ComparisonTable) -> str:
    """Return the notes on the cells of a table: intervals of speed-ups, and methods without a global model."""
    alone = [result.label for result in table.results if not result.trains(table.metric)]
    verb = "has" if len(alone) == 1 else "have"
    model = f"{' and '.join(alone)} {verb} no global model, so cells about it are empty (–)." if alone else ""
    return f"{interval_note(table)} {model}".strip()


def interval_note(table: ComparisonTable) -> str:
    """Return what the table says of the intervals of its speed-ups: that they are there, or why not.

    Empty for a table without speed-ups.
    """
    compared = [result for result in table.results if result.label != table.reference(result)]
    found = [ratio for result in compared if (ratio := table.speed_up(result, "rounds")) is not None]
    if not found:
        return ""
    missing = f"needs {MIN_SEEDS} seeds or more in which both methods reach the target"
    if all(ratio.low is None for ratio in found):
        return f"Speed-ups have no interval, which {missing}."
    note = "In brackets, 95 % bootstrap intervals over seeds."
    return note if all(ratio.low is not None for ratio in found) else f"{note} An interval {missing}."
