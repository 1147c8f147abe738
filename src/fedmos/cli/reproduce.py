"""`fedmos reproduce`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from .interrupts import continue_with
from .options import On, Quiet


def reproduce(
    name: Annotated[str | None, typer.Argument(metavar="NAME", help="The study; --list shows them.")] = None,
    part: Annotated[str | None, typer.Option(help="Only these parts (names or patterns, with commas).")] = None,
    methods: Annotated[str | None, typer.Option(help="Only these methods (labels or patterns, with commas).")] = None,
    rounds: Annotated[int | None, typer.Option(min=1, help="Fewer rounds than the paper; more continue later.")] = None,
    seeds: Annotated[int | None, typer.Option(min=1, help="Only the first so many seeds.")] = None,
    device: Annotated[str | None, typer.Option(help="cpu, cuda, … (default: a GPU if there is one).")] = None,
    precision: Annotated[str | None, typer.Option(help="tf32 (GPU) or bf16: faster, less exact products.")] = None,
    budget: Annotated[float | None, typer.Option(help="Save and stop after so many seconds.")] = None,
    out: Annotated[Path, typer.Option(help="Folder for runs and reports.")] = Path("runs/reproduction"),
    records: Annotated[Path | None, typer.Option(help="Folder for the records (default: the same).")] = None,
    on: On = None,
    report: Annotated[bool, typer.Option(help="Whether to write report.html for each part.")] = True,
    list_: Annotated[bool, typer.Option("--list", help="Show every study and its parts.")] = False,
    quiet: Quiet = False,
    merge: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="Add the records of FOLDER to those of --records.")
    ] = None,
    pages: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="Regenerate the pages in FOLDER from FOLDER/data.")
    ] = None,
) -> None:
    """Reproduce a table or figure of a paper, and print published beside measured values.

    Runs that the records have already are not trained again; a command that was interrupted continues.
    """
    from ..experiments.reproduce.command import listing
    from ..experiments.reproduce.command import reproduce as run
    from ..experiments.reproduce.record import merge as merge_records
    from ..experiments.reproduce.train import ReproduceOptions
    from ..report.reproduction import write_report
    from ..report.reproduction_pages import build

    if list_:
        print(listing())
    elif merge is not None:
        print(*merge_records(merge, records or out), sep="\n")
    elif pages is not None:
        print(*build(pages), sep="\n")
    elif name is None:
        raise ValueError("NAME must be given; use fedmos reproduce --list for the studies")
    else:
        options = ReproduceOptions(
            rounds=rounds, seeds=seeds, methods=methods, device=device, precision=precision, progress=not quiet
        )
        continue_with(lambda: "the same command")
        writer = write_report if report else None
        run(name, out, records=records, part=part, options=options, budget=budget, on=on, report=writer, echo=_echo)


def _echo(line: str) -> None:
    print(line, flush=True)
