"""The table and the report of a part of a study."""

from __future__ import annotations

from pathlib import Path

from ..config.fields import FinalOf
from ..experiments.compare import caption
from ..experiments.reproduce.record import Job, Records
from ..experiments.reproduce.study import Part
from ..experiments.reproduce.train import Wanted
from ..experiments.seed_statistics import MethodResult, final_mean
from ..experiments.table import Table, write
from ..run.result import Result
from ..storage import toml
from ..storage.files import replace_file
from .page import html
from .study import Source, Study


def write_report(part: Part, wanted: Wanted, records: Records, out: Path) -> None:
    """Write the table and report.html of the runs whose folders are in `out`; nothing if there are none."""
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
    page = html(Study(f"{part.title} ({part.source})", caption(config), table, [source]))
    replace_file(out / "report.html", page.encode())
