"""Read a comparison or a run that is still running, from the records that it has written so far."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from ..config import schema as config
from ..config.fields import FinalOf
from ..config.own_classes import plain_name
from ..config.schema import CompareConfig
from ..core.history import History
from ..experiments.captions import caption
from ..experiments.compare import CONFIGURATION
from ..experiments.comparison import run_folder
from ..experiments.runner import PlannedMethod, PlannedRun, planned_methods, rounds_of, tuning_runs
from ..experiments.seed_statistics import MethodResult
from ..experiments.table import ComparisonTable
from ..storage.segments import decode_history
from .checks import ReportSource, Target
from .run_info import algorithm_of, started_from_python
from .study import ReportStudy, StudyProgress

METRICS_FILE = "metrics.jsonl"


class _RunningRun(NamedTuple):
    """A run of the table, and its folder."""

    seed: int
    folder: Path
    rounds: int
    """Rounds that the run is to have."""

    @property
    def complete(self) -> bool:
        return self.folder.is_dir() and not is_running(self.folder)


class _Row(NamedTuple):
    label: str
    lr: float | None
    info: dict[str, Any]
    runs: list[_RunningRun]


def is_running(folder: Path) -> bool:
    """Return whether a run is in the folder: its lock names the process until the run ends."""
    try:
        return (folder / "lock").stat().st_size > 0
    except FileNotFoundError:
        return True  # the run has not begun


def is_complete(folder: Path) -> bool:
    """Return whether the comparison or the run in the folder has ended.

    Raises:
        FileNotFoundError: If the folder holds neither.
    """
    if (folder / CONFIGURATION).exists():
        return (folder / "table.json").exists()
    if (folder / "checkpoints").is_dir():
        return not is_running(folder)
    what = "is the folder of neither a run nor a comparison" if folder.is_dir() else "is no folder"
    raise FileNotFoundError(f"Cannot watch {folder} because it {what}")


def read_history(folder: Path) -> History:
    """Return the rounds that a run has recorded. A line that is being written is left out."""
    try:
        content = (folder / METRICS_FILE).read_bytes()
    except FileNotFoundError:
        return History()
    return History(decode_history(content[: content.rfind(b"\n") + 1]))


def running_study(folder: Path, every: float, target: Target | None = None) -> ReportStudy | None:
    """Read what a running comparison or run has recorded; None before its first evaluated round.

    Args:
        folder: The folder of a comparison or of a run.
        every: Seconds after which the page reloads itself.
        target: What a run is to reach; a comparison has a target of its own.
    """
    if (folder / CONFIGURATION).exists():
        return _comparison(folder, every)
    return _run(folder, every, target)


def _comparison(folder: Path, every: float) -> ReportStudy | None:
    if started_from_python((folder / CONFIGURATION).read_text("utf-8")):
        raise ValueError(
            f"Cannot watch {folder} because its comparison was started from Python; use fedmos report when it is over"
        )
    settings = config.load(CompareConfig, folder / CONFIGURATION)
    rows = list(_rows(settings, folder))
    level = None if isinstance(settings.level, FinalOf) else settings.level
    made = _study(settings.title, caption(settings), (settings.metric, level), settings.reference, rows)
    if made is None:
        return None
    text = (folder / CONFIGURATION).read_text("utf-8")
    source = ReportSource(folder=folder, results=list(made.results), target=None, data=settings.data, text=text)
    return made._replace(sources=[source], progress=_progress(_planned(settings, folder, rows), every))


def _rows(settings: CompareConfig, folder: Path) -> Iterable[_Row]:
    """Return the rows of the table as far as they are known. A method that is being tuned has a row per trial."""
    for planned in planned_methods(settings, {}):
        yield _row(settings, folder, planned, planned.runs(settings.seeds))
    for method in settings.methods if settings.tune is not None else ():
        trials = tuning_runs(settings, method)
        chosen = [run for run in trials if any(path.is_dir() for path in _final_folders(settings, run, folder))]
        for run in chosen[:1]:
            planned = PlannedMethod(settings.tuned_as(method.label), method, run.values)
            yield _row(settings, folder, planned, planned.runs(settings.seeds))
        for run in trials if not chosen else ():
            values = ", ".join(f"{field} {value:g}" for field, value in run.values)
            yield _row(settings, folder, PlannedMethod(f"{method.label}, tuning, {values}", method, run.values), [run])


def _final_folders(settings: CompareConfig, trial: PlannedRun, folder: Path) -> list[Path]:
    """Return the folders that a method's runs have if tuning chooses this trial."""
    return [run_folder(settings, PlannedRun(trial.label, trial.values, seed), folder) for seed in settings.seeds]


