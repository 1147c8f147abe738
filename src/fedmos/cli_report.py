"""`fedmos report` and `fedmos plot`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

Runs = Annotated[
    list[Path], typer.Argument(metavar="RUN...", help="Folders of runs, of comparisons, or of both.", show_default=False)
]
Aim = Annotated[
    str | None, typer.Option("--target", metavar="METRIC=VALUE", help="What is to be reached, if the runs do not say.")
]
Baseline = Annotated[
    str | None, typer.Option("--baseline", metavar="METHOD", help="The method that others are measured against.")
]
console = Console()


def report(
    runs: Runs,
    out: Annotated[Path, typer.Option(help="The file to write.")] = Path("report.html"),
    target: Aim = None,
    baseline: Baseline = None,
) -> None:
    """Write one HTML file about runs: the table, curves over rounds, bytes and time, the split, the configuration.

    Runs that differ only in their seed become one method. Runs on different data or with different targets are refused.
    """
    from .report.page import html
    from .report.study import parse_target, study
    from .storage.files import replace_file

    page = html(study(runs, parse_target(target), baseline))
    replace_file(out, page.encode())
    console.print(f"Report: {out}", highlight=False, markup=False)
