"""Figures of results in memory and in folders: `fm.plot`."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from ..core.formatting import format_value
from ..core.validation import one_of, require
from ..experiments.table import ComparisonTable
from ..run.result import Result
from .checks import ReportSource, Target
from .plot import ALIASES, AXES, ENDINGS, draw, save
from .sources import read_source, source_of
from .study import check_measured, study_of


def plot_results(runs: Any, metrics: list[str], x: str, target: Target | None, out: Path | None) -> Any:
    """Return the figure of `fm.plot`, and write it to `out` if that is given."""
    x = ALIASES.get(x, x) if isinstance(x, str) else x
    require("plot", "x", x, one_of(*AXES))
    if out is not None and out.suffix.lower() not in ENDINGS:
        raise ValueError(f"plot: 'out' must end in one of {', '.join(ENDINGS)}, got {out.name!r}")
    table = table_of(runs, target)
    for metric in metrics:
        check_measured(table.results, metric, "plot: 'metric'")
    figure = draw(table, metrics or [table.metric], x)
    if out is not None:
        save(figure, out)
    return figure


def table_of(runs: Any, target: Target | None) -> ComparisonTable:
    """Return the methods of results and folders, in one table."""
    if isinstance(made := getattr(runs, "table", None), ComparisonTable):  # of fm.compare
        return made
    sources = list(_sources(runs))
    if not sources:
        raise ValueError("plot: 'runs' must hold at least one result or folder, got none")
    return study_of(sources, target, option="plot: 'target'").table


def _sources(runs: Any) -> Iterator[ReportSource]:
    """Yield the sources of results, folders, lists of them, and mappings from labels to them."""
    items: list[tuple[str | None, Any]] = []
    for label, given in runs.items() if isinstance(runs, Mapping) else [(None, runs)]:
        single = isinstance(given, Result | str | os.PathLike) or not isinstance(given, Iterable)
        items += [(label, one) for one in ([given] if single else given)]
    for number, (label, one) in enumerate(items, 1):
        if isinstance(one, Result):
            yield source_of(one, Path(f"result {number}"), label)
        elif isinstance(one, str | os.PathLike):
            yield read_source(Path(one), label)
        else:
            raise ValueError(f"plot: 'runs' must be results or folders of runs, got {format_value(one)}")
