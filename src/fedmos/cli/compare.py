"""`fedmos demo` and `fedmos compare`."""

from __future__ import annotations

from importlib import resources
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Annotated, Literal

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from .folders import free_folder
from .interrupts import command_line, continue_with
from .options import On, Overrides, Quiet

if TYPE_CHECKING:
    from ..config.schema import CompareConfig
    from ..experiments.table import ComparisonTable

console = Console(emoji=False)


def demo(
    set_: Overrides = None,
    out: Annotated[Path | None, typer.Option(help="Folder for the report (default: runs/demo, numbered).")] = None,
    quiet: Quiet = False,
) -> None:
    """Compare FedAvg, FedProx and FedMoS on real digits, two classes per client: about a minute.

    Prints the rounds and megabytes each method needs, and writes report.html and curves.svg.
    """
    with resources.as_file(resources.files("fedmos.config").joinpath("builtin/demo.toml")) as path:
        folder = out or free_folder(Path("runs/demo"))
        continue_with(lambda: command_line("demo", overrides=set_ or [], out=folder))
        _compare(path, set_ or [], folder, quiet)


def compare(
    configuration: Annotated[Path, typer.Argument(metavar="CONFIG.toml", help="Methods, seeds and a target.")],
    set_: Overrides = None,
    out: Annotated[Path | None, typer.Option(help="Folder for runs and report (default: runs/NAME, numbered).")] = None,
    on: On = None,
    quiet: Quiet = False,
) -> None:
    """Train several methods over several seeds, and tabulate what each needs to reach the target.

    Given the folder of a comparison that was interrupted, continues it.
    """
    folder = out or free_folder(Path("runs") / configuration.stem)
    continue_with(lambda: command_line("compare", configuration, overrides=set_ or [], out=folder, on=on))
    _compare(configuration, set_ or [], folder, quiet, on)


def _compare(configuration: Path, overrides: list[str], out: Path, quiet: bool, on: str | None = None) -> None:
    from ..config.schema import CompareConfig, load
    from ..experiments.compare import compare
    from ..experiments.progress import observed
    from ..report.comparison import write_report

    settings = load(CompareConfig, configuration, overrides).completed()
    began = perf_counter()
    shown = Console(quiet=True, emoji=False) if quiet else console
    with observed(shown, settings.title, settings.labels, settings.rounds, settings.metric) as observer:
        table = compare(settings, out, observer, on=on)
    seconds = perf_counter() - began
    console.print(_rich_table(settings, table, console.width))
    write_report(table, settings.title, out)
    trained = f"Trained for {seconds:.0f} s."
    if observer.rounds_trained == 0:
        trained = "All runs were finished already; nothing was trained."
    console.print(
        f"{trained} Table: {out / 'table.md'}. Report: {out / 'report.html'}",
        highlight=False,
        markup=False,
    )


def _rich_table(settings: CompareConfig, table: ComparisonTable, width: int) -> Table:
    """Return the table with the columns for which `width` has room; words are not broken."""
    from ..experiments.captions import caption, notes

    headings = [column.heading for column in table.columns(brief=True)]
    cells = table.cells(brief=True)
    widths = [max(len(word) for text in texts for word in text.split()) for texts in zip(headings, *cells, strict=True)]
    kept = len(headings)
    while kept > 2 and sum(widths[:kept]) + 3 * kept + 1 > width:
        kept -= 1
    note = f"{caption(settings)} {notes(table)}".strip()
    if kept < len(headings):
        note += f" No room here for: {', '.join(headings[kept:])}."
    drawn = Table(title=escape(settings.title), caption=escape(note), caption_justify="left")
    for i, heading in enumerate(headings[:kept]):
        justify: Literal["left", "right"] = "left" if i == 0 else "right"
        drawn.add_column(escape(heading), justify=justify, overflow="fold", min_width=min(widths[i], width // 2))
    for row in cells:
        drawn.add_row(*map(escape, row[:kept]))
    return drawn
