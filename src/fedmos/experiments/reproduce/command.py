"""`fedmos reproduce`: train the runs that the records lack, and print published beside measured values."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from functools import partial
from pathlib import Path

from ...core.validation import positive, require
from ..executors import make_executor
from . import quadratic, train
from .groups import Deadline
from .record import StudyRecords
from .results_table import ResultsTable
from .study import StudyPart, fitting, load, matching, names
from .train import Echo, ReproduceOptions

PartReport = Callable[[StudyPart, ReproduceOptions, StudyRecords, Path], object]
"""Is called for a comparison that has been trained, with the folder of its runs."""


def listing(studies: Sequence[str] | None = None) -> str:
    """Return a list of studies and their parts; by default those of the papers."""
    lines = []
    for study in map(load, names() if studies is None else studies):
        lines.append(f"{study.name}: {study.title}")
        for part in study.parts:
            same = "" if part.runs_of is None else f" (the runs of {part.runs_of})"
            lines.append(f"    {part.name}: {part.title}{same}")
    return "\n".join(lines)


def reproduce(
    name: str,
    out: Path,
    *,
    records: Path | None = None,
    part: str | None = None,
    options: ReproduceOptions | None = None,
    budget: float | None = None,
    on: str | None = None,
    report: PartReport | None = None,
    echo: Echo = print,
) -> bool:
    """Run a study, or some of its parts, and print their tables.

    Runs that the records have already are not trained again.

    Args:
        name: Name of the study.
        out: Folder for the runs.
        records: Folder of the records (default: `out`).
        part: Names or patterns of parts, separated by commas (default: all).
        options: Which runs to train, and how.
        budget: After so many seconds, runs are saved and the function returns; a later call continues them.
        on: Where runs are trained: None for this process, "ray" for a Ray cluster on this machine, "ray://HOST:PORT"
            for another one.
        report: Is called for every comparison that has been trained.
        echo: Prints a line.

    Returns:
        Whether all requested runs are complete.

    Example:
        >>> reproduce("fedcm-table3", Path("runs/reproduction"), part="digits", options=ReproduceOptions(seeds=1))
    """
    if budget is not None:
        require("reproduce", "budget", budget, positive)
    study, options, deadline = load(name), options or ReproduceOptions(), Deadline(budget)
    folder, parts = records or out, study.chosen(part)
    sources = _sources_of_runs(parts)
    matching(options.methods, list(dict.fromkeys(label for one in sources for label in one.labels)), "--methods")
    with nullcontext() if on is None else make_executor(on, options.device) as executor:
        trainers: dict[str, Callable[..., None]] = {
            "comparison": partial(train.train, executor=executor),
            "quadratic": quadratic.train,
        }
        for source in sources:
            if not fitting(options.methods, source.labels):
                continue
            study_records, runs = StudyRecords(folder, source.study), out / source.study / source.name
            trainers[source.kind](source, options, runs, study_records, deadline, echo)
            if deadline.passed:
                break
            if report is not None and source.kind == "comparison":
                report(source, options, study_records, runs)
    for one in parts:
        echo(_printed(ResultsTable.of(one, folder)))
    if deadline.passed:
        echo(f"The time is up; the same command continues in {out}.")
    return not deadline.passed


def _printed(table: ResultsTable) -> str:
    why = "".join(f"{label}: {words}\n" for label, words in table.part.why.items())
    return f"\n{table.part.title} ({table.part.source})\n\n{table.markdown()}\n{why}{table.facts()}"


def _sources_of_runs(parts: Sequence[StudyPart]) -> list[StudyPart]:
    """Return the parts that provide the runs of the given parts, each once."""
    return list({part.source_of_runs.key: part.source_of_runs for part in parts}.values())
