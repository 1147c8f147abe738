"""`fedmos reproduce`: train what is missing, print published beside measured, write the report."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ...config.fields import FinalOf
from ...core.validation import positive, require
from ...report.page import html
from ...report.study import Source
from ...report.study import Study as Reported
from ...run.result import Result
from ...storage import toml
from ...storage.files import replace_file
from ..compare import caption
from ..seed_statistics import MethodResult, final_mean
from ..table import Table, write
from . import quadratic, train
from .record import Job, Records
from .results_table import Sheet
from .study import Part, fitting, load, matching, names
from .train import Deadline, Say, Wanted

_TRAINERS = {"comparison": train.train, "quadratic": quadratic.train}


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
    report: bool = True,
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
        if report and own.kind == "comparison":
            _report(own, wanted, kept, place)
    for own in parts:
        sheet = Sheet.of(own, folder)
        say(f"\n{own.title} ({own.source})\n\n{sheet.markdown()}\n{sheet.facts()}")
    if deadline.passed:
        say(f"The time is up; the same command continues in {out}.")
    return not deadline.passed


def _trained(parts: Sequence[Part]) -> list[Part]:
    """The parts that have runs of their own, each once."""
    return list({own.source_of_runs.key: own.source_of_runs for own in parts}.values())


def _report(part: Part, wanted: Wanted, records: Records, out: Path) -> None:
    """The table and the report of the runs whose folders are here."""
    config = wanted.configuration(part)
    rows = []
    for method in config.methods:
        runs = records.counted(part, method.label)
        folders = {run["seed"]: Job(method.label, run["lr"], run["seed"]).folder(out) for run in runs}
        results = {seed: Result.load(path) for seed, path in folders.items() if (path / "checkpoints").is_dir()}
        if results:
            rows.append(MethodResult.of(method.label, runs[0]["lr"], results))
    if not rows:
        return
    labels = [row.label for row in rows]
    baseline = config.reference if config.reference in labels else labels[0]
    target: float | FinalOf | None = config.level
    if isinstance(target, FinalOf):
        ends = [final_mean(row, config.metric) for row in rows if row.label == target.final_of]
        target = ends[0] if ends else None
    table = Table(metric=config.metric, target=target, baseline=baseline, rows=rows)
    write(table, out)
    text = toml.dumps(config.kept())
    source = Source(folder=out, rows=rows, target=None, data=config.data, text=text)
    page = html(Reported(f"{part.title} ({part.source})", caption(config), table, [source]))
    replace_file(out / "report.html", page.encode())
