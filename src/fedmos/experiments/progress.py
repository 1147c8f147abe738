"""Progress of a comparison: lines, or a table that is redrawn."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

_TAIL = 2**16


class ComparisonObserver:
    """Is called as tuning and training of a method begin and end. Override the methods you need."""

    rounds_trained = 0
    """Rounds that have been trained since the comparison was started or continued, over all runs."""

    def tuning(self, label: str, folders: list[Path]) -> None:
        """The tuning runs of a method begin, in the given folders."""

    def tuned(self, label: str, chosen: str) -> None:
        """The step size, and other fields of the grid, are chosen."""

    def training(self, label: str, folders: list[Path]) -> None:
        """The runs of the table begin, in the given folders."""

    def trained(self, label: str, outcome: str) -> None:
        """The runs of the table have ended."""


class LineObserver(ComparisonObserver):
    """Prints a line when tuning or training of a method has ended."""

    def __init__(self, echo: Callable[[str], Any]) -> None:
        self._echo = echo

    def tuned(self, label: str, chosen: str) -> None:
        self._echo(f"{label}: step size {chosen}")

    def trained(self, label: str, outcome: str) -> None:
        self._echo(f"{label}: {outcome}")


class LiveTable(ComparisonObserver):
    """A table of all methods, read from the metrics files that the runs write."""

    def __init__(self, title: str, labels: list[str], rounds: int, metric: str) -> None:
        self._title, self._rounds, self._metric = title, rounds, metric
        self._state = dict.fromkeys(labels, "waits")
        self._chosen = dict.fromkeys(labels, "")
        self._outcome = dict.fromkeys(labels, "")
        self._folders: dict[str, list[Path]] = {label: [] for label in labels}

    def tuning(self, label: str, folders: list[Path]) -> None:
        self._state[label], self._folders[label] = "tunes", folders

    def tuned(self, label: str, chosen: str) -> None:
        self._state[label], self._chosen[label], self._folders[label] = "waits", chosen, []

    def training(self, label: str, folders: list[Path]) -> None:
        self._state[label], self._folders[label] = "trains", folders

    def trained(self, label: str, outcome: str) -> None:
        self._state[label], self._outcome[label], self._folders[label] = "done", outcome, []

    def table(self) -> Table:
        """Draw the current state."""
        from rich.markup import escape
        from rich.table import Table

        table = Table(title=escape(self._title), title_justify="left")
        for heading in ("method", "step size", "", "rounds", self._metric):
            table.add_column(heading)
        for label, state in self._state.items():
            latest = [record for folder in self._folders[label] if (record := last_record(folder)) is not None]
            rounds = " ".join(str(record["round"]) for record in latest)
            values = " ".join(f"{v:.3f}" for record in latest if (v := record.get(self._metric)) is not None)
            table.add_row(
                escape(label),
                self._chosen[label],
                "prepares" if state in ("tunes", "trains") and not latest else state,
                f"{rounds} of {self._rounds}" if rounds else "",
                escape(self._outcome[label]) or values,
            )
        return table


def last_record(folder: Path) -> dict[str, Any] | None:
    """Return the last complete line of a run's metrics; None if there is none, or it is too long."""
    try:
        with (folder / "metrics.jsonl").open("rb") as file:
            file.seek(0, 2)
            file.seek(max(0, file.tell() - _TAIL))
            lines = file.read().split(b"\n")
        record = json.loads(lines[-2])
    except (OSError, ValueError, IndexError):
        return None
    return record if isinstance(record, dict) and "round" in record else None


@contextmanager
def observed(console: Console, title: str, labels: list[str], rounds: int, metric: str) -> Iterator[ComparisonObserver]:
    """Yield an observer that redraws a table if the console is a terminal, and else prints lines."""
    from rich.live import Live

    if not console.is_terminal:
        yield LineObserver(lambda line: console.print(line, highlight=False, markup=False))
        return
    table = LiveTable(title, labels, rounds, metric)
    with Live(get_renderable=table.table, console=console, refresh_per_second=2, transient=True):
        yield table
