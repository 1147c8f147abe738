"""`fedmos sweep`: search over fields of a run's configuration, with Optuna.

Every trial is a run with its own folder. Optuna keeps the search in a SQLite file, from which an interrupted search
continues.
"""

from __future__ import annotations

import csv
import math
import sqlite3
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from ..config.errors import error_location
from ..config.fields import Range
from ..config.own_classes import own_sources
from ..config.schema import ConfigError, RunConfig, SweepConfig, check_same, load, parse
from ..core.formatting import format_value
from ..core.history import Record
from ..core.metric_names import is_loss
from ..engine.round import DivergenceError
from ..run.preflight import check_metric
from ..storage import RunFolder, toml
from ..storage.files import replace_file
from .seed_statistics import last_value

CONFIGURATION = "sweep.toml"
"""The name, in a search's folder, of its configuration."""


def sweep(
    config: SweepConfig, out: Path, echo: Callable[[str], None] = lambda line: None, progress: bool | None = None
) -> dict[str, Any]:
    """Train trials until there are as many as the configuration asks for.

    Args:
        config: A run, and the fields to search over.
        out: Folder for the trials, trials.csv and best.toml. A search that it holds already continues.
        echo: Prints a line after every trial.
        progress: Whether to show the progress of every trial, as of `fm.run`.

    Returns:
        The fields of the best trial.

    Raises:
        ConfigError: If the configuration is invalid, or `out` holds trials with other settings.
        ValueError: If no trial was trained to its end.

    Example:
        >>> sweep(load(SweepConfig, "sweep.toml"), Path("runs/sweep"), print)
        {'algorithm.lr': 0.087}
    """
    optuna = _optuna()
    for values in _corners(config):
        known = _with(config, values).check()
        with error_location("sweep"):
            check_metric("sweep", "metric", config.sweep.metric, known)
    if (out / CONFIGURATION).exists():
        check_same(f"the search in {out}", _fixed(load(SweepConfig, out / CONFIGURATION)), _fixed(config))
    out.mkdir(parents=True, exist_ok=True)
    replace_file(out / CONFIGURATION, toml.dumps(config.kept()).encode())
    study, settings = _open_study(optuna, config, out), config.sweep
    _check_own_classes(study, config, out)
    State = optuna.trial.TrialState
    while (done := len(study.get_trials(states=(State.COMPLETE, State.PRUNED)))) < settings.trials:
        study.sampler = optuna.samplers.TPESampler(seed=settings.seed + len(study.trials))
        trial = study.ask()
        values = {field: _suggested(trial, field, space) for field, space in settings.space.items()}
        value = _train(config, values, out / "trials" / str(trial.number), trial, progress)
        study.tell(trial, value, state=State.PRUNED if value is None else State.COMPLETE)
        outcome = "given up" if value is None else f"{settings.metric} {value:.4f}"
        echo(f"trial {done + 1} of {settings.trials}: {_format(values)}: {outcome}")
    _write_trials(study, config, out)
    best = _best_trial(study, settings.trials)
    replace_file(out / "best.toml", toml.dumps(_table(_with(config, best.params))).encode())
    echo(f"best: {_format(best.params)}: {settings.metric} {best.value:.4f}")
    return dict(best.params)


def _best_trial(study: Any, trials: int) -> Any:
    try:
        return study.best_trial
    except ValueError:
        raise ValueError(f"Cannot name a best trial because none of {trials} was trained to its end") from None


def _open_study(optuna: Any, config: SweepConfig, out: Path) -> Any:
    """Create or continue the search in a folder. Trials that were interrupted are queued again."""
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    database = (out / "sweep.db").absolute()
    study = optuna.create_study(
        # A connection, not a URL: "?" and "%" in the folder's name would have a meaning there.
        storage=optuna.storages.RDBStorage("sqlite://", {"creator": partial(sqlite3.connect, database)}),
        study_name="sweep",
        direction="minimize" if is_loss(config.sweep.metric) else "maximize",
        load_if_exists=True,
        pruner=optuna.pruners.MedianPruner(n_startup_trials=5, n_warmup_steps=config.sweep.warmup),
    )
    State = optuna.trial.TrialState
    for trial in study.get_trials(states=(State.RUNNING,)):
        study.enqueue_trial(trial.params)
        study.tell(trial.number, state=State.FAIL)
    return study


