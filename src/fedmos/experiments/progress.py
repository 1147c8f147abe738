"""Watching a comparison: lines as it goes on, or a table that is redrawn."""

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
    """Override what you need; each is told of a method by its label."""

    def tuning(self, label: str, folders: list[Path]) -> None:
        """Runs for choosing the step size begin."""

    def tuned(self, label: str, chosen: str) -> None:
        """The step size, and whatever else the grid has, is chosen."""

    def training(self, label: str, folders: list[Path]) -> None:
        """The runs of the table begin."""

    def trained(self, label: str, outcome: str) -> None:
        """They have ended."""


class Lines(ComparisonObserver):
    """A line for every end."""

    def __init__(self, say: Callable[[str], Any]) -> None:
        self._say = say

    def tuned(self, label: str, chosen: str) -> None:
        self._say(f"{label}: step size {chosen}")

    def trained(self, label: str, outcome: str) -> None:
        self._say(f"{label}: {outcome}")


class LiveTable(ComparisonObserver):
    """A table of all methods, read from the files that the runs write as they go on."""

    def __init__(self, title: str, labels: list[str], rounds: int, metric: str) -> None:
        self._title, self._rounds, self._metric = title, rounds, metric
        self._doing = dict.fromkeys(labels, "waits")
        self._chosen = dict.fromkeys(labels, "")
        self._outcome = dict.fromkeys(labels, "")
        self._folders: dict[str, list[Path]] = {label: [] for label in labels}

    def tuning(self, label: str, folders: list[Path]) -> None:
        self._doing[label], self._folders[label] = "tunes", folders

    def tuned(self, label: str, chosen: str) -> None:
        self._doing[label], self._chosen[label], self._folders[label] = "waits", chosen, []

    def training(self, label: str, folders: list[Path]) -> None:
        self._doing[label], self._folders[label] = "trains", folders

    def trained(self, label: str, outcome: str) -> None:
        self._doing[label], self._outcome[label], self._folders[label] = "done", outcome, []

    def table(self) -> Table:
        """As things stand."""
        from rich.markup import escape
        from rich.table import Table

        table = Table(title=escape(self._title), title_justify="left")
        for heading in ("method", "step size", "", "rounds", self._metric):
            table.add_column(heading)
        for label, doing in self._doing.items():
            latest = [record for folder in self._folders[label] if (record := last_record(folder)) is not None]
            rounds = " ".join(str(record["round"]) for record in latest)
            values = " ".join(f"{v:.3f}" for record in latest if (v := record.get(self._metric)) is not None)
            table.add_row(
                escape(label),
                self._chosen[label],
                doing,
                f"{rounds} of {self._rounds}" if rounds else "",
                escape(self._outcome[label]) or values,
            )
        return table


def last_record(folder: Path) -> dict[str, Any] | None:
    """The newest complete line of a run's metrics; None if there is none, or none that is short."""
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
def watching(console: Console, title: str, labels: list[str], rounds: int, metric: str) -> Iterator[ComparisonObserver]:
    """A table that is redrawn where there is a terminal, lines elsewhere."""
    from rich.live import Live

    if not console.is_terminal:
        yield Lines(lambda line: console.print(line, highlight=False, markup=False))
        return
    board = LiveTable(title, labels, rounds, metric)
    with Live(get_renderable=board.table, console=console, refresh_per_second=2, transient=True):
        yield board
