"""Compare methods: how many rounds and bytes each needs to reach the target.

Every run has its own folder, so that an interrupted comparison continues where it stopped. The runs of a method
(seeds, points of its grid) train as one program (`fm.run_many`). On a CPU, methods train in parallel single-threaded
processes, which for many small runs is faster than one method after another on all cores. On a GPU, the runs of all
methods with the same algorithm are one program.
"""

from __future__ import annotations

import multiprocessing
import os
import threading
from collections.abc import Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from pathlib import Path

import torch

from ..config.fields import FinalOf
from ..config.schema import CompareConfig, Method, Training, Tuning, check_same, load
from ..run.result import Result
from ..storage import RunFolder, toml
from ..storage.files import replace_file
from .progress import ComparisonObserver
from .runner import (
    PlannedMethod,
    PlannedRun,
    Runner,
    mergeable_methods,
    planned_methods,
    resolve_target,
    tuning_runs,
)
from .seed_statistics import MethodResult, TunedValues, spread
from .table import ComparisonTable, write
from .tune import choose, trial_of

CONFIGURATION = "comparison.toml"
"""The name, in a comparison's folder, of its configuration."""


def compare(
    config: CompareConfig, out: Path, observer: ComparisonObserver | None = None, workers: int | None = None
) -> ComparisonTable:
    """Run every method for every seed, and write and return the table.

    Methods have the values of the configuration, the best of their grid, or both, as `config.tune` says.

    Args:
        config: Methods, seeds and a target.
        out: Folder for the runs and the table. A comparison that it holds already continues.
        observer: Is called as tuning and training of a method begin and end.
        workers: Number of processes (default: one per CPU core, or one if there is a GPU).

    Raises:
        ConfigError: If the configuration is invalid, or `out` holds runs with other settings.
        ValueError: If there are several ranks.

    Example:
        >>> config = load(CompareConfig, "examples/mnist_methods.toml")
        >>> table = compare(config, Path("runs/mnist_methods"))
    """
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise ValueError("Cannot compare over several ranks because runs are compared side by side in one process")
    config.check()
    observer = observer or ComparisonObserver()
    if (out / CONFIGURATION).exists():
        _check_same(load(CompareConfig, out / CONFIGURATION), config, out)
    out.mkdir(parents=True, exist_ok=True)
    replace_file(out / CONFIGURATION, toml.dumps(config.kept()).encode())
    (out / "table.json").unlink(missing_ok=True)  # its presence marks a complete comparison
    workers = workers or (os.cpu_count() or 1 if not torch.cuda.is_available() else 1)
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(workers, mp_context=spawn, initializer=_start_worker) as pool:
        try:
            results = _Comparison(config, out, observer, pool, workers).results()
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise
    target = resolve_target(config, results)
    table = ComparisonTable(metric=config.metric, target=target, baseline=config.reference, results=results)
    write(table, out)
    return table


def run_folder(config: CompareConfig, run: PlannedRun, out: Path) -> Path:
    """Return the folder of a run of the comparison in `out`."""
    number = [method.label for method in config.methods].index(run.label)
    values = "-".join(f"{field}{value:g}" for field, value in run.values)
    return out / ("tuning" if run.tuning else "runs") / f"{number}-{values}-seed{run.seed}"


def _check_same(before: CompareConfig, config: CompareConfig, out: Path) -> None:
    """Refuse to continue runs with other settings.

    Other step sizes, seeds and grid values, and methods appended to the list, are allowed: their runs have their own
    folders.
    """
    shared = set(Training.model_fields) - {"rounds", "device", "diagnostics"}
    old, new = before.kept(include=shared), config.kept(include=shared)
    for i, methods in enumerate(zip(before.methods, config.methods, strict=False)):
        for fields, method in zip((old, new), methods, strict=True):
            fields[f"methods.{i}.algorithm"] = method.algorithm.but(lr=None).model_dump()
            fields[f"methods.{i}.selection"] = method.selection.model_dump()
    lengths = {"rounds": (before.rounds, config.rounds)}
    if before.tune is not None and config.tune is not None:
        lengths["tune.rounds"] = (before.tune.rounds or before.rounds, config.tune.rounds or config.rounds)
    for field, (was, now) in lengths.items():
        if now < was or before.light:
            old[field], new[field] = was, now
    check_same(f"the comparison in {out}", old, new)


