"""`fedmos reproduce`: train the runs that the records lack, and print published beside measured values."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from ...core.validation import positive, require
from . import quadratic, train
from .record import Records
from .results_table import Sheet
from .study import Part, fitting, load, matching, names
from .train import Deadline, Say, Wanted

_TRAINERS = {"comparison": train.train, "quadratic": quadratic.train}

PartReport = Callable[[Part, Wanted, Records, Path], object]
"""Called for a comparison that has been trained, with the folder of its runs."""


def listing() -> str:
    """Every study and its parts."""
    lines = []
    for study in map(load, names()):
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
    wanted: Wanted | None = None,
    budget: float | None = None,
    report: PartReport | None = None,
    say: Say = print,
) -> bool:
    """Run a study, or some of it; whether all that was asked for is there now.

    What the records (by default in the folder) have already is not trained again. After `budget` seconds, runs are
    saved and the command ends; called again, it goes on.
    """
    if budget is not None:
        require("reproduce", "budget", budget, positive)
    study, wanted, deadline = load(name), wanted or Wanted(), Deadline(budget)
    folder = records or out
    parts = study.chosen(part)
    trained = _trained(parts)
    matching(wanted.methods, list(dict.fromkeys(label for own in trained for label in own.labels)), "--methods")
    for own in trained:
        if not fitting(wanted.methods, own.labels):
            continue
        kept, place = Records(folder, own.study), out / own.study / own.name
        _TRAINERS[own.kind](own, wanted, place, kept, deadline, say)
        if deadline.passed:
            break
        if report is not None and own.kind == "comparison":
            report(own, wanted, kept, place)
    for own in parts:
        sheet = Sheet.of(own, folder)
        say(f"\n{own.title} ({own.source})\n\n{sheet.markdown()}\n{sheet.facts()}")
    if deadline.passed:
        say(f"The time is up; the same command continues in {out}.")
    return not deadline.passed


def _trained(parts: Sequence[Part]) -> list[Part]:
    """The parts that have runs of their own, each once."""
    return list({own.source_of_runs.key: own.source_of_runs for own in parts}.values())
