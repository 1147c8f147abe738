"""A trial of a search: a run with some fields replaced, in its own folder, in this or another process."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

from ..config.schema import ConfigError, RunConfig, SweepConfig, parse
from ..core.formatting import format_value
from ..core.history import Record
from ..core.metric_names import is_loss
from ..engine.round_results import DivergenceError
from ..run.result import Result
from ..storage import RunFolder
from .seed_statistics import last_value
from .workers import stopped_by_parent

Reports = list[tuple[int, float]]
"""Rounds and values of the metric."""


def import_optuna() -> Any:
    """Return the module optuna."""
    try:
        import optuna
    except ImportError as error:
        raise ImportError("Cannot search without optuna; use pip install 'fedmos[sweep]'") from error
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    return optuna


def study_options(config: SweepConfig) -> dict[str, Any]:
    """Return the direction of a search, and when it stops a trial."""
    pruner = import_optuna().pruners.MedianPruner(n_startup_trials=5, n_warmup_steps=config.sweep.warmup)
    return {"direction": "minimize" if is_loss(config.sweep.metric) else "maximize", "pruner": pruner}


def format_values(values: dict[str, Any]) -> str:
    """Return fields and their values in one line."""
    return ", ".join(
        f"{field} {value:.4g}" if isinstance(value, float) else f"{field} {value}" for field, value in values.items()
    )


def run_table(config: RunConfig) -> dict[str, Any]:
    """Return the fields of a run, without those of the search."""
    return config.kept(exclude={"out", "sweep"})


def with_values(config: SweepConfig, values: dict[str, Any]) -> RunConfig:
    """Return the run's configuration with some fields replaced."""
    table = run_table(config)
    for field, value in values.items():
        *path, last = field.split(".")
        inner = table
        for part in path:
            inner = inner.setdefault(part, {})
            if not isinstance(inner, dict):
                raise ConfigError(
                    f"sweep.space: {format_value(field)} is no field because {format_value(part)} is not a table"
                )
        inner[last] = value
    return parse(RunConfig, table, f"sweep ({format_values(values)})")


def finished_trials(study: Any) -> list[tuple[float, Reports]]:
    """Return the final value and all values of each trial that was trained to its end."""
    states = (import_optuna().trial.TrialState.COMPLETE,)
    return [(trial.value, list(trial.intermediate_values.items())) for trial in study.get_trials(states=states)]


def describe_trial(
    config: SweepConfig, values: dict[str, Any], finished: list[tuple[float, Reports]], progress: bool | None
) -> str:
    """Return a trial as JSON, for `train_trial`."""
    return json.dumps(
        {"config": config.model_dump_json(), "values": values, "finished": finished, "progress": progress}
    )


class _PrunedTrial(Exception):
    """Ends the run of a trial that is worse than the median of the others."""


def train_trial(given: str, folders: list[Path]) -> tuple[float | None, Reports]:
    """Train a trial, or continue it, and return the last value of the metric and all its values.

    The last value is None if the trial diverged or was stopped because it is worse than the median of the others.
    """
    table, (folder,) = json.loads(given), folders
    config = SweepConfig.model_validate_json(table["config"])
    settings, metric = with_values(config, table["values"]), config.sweep.metric
    trial, reports = _trial_beside(config, table["finished"]), Reports()

    def report(record: Record) -> None:
        value = record.value(metric)
        if value is not None:
            reports.append((record.round, value))
            trial.report(value, record.round)
            if config.sweep.prune and trial.should_prune():
                raise _PrunedTrial

    try:
        for record in _earlier_records(folder):
            report(record)
        with stopped_by_parent():
            result = settings.run(
                settings.algorithm,
                settings.selection,
                settings.seed,
                out=RunFolder(folder, run_table(settings)),
                resume=True,
                callbacks=[report],
                progress=table["progress"],
            )
    except (_PrunedTrial, DivergenceError):
        return None, reports
    if result.interrupted:
        raise KeyboardInterrupt
    value = last_value(result.history, metric)
    return (value if value is not None and math.isfinite(value) else None), reports


def _trial_beside(config: SweepConfig, finished: list[tuple[float, Reports]]) -> Any:
    """Return a trial of a search in memory that has the given finished trials."""
    optuna = import_optuna()
    study = optuna.create_study(**study_options(config))
    for value, reports in finished:
        study.add_trial(optuna.trial.create_trial(value=value, intermediate_values=dict(reports)))
    return study.ask()


def _earlier_records(folder: Path) -> list[Record]:
    """Return the records of a trial whose worker was lost, up to its newest checkpoint."""
    try:
        return list(Result.load(folder).history)
    except FileNotFoundError:
        return []