class _Comparison:
    """The runs of a comparison, in the processes of a pool."""

    def __init__(
        self, config: CompareConfig, out: Path, observer: ComparisonObserver, pool: ProcessPoolExecutor, workers: int
    ) -> None:
        self._config, self._out, self._observer, self._pool = config, out, observer, pool
        self._text = config.model_dump_json()
        parallel = workers > 1  # then every method is a task of its own
        self._groups = [[method] for method in config.methods] if parallel else mergeable_methods(config.methods)
        self._tasks_per_group = -(workers // -len(self._groups))
        self._started: dict[PlannedRun, Future[None]] = {}

    def results(self) -> list[MethodResult]:
        """Train everything, and return the rows of the table."""
        config = self._config
        tuned = {} if config.tune is None else self._tune(config.tune)
        for group in self._groups:
            self._start(group, planned_methods(config, tuned))
        return [self._result(planned) for planned in planned_methods(config, tuned)]

    def _tune(self, tune: Tuning) -> dict[str, TunedValues]:
        """Choose values for every method, by label. The runs of the table start as early as possible."""
        config, tuned = self._config, dict[str, TunedValues]()
        trials = {method.label: tuning_runs(config, method) for method in config.methods}
        for label, runs in trials.items():
            self._observer.tuning(config.tuned_as(label), self._folders(runs))
        for group in self._groups:
            self._start(group, planned_methods(config, {}), [run for method in group for run in trials[method.label]])
        for group in self._groups:
            for label in (method.label for method in group):
                runs = trials[label]
                results = zip(runs, self._wait(runs), strict=True)
                tuned[label] = choose(tune, config.metric, [trial_of(config, run, result) for run, result in results])
                self._observer.tuned(config.tuned_as(label), str(tuned[label]))
            self._start(group, planned_methods(config, tuned))
        return tuned

    def _start(self, group: list[Method], rows: list[PlannedMethod], runs: Sequence[PlannedRun] = ()) -> None:
        """Submit `runs` and the runs of a group's rows, except those that have been started, as a few tasks."""
        for planned in rows:
            own = planned.runs(self._config.seeds)
            if planned.method in group and not all(run in self._started for run in own):
                self._observer.training(planned.label, self._folders(own))
                runs = [*runs, *own]
        new = [run for run in dict.fromkeys(runs) if run not in self._started]
        width = max(1, -(len(new) // -self._tasks_per_group))
        for i in range(0, len(new), width):
            task = new[i : i + width]
            future = self._pool.submit(_train, self._text, task, str(self._out))
            self._started |= dict.fromkeys(task, future)

    def _wait(self, runs: list[PlannedRun]) -> list[Result]:
        for run in runs:
            self._started[run].result()
        return [Result.load(folder) for folder in self._folders(runs)]

    def _folders(self, runs: list[PlannedRun]) -> list[Path]:
        return [run_folder(self._config, run, self._out) for run in runs]

    def _result(self, planned: PlannedMethod) -> MethodResult:
        results = self._wait(planned.runs(self._config.seeds))
        result = planned.result(dict(zip(self._config.seeds, results, strict=True)))
        self._observer.trained(planned.label, _outcome(self._config, result))
        return result


def _outcome(config: CompareConfig, result: MethodResult) -> str:
    """One line about a method, which needs no other method's results."""
    known = [v for v in result.final(config.metric).values() if v is not None]
    final = f"final {config.metric} {spread(known, 3) if known else 'not measured'}"
    if isinstance(config.level, FinalOf):
        return final
    costs = result.costs(config.metric, config.level).values()
    rounds = spread([None if c is None else c.rounds for c in costs])
    return f"rounds to {config.metric} {config.level:g}: {rounds}; {final}"


def _start_worker() -> None:
    """Use one thread, and end with the parent process, even if that is killed."""
    torch.set_num_threads(1)
    threading.Thread(target=_exit_with_parent, daemon=True).start()


def _exit_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)  # runs continue from their checkpoints


def _train(text: str, runs: list[PlannedRun], out: str) -> None:
    """Train runs in a worker process; `text` is the configuration as JSON."""
    config = CompareConfig.model_validate_json(text)
    Runner(config, lambda run: RunFolder(run_folder(config, run, Path(out)), light=config.light)).train(runs)


def caption(config: CompareConfig) -> str:
    """Return the note below the table: seeds, and where the step sizes come from."""
    how = "its own step size"
    if config.tune is not None:
        tune = config.tune
        grid = ", ".join(f"{lr:g}" for lr in tune.lr)
        best = {"rounds": "reached it first", "final": "ended best"}[tune.by]
        within = "" if tune.rounds is None else f" within {tune.rounds} rounds"
        picked = f"the step size among {grid} that {best}{within} on seed {tune.seed}"
        if any(method.grid for method in config.methods):
            picked += " (some with a grid of their own)"
        how = picked if tune.rows == "tuned" else f"{how} and, where it says tuned, with {picked}"
    return (
        f"Mean ± standard deviation over {len(config.seeds)} seeds; every method with {how}. MB count both directions."
    )
