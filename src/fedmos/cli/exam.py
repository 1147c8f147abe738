"""`fedmos exam`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from .interrupts import continue_with
from .options import Quiet


def exam(
    name: Annotated[str | None, typer.Argument(metavar="[NAME]", help="The exam; --list shows them.")] = None,
    part: Annotated[str | None, typer.Option(help="Only these parts (names or patterns, with commas).")] = None,
    methods: Annotated[str | None, typer.Option(help="Only these methods (labels or patterns, with commas).")] = None,
    rounds: Annotated[int | None, typer.Option(min=1, help="Fewer rounds than published; more continue later.")] = None,
    seeds: Annotated[int | None, typer.Option(min=1, help="Only the first so many seeds.")] = None,
    device: Annotated[str | None, typer.Option(help="cpu, cuda, … (default: what the exam is meant for).")] = None,
    precision: Annotated[str | None, typer.Option(help="tf32 (GPU) or bf16: faster, less exact products.")] = None,
    budget: Annotated[float | None, typer.Option(help="Save and stop after so many seconds per exam.")] = None,
    out: Annotated[Path, typer.Option(help="Folder for runs and reports.")] = Path("runs/exam"),
    records: Annotated[Path | None, typer.Option(help="Folder for the records (default: the same).")] = None,
    report: Annotated[bool, typer.Option(help="Whether to write report.html for each part.")] = False,
    list_: Annotated[bool, typer.Option("--list", help="Show every exam and its parts.")] = False,
    quiet: Quiet = False,
    page: Annotated[
        Path | None, typer.Option(metavar="FILE.md", help="Regenerate this page from the records beside it.")
    ] = None,
) -> None:
    """Reproduce tables that others published with other code: published, measured, verdict.

    Without NAME, all exams that this machine is meant for and has the data for. Runs that the records have already are
    not trained again; a command that was interrupted continues.
    """
    from ..experiments.reproduce.exam import exam_listing, take
    from ..experiments.reproduce.train import ReproduceOptions
    from ..report.reproduction import write_report
    from ..report.reproduction_pages import build_exam

    if list_:
        print(exam_listing())
    elif page is not None:
        print(*build_exam(page), sep="\n")
    else:
        options = ReproduceOptions(
            rounds=rounds, seeds=seeds, methods=methods, device=device, precision=precision, progress=not quiet
        )
        continue_with(lambda: "the same command")
        chosen = [] if name is None else [name]
        writer = write_report if report else None
        take(chosen, out, records=records, part=part, options=options, budget=budget, report=writer, echo=_echo)


def _echo(line: str) -> None:
    print(line, flush=True)
