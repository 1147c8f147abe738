"""The figure and the report of a comparison."""

from __future__ import annotations

from pathlib import Path

from ..experiments.table import ComparisonTable
from ..storage.files import replace_file
from .curves import chart
from .page import html
from .study import read_study


def write_report(table: ComparisonTable, title: str, out: Path) -> None:
    """Write curves.svg, if the target's metric was measured, and report.html into a comparison's folder."""
    if (curves := chart(table, title)) is not None:
        replace_file(out / "curves.svg", curves.encode())
    replace_file(out / "report.html", html(read_study([out])).encode())
