"""`fedmos sweep`: search over fields of a run's configuration, with Optuna.

Every trial is a run with its own folder. Optuna keeps the search in a SQLite file, from which an interrupted search
continues.
"""

from __future__ import annotations

import csv
import sqlite3
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from ..config.errors import error_location
from ..config.fields import Range
from ..config.own_classes import own_sources
from ..config.schema import ConfigError, SweepConfig, check_same, load
from ..run.preflight import check_metric
from ..storage import toml
from ..storage.files import replace_file
from .executors import SameProcess, TaskExecutor, check_where, make_executor
from .sweep_trial import (
    describe_trial,
    finished_trials,
    format_values,
    import_optuna,
    run_table,
    study_options,
    train_trial,
    with_values,
)

CONFIGURATION = "sweep.toml"
"""The name, in a search's folder, of its configuration."""


def sweep(
    config: SweepConfig,
    out: Path,
    echo: Callable[[str], None] = lambda line: None,
    progress: bool | None = None,
    on: str | None = None,
) -> dict[str, Any]:
    """Train trials until there are as many as the configuration says.

    Args:
        config: A run, and the fields to search over.
        out: Folder for the trials, trials.csv and best.toml. A search that it holds already continues.
        echo: Prints a line after every trial.
        progress: Whether to show the progress of every trial, as of `fm.run`.
        on: Where trials are trained: None for this machine, "ray" for a Ray cluster on it, "ray://HOST:PORT" for
            another one. `config.sweep.parallel` says how many train at a time.

    Returns:
        The fields of the best trial.

    Raises:
        ConfigError: If the configuration is invalid, or `out` holds trials with other settings.
        ValueError: If no trial was trained to its end.

    Example:
        >>> sweep(load(SweepConfig, "sweep.toml"), Path("runs/sweep"), print)
        {'algorithm.lr': 0.087}
    """
    if on is not None:
        check_where(on)
    optuna = import_optuna()
    for values in _corners(config):
        known = with_values(config, values).check()
        with error_location("sweep"):
            check_metric("sweep", "metric", config.sweep.metric, known)
    if (out / CONFIGURATION).exists():
        check_same(f"the search in {out}", _fixed(load(SweepConfig, out / CONFIGURATION)), _fixed(config))
    out.mkdir(parents=True, exist_ok=True)
    replace_file(out / CONFIGURATION, toml.dumps(config.kept()).encode())
    study, settings = _open_study(optuna, config, out), config.sweep
    _check_own_classes(study, config, out)
    State = optuna.trial.TrialState
    with _executor(config, on) as executor:
        while (done := len(study.get_trials(states=(State.COMPLETE, State.PRUNED)))) < settings.trials:
            batch = settings.parallel - done % settings.parallel  # a search that was interrupted goes on in its batches
            suggested = [_ask(optuna, study, config) for _ in range(min(batch, settings.trials - done))]
            finished = finished_trials(study)
            tasks = []
            for trial, values in suggested:
                given = describe_trial(config, values, finished, progress)
                tasks.append(executor.submit(train_trial, given, [out / "trials" / str(trial.number)]))
            for number, ((trial, values), task) in enumerate(zip(suggested, tasks, strict=True), done + 1):
                value, reports = task.result()
                for step, reported in reports:
                    trial.report(reported, step)
                study.tell(trial, value, state=State.PRUNED if value is None else State.COMPLETE)
                outcome = "given up" if value is None else f"{settings.metric} {value:.4f}"
                echo(f"trial {number} of {settings.trials}: {format_values(values)}: {outcome}")
    _write_trials(study, config, out)
    best = _best_trial(study, settings.trials)
    replace_file(out / "best.toml", toml.dumps(run_table(with_values(config, best.params))).encode())
    echo(f"best: {format_values(best.params)}: {settings.metric} {best.value:.4f}")
    return dict(best.params)


def _executor(config: SweepConfig, on: str | None) -> TaskExecutor:
    """Return this process for single trials, and else an executor with a worker for each trial."""
    if on is None and config.sweep.parallel == 1:
        return SameProcess()
    return make_executor(on, config.device, config.sweep.parallel)


def _ask(optuna: Any, study: Any, config: SweepConfig) -> tuple[Any, dict[str, Any]]:
    """Return the next trial and its values, which do not depend on trials that were interrupted and played again."""
    State = optuna.trial.TrialState
    asked = study.get_trials(deepcopy=False, states=(State.COMPLETE, State.PRUNED, State.RUNNING))
    study.sampler = optuna.samplers.TPESampler(seed=config.sweep.seed + len(asked))
    trial = study.ask()
    return trial, {field: _suggested(trial, field, space) for field, space in config.sweep.space.items()}


def _best_trial(study: Any, trials: int) -> Any:
    try:
        return study.best_trial
    except ValueError:
        raise ValueError(f"Cannot name a best trial because none of {trials} was trained to its end") from None


def _open_study(optuna: Any, config: SweepConfig, out: Path) -> Any:
    """Create or continue the search in a folder. Trials that were interrupted are queued again."""
    database = (out / "sweep.db").absolute()
    study = optuna.create_study(
        # A connection, not a URL: "?" and "%" in the folder's name would have a meaning there.
        storage=optuna.storages.RDBStorage("sqlite://", {"creator": partial(sqlite3.connect, database)}),
        study_name="sweep",
        load_if_exists=True,
        **study_options(config),
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
                f"Cannot continue the search in {out} because {path}, which defines its own classes, has changed; "
                "use a new folder"
            )
    if now:
        study.set_user_attr("own_code", now)


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


def _write_trials(study: Any, config: SweepConfig, out: Path) -> None:
    """Write trials.csv, a line per trial."""
    fields = list(config.sweep.space)
    with (out / "trials.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["trial", "state", config.sweep.metric, *fields])
        for trial in study.trials:
            value = "" if trial.value is None else trial.value
            writer.writerow([trial.number, trial.state.name.lower(), value, *(trial.params.get(f, "") for f in fields)])
