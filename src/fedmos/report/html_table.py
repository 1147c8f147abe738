"""Tables of the report: best values marked, sortable, and scrolling in a box of their own."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import NamedTuple

from ..core.metric_names import is_loss
from ..experiments.seed_statistics import spread
from ..experiments.table import ComparisonTable, TableColumn

_HINT = '<p class="swipe" aria-hidden="true">Scroll sideways for more columns →</p>'


class TableCell(NamedTuple):
    """A cell: its text, the number that it is sorted by, and whether that is the best of its column."""

    text: str
    value: float | None = None
    best: bool = False
    detail: bool = False
    """Whether the cell is hidden until all columns are shown."""

    def html(self) -> str:
        """Return the element."""
        kinds = " ".join(name for name, wanted in (("best", self.best), ("detail", self.detail)) if wanted)
        key = "" if self.value is None else f"{self.value:.8g}"
        classes = f' class="{kinds}"' if kinds else ""
        text = self.text.replace(" (", "\n(", 1)  # cells are preformatted: a note is the only thing that may wrap
        return f'<td{classes} data-value="{key}">{escape(text)}</td>'


def html_table(
    caption: str,
    headings: Iterable[str | TableCell],
    lines: Iterable[Sequence[str | TableCell]],
    *,
    kind: str = "",
    name: str = "",
    sortable: bool = False,
) -> str:
    """Return a table whose first column names the rows.

    Args:
        caption: What the table shows, below it and for screen readers.
        headings: The columns' headings.
        lines: The cells, row by row; plain text, or a `TableCell`.
        kind: Classes of the table.
        name: Identifier of the table.
        sortable: Whether a click on a heading sorts the rows.
    """
    head = "".join(_heading(h) for h in headings)
    body = "".join(
        f'<tr><th scope="row">{escape(str(first))}</th>'
        + "".join(cell.html() if isinstance(cell, TableCell) else f"<td>{escape(cell)}</td>" for cell in rest)
        + "</tr>\n"
        for first, *rest in lines
    )
    classes = " ".join(filter(None, (kind, "sortable" if sortable else "")))
    identifier = f'id="{name}" ' if name else ""
    return (
        f'<div class="scroll-box">{_HINT}'
        f'<div class="scroll" role="region" tabindex="0" aria-label="{escape(caption)}">'
        f'<table {identifier}class="{classes}"><caption>{escape(caption)}</caption>\n'
        f"<thead><tr>{head}</tr></thead>\n<tbody>\n{body}</tbody></table></div></div>"
    )


def _heading(heading: str | TableCell) -> str:
    if isinstance(heading, str):
        return f'<th scope="col">{escape(heading)}</th>'
    detail = ' class="detail"' if heading.detail else ""
    return f'<th scope="col"{detail}>{escape(heading.text)}</th>'


def marked_cells(values: Sequence[float], digits: int) -> list[TableCell]:
    """Return a column of numbers with the highest marked as the best."""
    best = _best(values, "highest")
    return [TableCell(f"{v:.{digits}f}", v, best=v == best) for v in values]


def spread_cells(finals: Sequence[Mapping[int, float | None]], metric: str) -> list[TableCell]:
    """Return a column of mean ± standard deviation of a metric's final values, by method and seed, the best marked."""
    known = [[v for v in values.values() if v is not None] for values in finals]
    means = [statistics.fmean(values) if values else None for values in known]
    best = _best(means, "lowest" if is_loss(metric) else "highest")
    return [
        TableCell(spread(values, 4) if values else "", mean, best=best is not None and mean == best)
        for values, mean in zip(known, means, strict=True)
    ]


def _best(values: Sequence[float | None], which: str | None) -> float | None:
    """Return the best of several values; None if there is no choice."""
    known = [v for v in values if v is not None and math.isfinite(v)]
    if which is None or len(values) < 2 or not known:
        return None
    return min(known) if which == "lowest" else max(known)


def outcome_table(caption: str, table: ComparisonTable) -> str:
    """Return the table of a comparison; a button shows the columns that brief tables leave out."""
    first, *columns = table.columns()
    cells = [_column(column, table) for column in columns]
    lines = [[first.cell(result), *row] for result, *row in zip(table.results, *cells, strict=True)]
    headings: list[str | TableCell] = [first.heading]
    headings += [TableCell(column.heading, detail=column.detail) for column in columns]
    made = html_table(caption, headings, lines, kind="outcome", name="outcome", sortable=True)
    if not any(column.detail for column in columns):
        return made
    button = '<button type="button" class="quiet" data-columns="outcome" aria-pressed="false">All columns</button>'
    return made + button


def _column(column: TableColumn, table: ComparisonTable) -> list[TableCell]:
    values = [None if column.value is None else column.value(result) for result in table.results]
    best = _best(values, column.best)
    return [
        TableCell(column.cell(result), value, best=best is not None and value == best, detail=column.detail)
        for result, value in zip(table.results, values, strict=True)
    ]
