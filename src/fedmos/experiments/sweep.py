"""`fedmos sweep`: a search over fields of a run's configuration, by Optuna.

Every trial is a run in a folder of its own; the search itself is a SQLite file, so that one that was cut off goes on.
"""

from __future__ import annotations

import csv
import math
import sqlite3
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from ..config.fields import Range
from ..config.schema import ConfigError, RunConfig, SweepConfig, check_same, load, parse
from ..core.formatting import format_value
from ..core.history import Record
from ..core.metric_names import is_loss
from ..engine.round import DivergenceError
from ..storage import RunFolder, toml
from ..storage.files import replace_file
from .seed_statistics import last_value

Say = Callable[[str], None]

CONFIGURATION = "sweep.toml"
"""The name, in a search's folder, of the configuration that it ran with."""


def sweep(config: SweepConfig, out: Path, say: Say = lambda line: None) -> dict[str, Any]:
    """Play trials until there are as many as the configuration asks for; the best one's fields."""
    optuna = _optuna()
    for values in _corners(config):
        _with(config, values).check()
    if (out / CONFIGURATION).exists():
        check_same(f"the search in {out}", _fixed(load(SweepConfig, out / CONFIGURATION)), _fixed(config))
    out.mkdir(parents=True, exist_ok=True)
    replace_file(out / CONFIGURATION, toml.dumps(config.kept()).encode())
    settings = config.sweep
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    database = (out / "sweep.db").absolute()
    study = optuna.create_study(
        # Not by an address, of which "?" and "%" in the folder's name would be a part.
        storage=optuna.storages.RDBStorage("sqlite://", {"creator": partial(sqlite3.connect, database)}),
        study_name="sweep",
        direction="minimize" if is_loss(settings.metric) else "maximize",
        load_if_exists=True,
        pruner=optuna.pruners.MedianPruner(n_startup_trials=5, n_warmup_steps=settings.warmup),
    )
    State = optuna.trial.TrialState
    for trial in study.get_trials(states=(State.RUNNING,)):  # which were cut off
        study.enqueue_trial(trial.params)
        study.tell(trial.number, state=State.FAIL)
    while (done := len(study.get_trials(states=(State.COMPLETE, State.PRUNED)))) < settings.trials:
        study.sampler = optuna.samplers.TPESampler(seed=settings.seed + len(study.trials))
        trial = study.ask()
        values = {field: _suggested(trial, field, space) for field, space in settings.space.items()}
        value = _play(config, values, out / "trials" / str(trial.number), trial)
        study.tell(trial, value, state=State.PRUNED if value is None else State.COMPLETE)
        words = "given up" if value is None else f"{settings.metric} {value:.4f}"
        say(f"trial {done + 1} of {settings.trials}: {_words(values)}: {words}")
    _write(study, config, out)
    try:
        best = study.best_trial
    except ValueError:
        raise ValueError(f"Cannot name a best trial because none of {settings.trials} was played to its end") from None
    replace_file(out / "best.toml", toml.dumps(_table(_with(config, best.params))).encode())
    say(f"best: {_words(best.params)}: {settings.metric} {best.value:.4f}")
    return dict(best.params)


def _optuna() -> Any:
    try:
        import optuna
    except ImportError as error:
        raise ImportError("Cannot search without optuna; use pip install 'fedmos[sweep]'") from error
    return optuna


def _words(values: dict[str, Any]) -> str:
    return ", ".join(
        f"{field} {value:.4g}" if isinstance(value, float) else f"{field} {value}" for field, value in values.items()
    )


def _fixed(config: SweepConfig) -> dict[str, Any]:
    """What all trials of a search have in common, or they could not be compared."""
    return config.kept(exclude={"out", "sweep", "device"}) | {"sweep.metric": config.sweep.metric}


def _corners(config: SweepConfig) -> list[dict[str, Any]]:
    """Both ends of every range and every choice, so that a mistake is found before the first trial."""
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
    """The run's configuration with some of its fields replaced."""
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
    return parse(RunConfig, table, f"sweep ({_words(values)})")


def _play(config: SweepConfig, values: dict[str, Any], folder: Path, trial: Any) -> float | None:
    """The last value of the metric; None for a trial that diverged or that was given up as hopeless."""
    settings, metric = _with(config, values), config.sweep.metric

    class Hopeless(Exception):
        """Not worth going on with."""

    def judge(record: Record) -> None:
        value = getattr(record, metric)
        if value is not None:
            trial.report(value, record.round)
            if config.sweep.prune and trial.should_prune():
                raise Hopeless

    watchers = [judge]
    kept = RunFolder(folder, _table(settings))
    try:
        result = settings.run(settings.algorithm, settings.selection, settings.seed, out=kept, callbacks=watchers)
    except (Hopeless, DivergenceError):
        return None
    if result.interrupted:
        raise KeyboardInterrupt
    value = last_value(result.history, metric)
    return value if value is not None and math.isfinite(value) else None


def _write(study: Any, config: SweepConfig, out: Path) -> None:
    """trials.csv: a line for each trial."""
    fields = list(config.sweep.space)
    with (out / "trials.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["trial", "state", config.sweep.metric, *fields])
        for trial in study.trials:
            value = "" if trial.value is None else trial.value
            writer.writerow([trial.number, trial.state.name.lower(), value, *(trial.params.get(f, "") for f in fields)])
