"""Build a comparison of Python objects from the arguments of `fm.compare`, and check it before anything is trained."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

from ..algorithm import Algorithm
from ..config.comparison import tuned_label
from ..config.fields import MAX_ENTRIES, FinalOf
from ..config.schema import Tuning, parse
from ..core.formatting import format_value
from ..core.validation import boolean, count, integer, none, require, suggest, text_up_to
from ..core.validation import seed as seed_rule
from ..engine.task_check import check_fit
from ..rng import signed
from ..run.build import build_task
from ..run.options import call_with_options, options_of
from ..run.preflight import check_metric, check_parts, check_target
from ..run.run_metrics import run_metrics
from ..run.spec import RunSpec
from .local_training import with_local_training
from .objects import ObjectComparison, ObjectMethod, tunable_fields, with_fields
from .runner import PlannedRun, own_values, rounds_of, tuning_runs

TUNING_SEED = 1000
"""The seed of tuning runs where none is given; the next one that the table does not use."""
_SETTINGS = ("seed", "by", "rounds", "rows")
"""Keys of `tune` that are no fields of algorithms."""
_ONE_FOR_ALL = {
    "data": "methods are compared on the same data",
    "rounds": "methods are compared over the same rounds",
    "seed": "all methods have the same seeds; use seeds=",
    "target": "the table has one target; use target=",
    "out": "every run has a folder in that of the comparison; use out=",
    "resume": "a comparison continues by itself; use out=",
    "label": "its key is its label",
}
"""Arguments of `fm.run` that no method has of its own, and why."""


def plan(
    methods: Mapping[str, Any],
    options: Mapping[str, Any],
    *,
    caller: str = "compare",
    selection: Any = None,
    seeds: int | Iterable[int] = 3,
    tune: Mapping[str, Any] | None = None,
    target: Mapping[str, Any] | None = None,
    metric: str | None = None,
    baseline: str | None = None,
    title: str = "Comparison",
    local_training: bool = False,
) -> ObjectComparison:
    """Return the comparison; `options` are `model`, `data`, `rounds` and other arguments of `fm.run`.

    Raises:
        ValueError: If something is wrong with an argument, or the parts of a method do not fit together.
        TypeError: If an option is none of `fm.run`'s.
    """
    options = dict(options)
    _check_options(caller, options)
    listed = _methods(methods, selection)
    table_seeds = [] if caller == "tune" else _seeds(seeds)
    goal, level = _target(target, list(listed))
    if baseline is not None:
        _check_label("baseline", baseline, list(listed))
    require(caller, "title", title, text_up_to(1000))
    require(caller, "metric", metric, text_up_to(1000) | none)
    require(caller, "rounds", options["rounds"], count)
    rounds = int(options.pop("rounds"))
    tuning, shared = (None, {}) if tune is None else _tuning(caller, tune, table_seeds, rounds, level)
    if tuning is not None and not shared and not any("grid" in own for own in listed.values()):
        raise ValueError(f"{caller}: 'tune' must have values to try, such as {{'lr': [0.01, 0.1]}}, got none")
    made = ObjectComparison(
        title=title,
        methods=[_method(label, own, tuning, shared) for label, own in listed.items()],
        seeds=table_seeds,
        rounds=rounds,
        metric=goal or metric or "",
        level=level,
        model=options.pop("model"),
        data=options.pop("data"),
        options=options,
        baseline=baseline,
        tune=tuning,
        shared_grid=shared,
    )
    require(caller, "local_training", local_training, boolean)
    made = with_local_training(made) if local_training else made
    _check_grids(caller, made)
    return _checked(caller, made)


def _check_options(caller: str, options: Mapping[str, Any]) -> None:
    known = list(options_of(RunSpec))
    for name in options:
        if name not in known:
            raise TypeError(f"{caller}() got an unexpected keyword argument {name!r}{suggest(name, known)}")
        if name in ("seed", "target", "out", "resume", "label"):
            raise TypeError(f"Cannot give {name!r} to {caller} because {_ONE_FOR_ALL[name]}")
    missing = [name for name in ("model", "data", "rounds") if name not in options]
    if missing:
        raise TypeError(f"{caller}() missing a required argument: {missing[0]!r}")


def _methods(methods: Any, selection: Any) -> dict[str, dict[str, Any]]:
    """Return the own arguments of each method, with `grid` among them where it is given."""
    if not isinstance(methods, Mapping) or not methods:
        raise ValueError(
            f"compare: 'methods' must map labels to algorithms, got {format_value(methods)}; use "
            '{"FedAvg": fm.FedAvg(lr=0.1), ...}'
        )
    listed = {}
    for label, given in methods.items():
        if not isinstance(label, str) or not label:
            raise ValueError(f"compare: 'methods' must have texts for labels, got {format_value(label)}")
        listed[label] = _own_arguments(label, given, selection)
    return listed


def _own_arguments(label: str, given: Any, selection: Any) -> dict[str, Any]:
    where = f"compare: methods[{label!r}]"
    if isinstance(given, tuple) and len(given) == 2:
        given = {"algorithm": given[0], "selection": given[1]}
    own = dict(given) if isinstance(given, Mapping) else {"algorithm": given}
    if selection is not None:
        own = {"selection": selection} | own
    if not isinstance(own.get("algorithm"), Algorithm):
        raise ValueError(
            f"{where} must be an algorithm, a pair of algorithm and selection, or a mapping of fm.run's arguments with "
            f"'algorithm', got {format_value(given)}"
        )
    if "selection" not in own:
        raise ValueError(f"{where} needs a selection; use selection= for all methods, or (algorithm, selection)")
    known = [*options_of(RunSpec), "grid"]
    for name in own:
        if name in _ONE_FOR_ALL:
            raise ValueError(f"{where}: Cannot have its own {name!r} because {_ONE_FOR_ALL[name]}")
        if name not in known:
            raise ValueError(f"{where}: {name!r} is no argument of fm.run{suggest(str(name), known)}")
    return own


def _seeds(seeds: Any) -> list[int]:
    if integer.test(seeds):
        require("compare", "seeds", seeds, integer.up_to(MAX_ENTRIES))
    try:
        many = range(seeds) if integer.test(seeds) else seeds
        listed = [] if isinstance(many, str | bytes | Mapping) else list(many)
    except TypeError:
        listed = []
    if not listed:
        raise ValueError(f"compare: 'seeds' must be a number of seeds or a list of them, got {format_value(seeds)}")
    for one in listed:
        require("compare", "seeds", one, seed_rule)
    checked = [int(one) for one in listed]
    if len(set(map(signed, checked))) < len(checked):
        raise ValueError(f"compare: 'seeds' must be different, got {format_value(checked)}")
    return checked


def _target(target: Any, labels: Sequence[str]) -> tuple[str | None, float | FinalOf | None]:
    """Return the metric and the value to reach; `check_target` judges them later, when the metrics are known."""
    if target is None:
        return None, None
    if not isinstance(target, Mapping) or len(target) != 1:
        raise ValueError(
            f"compare: 'target' must be one metric with its value, such as {{\"accuracy\": 0.9}}, got "
            f"{format_value(target)}"
        )
    metric, level = next(iter(target.items()))
    if not isinstance(level, Mapping):
        return str(metric), level
    if set(level) != {"final_of"}:
        raise ValueError(
            f"compare: 'target' must have for {metric} a number or {{\"final_of\": label}}, got {format_value(level)}"
        )
    _check_label(f"target[{metric!r}]['final_of']", level["final_of"], labels)
    return str(metric), FinalOf(final_of=level["final_of"])


def _check_label(name: str, label: Any, labels: Sequence[str]) -> None:
    if label not in labels:
        raise ValueError(
            f"compare: {name!r} must be the label of a method, got {format_value(label)}{suggest(str(label), labels)}"
        )


def _tuning(
    caller: str, tune: Any, seeds: Sequence[int], rounds: int, level: float | FinalOf | None
) -> tuple[Tuning, dict[str, list[float]]]:
    """Return how values are chosen, and the values to try for all methods by field."""
    if not isinstance(tune, Mapping):
        raise ValueError(f"{caller}: 'tune' must map fields to values, got {format_value(tune)}; use {{'lr': [...]}}")
    where = f"{caller}: 'tune'"
    shared = {name: numbers(where, name, values) for name, values in tune.items() if name not in _SETTINGS}
    given = {name: tune[name] for name in _SETTINGS if tune.get(name) is not None}
    by_rounds = level is not None and not isinstance(level, FinalOf)
    taken = {signed(seed) for seed in seeds}
    free = next(seed for seed in range(TUNING_SEED, TUNING_SEED + len(taken) + 1) if seed not in taken)
    table = {"lr": shared.get("lr", [1.0]), "seed": free, "by": "rounds" if by_rounds else "final"} | given
    tuning = parse(Tuning, table, where)
    if signed(tuning.seed) in taken:
        raise ValueError(f"{caller}: 'tune' must have a seed that the table does not use, got {tuning.seed}")
    if tuning.rounds is not None and tuning.rounds > rounds:
        raise ValueError(f"{caller}: 'tune' must have at most {rounds} rounds, as the runs have, got {tuning.rounds}")
    if tuning.by == "rounds" and not by_rounds:
        what = "'by' must be 'final'" if caller == "tune" else "'tune' must have by='final'"
        raise ValueError(f"{caller}: {what} where the target is no number, got 'rounds'")
    return tuning, shared


def numbers(owner: str, name: Any, values: Any) -> list[float]:
    """Return the values to try for a field as a list of different numbers."""
    listed = [] if isinstance(values, str | Mapping) or not isinstance(values, Iterable) else list(values)
    listed = [one.item() if hasattr(one, "item") else one for one in listed]
    real = all(isinstance(one, int | float) and not isinstance(one, bool) and math.isfinite(one) for one in listed)
    if not listed or not real or len(set(listed)) < len(listed):
        raise ValueError(f"{owner} must have different numbers to try for {name!r}, got {format_value(values)}")
    return listed


def _method(label: str, own: dict[str, Any], tuning: Tuning | None, shared: Mapping[str, list[float]]) -> ObjectMethod:
    """Return a method with its whole grid: the values for all methods, those of its own, and its step size."""
    where, grid = f"compare: methods[{label!r}]", own.pop("grid", None)
    if tuning is None:
        if grid is not None:
            raise ValueError(f"{where} must have no grid where there is no tune; use tune=")
        return ObjectMethod(label=label, arguments=own)
    algorithm = own["algorithm"]
    values = {name: tried for name, tried in shared.items() if name in tunable_fields(algorithm)}
    if grid is not None:
        if not isinstance(grid, Mapping):
            raise ValueError(f"{where} must have a grid that maps fields to values, got {format_value(grid)}")
        values |= {name: numbers(where, name, tried) for name, tried in grid.items()}
    return ObjectMethod(label=label, arguments=own, grid={"lr": [float(algorithm.lr)]} | values)


def _check_grids(caller: str, made: ObjectComparison) -> None:
    """Refuse fields that no method has, grids that are too large, and labels that tuned methods get."""
    if made.tune is None:
        return
    for name in made.shared_grid:
        algorithms = [method.algorithm for method in made.methods]
        if not any(name in tunable_fields(algorithm) for algorithm in algorithms):
            with_fields(algorithms[0], {name: 0.0}, f"{caller}: 'tune'")
    for method in made.methods:
        with_fields(method.algorithm, {}, f"{caller}: methods[{method.label!r}]")  # refuses what is no dataclass
        tried = math.prod(map(len, made.tune.grid(method).values()))
        if tried > MAX_ENTRIES:
            raise ValueError(
                f"{caller}: the grid of {method.label} must have at most {MAX_ENTRIES:,} combinations, got {tried:,}"
            )
    labels = [method.label for method in made.methods]
    if made.tune.rows == "both" and (twice := next((v for v in labels if tuned_label(v) in labels), None)):
        taken = tuned_label(twice)
        raise ValueError(f"compare: 'methods' must not have {taken!r}, which the tuned {twice!r} is called")


def _checked(caller: str, made: ObjectComparison) -> ObjectComparison:
    """Build every variant of every method once, so that an error in the last is found before the first has run."""
    known: list[list[str]] = []
    for method in made.methods:
        seed = next(iter(made.seeds), made.tune.seed if made.tune is not None else 0)
        given = [] if made.tune is not None and made.tune.rows == "tuned" else [own_values(method)]
        runs = [PlannedRun(method.label, values, seed) for values in given] + tuning_runs(made, method)
        for run in runs:
            arguments = made.arguments(run, {"rounds": rounds_of(made, run)})
            spec = call_with_options("compare", RunSpec, (), arguments)
            check_parts(spec)
        task = build_task(replace(spec, precision=None), torch.device("cpu"), spec.data)
        check_fit(task)
        known.append(run_metrics(spec, task).names)
    common = [name for name in known[0] if all(name in names for names in known)]
    metric = made.metric or next(m for m in ("accuracy", "test_loss", "train_accuracy", *common) if m in common)
    if made.level is None:
        check_metric(caller, "metric", metric, common)
        return replace(made, metric=metric)
    level = check_target({metric: 0.0 if isinstance(made.level, FinalOf) else made.level}, common)[metric]
    return replace(made, metric=metric, level=made.level if isinstance(made.level, FinalOf) else level)