def _check_own_classes(study: Any, config: SweepConfig, out: Path) -> None:
    """Refuse to continue a search if a file of the user's classes has changed."""
    now = own_sources(config.kept())
    for path, sha256 in study.user_attrs.get("own_code", {}).items():
        if now.get(path, sha256) != sha256:
            raise ConfigError(
                f"Cannot go on with the search in {out} because {path}, which defines its own classes, has changed; "
                "use a new folder"
            )
    if now:
        study.set_user_attr("own_code", now)


def _optuna() -> Any:
    try:
        import optuna
    except ImportError as error:
        raise ImportError("Cannot search without optuna; use pip install 'fedmos[sweep]'") from error
    return optuna


def _format(values: dict[str, Any]) -> str:
    return ", ".join(
        f"{field} {value:.4g}" if isinstance(value, float) else f"{field} {value}" for field, value in values.items()
    )


def _fixed(config: SweepConfig) -> dict[str, Any]:
    """Return the fields that all trials of a search must share to be comparable."""
    return config.kept(exclude={"out", "sweep", "device"}) | {"sweep.metric": config.sweep.metric}


def _corners(config: SweepConfig) -> list[dict[str, Any]]:
    """Return trials with both ends of every range and every option, which are checked before the first trial."""
    ends = {f: [s.low, s.high] if isinstance(s, Range) else s for f, s in config.sweep.space.items()}
    most = max(map(len, ends.values()))
    return [{field: values[min(i, len(values) - 1)] for field, values in ends.items()} for i in range(most)]


def _suggested(trial: Any, field: str, space: Any) -> Any:
    if not isinstance(space, Range):
        return trial.suggest_categorical(field, space)
    whole = isinstance(space.low, int) and isinstance(space.high, int)
    return (trial.suggest_int if whole else trial.suggest_float)(field, space.low, space.high, log=space.log)


def _table(config: RunConfig) -> dict[str, Any]:
    return config.kept(exclude={"out", "sweep"})


def _with(config: SweepConfig, values: dict[str, Any]) -> RunConfig:
    """Return the run's configuration with some fields replaced."""
    table = _table(config)
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
    return parse(RunConfig, table, f"sweep ({_format(values)})")


class _PrunedTrial(Exception):
    """Ends the run of a trial that is worse than the median of the others."""


def _train(
    config: SweepConfig, values: dict[str, Any], folder: Path, trial: Any, progress: bool | None
) -> float | None:
    """Train a trial and return the last value of the metric; None if it diverged or was pruned."""
    settings, metric = _with(config, values), config.sweep.metric

    def report(record: Record) -> None:
        value = record.value(metric)
        if value is not None:
            trial.report(value, record.round)
            if config.sweep.prune and trial.should_prune():
                raise _PrunedTrial

    out = RunFolder(folder, _table(settings))
    try:
        result = settings.run(
            settings.algorithm, settings.selection, settings.seed, out=out, callbacks=[report], progress=progress
        )
    except (_PrunedTrial, DivergenceError):
        return None
    if result.interrupted:
        raise KeyboardInterrupt
    value = last_value(result.history, metric)
    return value if value is not None and math.isfinite(value) else None


def _write_trials(study: Any, config: SweepConfig, out: Path) -> None:
    """Write trials.csv, a line per trial."""
    fields = list(config.sweep.space)
    with (out / "trials.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["trial", "state", config.sweep.metric, *fields])
        for trial in study.trials:
            value = "" if trial.value is None else trial.value
            writer.writerow([trial.number, trial.state.name.lower(), value, *(trial.params.get(f, "") for f in fields)])