def _row(settings: CompareConfig, folder: Path, planned: PlannedMethod, runs: Sequence[PlannedRun]) -> _Row:
    method = next(method for method in settings.methods if method.label == planned.method.label)
    info = {"algorithm": method.algorithm.title, "selection": method.selection.title, "clients": settings.data.clients}
    own = [_RunningRun(run.seed, run_folder(settings, run, folder), rounds_of(settings, run)) for run in runs]
    return _Row(planned.label, dict(planned.values)["lr"], info, own)


def _planned(settings: CompareConfig, folder: Path, rows: Sequence[_Row]) -> list[_RunningRun]:
    """Return all runs of a comparison; of methods that are still tuned, placeholders for the runs of the table."""
    runs = {run.folder: run for row in rows for run in row.runs}
    for method in settings.methods:
        for run in tuning_runs(settings, method):
            own = _RunningRun(run.seed, run_folder(settings, run, folder), rounds_of(settings, run))
            runs[own.folder] = own
    waiting = [row.label for row in rows].count
    for method in settings.methods if settings.tune is not None else ():
        if not waiting(settings.tuned_as(method.label)):
            for seed in settings.seeds:
                later = folder / f"{method.label}, {seed}"
                runs[later] = _RunningRun(seed, later, settings.rounds)
    return list(runs.values())


def _progress(runs: Sequence[_RunningRun], every: float) -> StudyProgress:
    complete = [run for run in runs if run.complete]
    played = sum(run.rounds for run in complete) + sum(len(read_history(r.folder)) for r in runs if not r.complete)
    return StudyProgress(len(complete), len(runs), played, sum(run.rounds for run in runs), every)


def _run(folder: Path, every: float, target: Target | None) -> ReportStudy | None:
    path = folder / "config.toml"
    if not path.exists():
        return None
    text = path.read_text("utf-8")
    table = tomllib.loads(text)
    info = table if table.get("from_python") else _info(table)
    algorithm = algorithm_of(info)
    run = _RunningRun(int(table.get("seed", 0)), folder, int(table["rounds"]))
    row = _Row(str(table.get("label") or algorithm.name), algorithm.fields.get("lr"), dict(info), [run])
    own: dict[str, float] = table.get("target") or {}
    metric, level = target or next(iter(own.items()), ("accuracy", None))
    made = _study(folder.name, "", (metric, level), row.label, [row])
    if made is None:
        return None
    source = ReportSource(folder=folder, results=list(made.results), target=None, data=None, text=text)
    return made._replace(sources=[source], progress=_progress([run], every))


def _info(table: dict[str, Any]) -> dict[str, Any]:
    """Return the entries of a configuration that a report shows."""
    names = {name: plain_name(table[name]["name"]) for name in ("algorithm", "selection")}
    return {**names, "algorithm_fields": table["algorithm"], "clients": table["data"].get("clients")}


def _study(
    title: str, note: str, target: tuple[str, float | None], baseline: str, rows: Sequence[_Row]
) -> ReportStudy | None:
    """Return the study of all runs with a record; None if no metric has been measured."""
    metric, level = target
    results = [result for result in map(_result, rows) if result.runs]
    measured = [name for name in (metric, "accuracy", "test_loss", "train_loss") if _measured(results, name)]
    if not measured:
        return None
    results = [result for result in (_with(result, measured[0]) for result in results) if result.runs]
    labels = [result.label for result in results]
    table = ComparisonTable(
        metric=measured[0],
        target=level if measured[0] == metric else None,
        baseline=baseline if baseline in labels else labels[0],
        results=results,
    )
    return ReportStudy(title, note, table, [])


def _measured(results: Sequence[MethodResult], metric: str) -> bool:
    return any(value is not None for result in results for value in result.final(metric).values())


def _with(result: MethodResult, metric: str) -> MethodResult:
    """Return a method with the runs that have measured the metric; all, if the metric is not of a model it trains."""
    if not result.trains(metric):
        return result
    runs = {seed: run for seed, run in result.runs.items() if result.final(metric)[seed] is not None}
    return replace(result, runs=runs, infos={seed: result.infos[seed] for seed in runs})


def _result(row: _Row) -> MethodResult:
    histories = {run.seed: read_history(run.folder) for run in row.runs}
    runs = {seed: history for seed, history in histories.items() if len(history)}
    highest = max((max(record.cohort, default=0) for run in runs.values() for record in run), default=0)
    info = row.info | {"clients": row.info.get("clients") or highest + 1}
    infos = {run.seed: info | {"rounds": run.rounds} for run in row.runs if run.seed in runs}
    return MethodResult(label=row.label, lr=row.lr, runs=runs, infos=infos)
