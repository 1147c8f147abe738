"""`fedmos exam`: tables that others published, reproduced through the public interface, with verdicts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from ...core.validation import suggest
from ...data import datasets
from ...run.preflight import find_device
from .command import PartReport, listing, reproduce
from .results_table import ResultsTable, duration, markdown, wrapped
from .study import PaperStudy, load, names
from .train import Echo, ReproduceOptions


def exam_listing() -> str:
    """Return a list of every exam and its parts."""
    return listing(names("exams"))


def take(
    chosen: Sequence[str],
    out: Path,
    *,
    records: Path | None = None,
    part: str | None = None,
    options: ReproduceOptions | None = None,
    budget: float | None = None,
    report: PartReport | None = None,
    echo: Echo = print,
) -> bool:
    """Run exams and print published beside measured values, with verdicts and a summary.

    Runs that the records have already are not trained again.

    Args:
        chosen: Names of exams; if there are none, all that this machine is meant for and has the data for.
        out: Folder for the runs.
        records: Folder of the records (default: `out`).
        part: Names or patterns of parts, separated by commas (default: all).
        options: Which runs to train, and how.
        budget: After so many seconds per exam, runs are saved and the function returns; a later call continues them.
        report: Is called for every comparison that has been trained.
        echo: Prints a line.

    Returns:
        Whether all requested runs are complete.

    Raises:
        ValueError: If there is no such exam.
        FileNotFoundError: If the data of a chosen exam is missing.

    Example:
        >>> take(["flamby-heart"], Path("runs/exam"), options=ReproduceOptions(seeds=2))
    """
    options = options or ReproduceOptions()
    exams, complete = [_exam(name) for name in chosen] or _suitable(options, echo), True
    if not exams:
        echo("No exam was run; fedmos exam NAME runs one, and fedmos exam --list shows all.")
        return True
    for exam in exams:
        _check_data(exam, part)
        own = options if exam.needs == "gpu" or options.device is not None else replace(options, device="cpu")
        complete &= reproduce(
            exam.name, out, records=records, part=part, options=own, budget=budget, report=report, echo=echo
        )
    echo(f"\n{summary(exams, records or out)}")
    return complete


def _exam(name: str) -> PaperStudy:
    if name not in names("exams"):
        hint = f"; use fedmos reproduce {name}" if name in names() else suggest(name, names("exams"))
        raise ValueError(f"The exam must be one of {', '.join(names('exams'))}, got {name!r}{hint}")
    return load(name)


def _suitable(options: ReproduceOptions, echo: Echo) -> list[PaperStudy]:
    """Return the exams that this machine is meant for and has the data for, and say why others are left out."""
    kind, suitable = find_device(options.device or "auto").type, []
    for exam in map(load, names("exams")):
        if exam.needs == "gpu" and kind == "cpu":
            echo(f"{exam.name}: left out because it is meant for a GPU; fedmos exam {exam.name} runs it here")
            continue
        try:
            _check_data(exam)
        except FileNotFoundError as error:
            echo(f"{exam.name}: left out. {error}")
            continue
        suitable.append(exam)
    return suitable


def _check_data(exam: PaperStudy, part: str | None = None) -> None:
    for name in dict.fromkeys(one.source_of_runs.table["data"]["name"] for one in exam.chosen(part)):
        datasets.find(name, online=False)


def summary(exams: Sequence[PaperStudy], folder: Path) -> str:
    """Return a table of the parts that have run: how many values agree, and the training time; and the other parts."""
    lines = [["exam", "part", "values", "agree", "time"]]
    missing: dict[str, list[str]] = {}
    for exam in exams:
        for one in exam.parts:
            table = ResultsTable.of(one, folder)
            if not any(table.runs.values()):
                missing.setdefault(exam.name, []).append(one.name)
                continue
            verdicts = table.verdicts().values()
            measured = [str(len(verdicts)), str(sum(verdict.agrees for verdict in verdicts))] if verdicts else ["–"] * 2
            lines.append([exam.name, one.name, *measured, duration(table.seconds) if table.sessions else "–"])
    others = "; ".join(f"{name} ({', '.join(parts)})" for name, parts in missing.items())
    blocks = [markdown(lines)] if len(lines) > 1 else []
    return "\n".join([*blocks, wrapped(f"Not run: {others}.") + "\n"] if missing else blocks)
