"""The table and the report of a part of a study."""

from __future__ import annotations

from pathlib import Path

from ..experiments.captions import caption
from ..experiments.reproduce.record import StudyRecords, run_folder
from ..experiments.reproduce.study import StudyPart
from ..experiments.reproduce.train import ReproduceOptions
from ..experiments.runner import PlannedRun, resolve_target
from ..experiments.seed_statistics import MethodResult
from ..experiments.table import ComparisonTable
from ..experiments.table_formats import write
from ..run.result import Result
from ..storage import toml
from ..storage.files import replace_file
from .checks import ReportSource
from .page import html
from .study import ReportStudy


def write_report(part: StudyPart, options: ReproduceOptions, records: StudyRecords, out: Path) -> None:
    """Write the table and report.html of the runs whose folders are in `out`; nothing if there are none."""
    config = options.configuration(part)
    results = []
    for method in config.methods:
        counted = records.counted(part, method.label)
        runs = [PlannedRun(method.label, (("lr", record["lr"]),), record["seed"]) for record in counted]
        folders = {run.seed: run_folder(run, out) for run in runs}
        loaded = {seed: Result.load(path) for seed, path in folders.items() if (path / "checkpoints").is_dir()}
        if loaded:
            results.append(MethodResult.of(method.label, runs[0].lr, loaded))
    if not results:
        return
    labels = [result.label for result in results]
    baseline = config.reference if config.reference in labels else labels[0]
    target = resolve_target(config, results)
    table = ComparisonTable(metric=config.metric, target=target, baseline=baseline, results=results)
    write(table, out)
    text = toml.dumps(config.kept())
    source = ReportSource(folder=out, results=results, target=None, data=config.data, text=text)
    page = html(ReportStudy(f"{part.title} ({part.source})", caption(config), table, [source]))
    replace_file(out / "report.html", page.encode())
