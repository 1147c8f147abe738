"""`fedmos report` and `fedmos plot`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

Runs = Annotated[
    list[Path],
    typer.Argument(metavar="RUN...", help="Folders of runs, of comparisons, or of both.", show_default=False),
]
Target = Annotated[
    str | None, typer.Option("--target", metavar="METRIC=VALUE", help="The value to reach, if the runs record none.")
]
Baseline = Annotated[
    str | None, typer.Option("--baseline", metavar="METHOD", help="The method that others are measured against.")
]
console = Console(emoji=False)


def report(
    runs: Runs,
    out: Annotated[Path, typer.Option(help="The file to write.")] = Path("report.html"),
    target: Target = None,
    baseline: Baseline = None,
    watch: Annotated[
        bool, typer.Option("--watch", help="Write the report again as rounds end, until the comparison is complete.")
    ] = False,
) -> None:
    """Write one HTML file about runs: curves over rounds, bytes and time, the table, the split, the configuration.

    Runs that differ only in their seed become one method. Runs on different data or with different targets are refused.
    With --watch, the folder may be that of a comparison or run that is still running; the page reloads itself.
    """
    if watch:
        _watch(runs, out, target, baseline)
        return
    from ..report.page import html
    from ..report.study import parse_target, read_study
    from ..storage.files import replace_file, storage_errors

    page = html(read_study(runs, parse_target(target, own=True), baseline))
    with storage_errors(f"write {out}", "use another name"):
        replace_file(out, page.encode())
    console.print(f"Report: {out}", highlight=False, markup=False)


def _watch(runs: list[Path], out: Path, target: str | None, baseline: str | None) -> None:
    from ..report.study import parse_target
    from ..report.watch import watch

    if len(runs) > 1:
        raise ValueError(f"Cannot watch {len(runs)} folders at once; use --watch with one")

    def echo(line: str) -> None:
        console.print(line, highlight=False, markup=False)

    try:
        watch(runs[0], out, parse_target(target), baseline, echo=echo)
    except KeyboardInterrupt:
        echo(f"Stopped. The report so far: {out}" if out.exists() else "Stopped before the first round.")


def plot(
    runs: Runs,
    out: Annotated[Path, typer.Option(help="The figure: a name that ends in .pdf, .png or .svg.")] = Path("figure.pdf"),
    metric: Annotated[
        list[str] | None, typer.Option(help="A panel for this metric; repeatable (default: the target's).")
    ] = None,
    x: Annotated[str, typer.Option("--x", help="rounds, megabytes or seconds (simulated).")] = "rounds",
    target: Target = None,
) -> None:
    """Draw curves for a paper: mean over seeds, their range, and the target."""
    from ..core.validation import one_of
    from ..report.plot import ALIASES, AXES, plot
    from ..report.study import check_measured, parse_target, read_study

    x = ALIASES.get(x, x)
    if (fault := one_of(*AXES).fault(x)) is not None:
        raise ValueError(f"--x must be {fault}, got {x!r}")
    table = read_study(runs, parse_target(target, own=True)).table
    for name in metric or []:
        check_measured(table.results, name, "--metric")
    plot(table, out, metric or [table.metric], x)
    console.print(f"Figure: {out}", highlight=False, markup=False)
