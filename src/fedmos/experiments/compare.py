"""Compare methods: how many rounds and bytes each needs to reach the target.

Every run has its own folder, so that an interrupted comparison continues where it stopped. The runs of a method
(seeds, points of its grid) train as one program (`fm.run_many`). On a CPU, methods train in parallel single-threaded
processes, which for many small runs is faster than one method after another on all cores. On a GPU, the runs of all
methods with the same algorithm are one program.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from concurrent.futures import Future
from pathlib import Path

from ..config.comparison import ALONE
from ..config.schema import CompareConfig, Training, check_same, load
from ..run.result import Result
from ..storage import RunFolder, toml
from ..storage.files import replace_file
from .comparison import Comparison, run_folder
from .executors import TaskExecutor, check_where, make_executor
from .progress import ComparisonObserver
from .runner import PlannedRun, Runner, mergeable_methods, resolve_target, runs_from_json
from .table import ComparisonTable
from .table_formats import write
from .workers import stopped_by_parent

CONFIGURATION = "comparison.toml"
"""The name, in a comparison's folder, of its configuration."""


def compare(
    config: CompareConfig,
    out: Path,
    observer: ComparisonObserver | None = None,
    workers: int | None = None,
    on: str | None = None,
) -> ComparisonTable:
    """Run every method for every seed, and write and return the table.

    Methods have the values of the configuration, the best of their grid, or both, as `config.tune` says.

    Args:
        config: Methods, seeds and a target.
        out: Folder for the runs and the table. A comparison that it holds already continues.
        observer: Is called as tuning and training of a method begin and end.
        workers: Number of processes (default: one per CPU core, or one if there is a GPU).
        on: Where the runs are trained: None for processes of this machine, "ray" for a Ray cluster on this machine,
            "ray://HOST:PORT" for another one. The results are the same.

    Raises:
        ConfigError: If the configuration is invalid, or `out` holds runs with other settings.
        ValueError: If there are several ranks.

    Example:
        >>> config = load(CompareConfig, "examples/mnist_methods.toml")
        >>> table = compare(config, Path("runs/mnist_methods"))
    """
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise ValueError("Cannot compare over several ranks because runs are compared side by side in one process")
    if on is not None:
        check_where(on)
    config = config.completed()
    config.check()
    observer = observer or ComparisonObserver()
    if (out / CONFIGURATION).exists():
        _check_same(load(CompareConfig, out / CONFIGURATION), config, out)
    out.mkdir(parents=True, exist_ok=True)
    replace_file(out / CONFIGURATION, toml.dumps(config.kept()).encode())
    (out / "table.json").unlink(missing_ok=True)  # its presence marks a complete comparison
    with make_executor(on, config.device, workers) as executor:
        results = Comparison(config, _ExecutorTrainer(config, out, executor, observer), observer).results()
    target = resolve_target(config, results)
    table = ComparisonTable(metric=config.metric, target=target, baseline=config.reference, results=results)
    write(table, out)
    return table


def _check_same(before: CompareConfig, config: CompareConfig, out: Path) -> None:
    """Refuse to continue runs with other settings.

    Other step sizes, seeds and grid values, and methods appended to the list, are allowed: their runs have their own
    folders.
    """
    shared = set(Training.model_fields) - {"rounds", "device", "diagnostics", "evaluate_clients"}
    old, new = before.kept(include=shared), config.kept(include=shared)
    given = [[method for method in one.methods if method.label != ALONE] for one in (before, config)]
    for i, methods in enumerate(zip(*given, strict=False)):
        for fields, method in zip((old, new), methods, strict=True):
            fields[f"methods.{i}.algorithm"] = method.algorithm.but(lr=None).model_dump()
            fields[f"methods.{i}.selection"] = method.selection.model_dump()
            own = {"local", "personal", "uplink", "downlink", "aggregation", "attack"}
            for name, value in method.model_dump(include=own).items():
                fields[f"methods.{i}.{name}"] = value
    lengths = {"rounds": (before.rounds, config.rounds)}
    if before.tune is not None and config.tune is not None:
        lengths["tune.rounds"] = (before.tune.rounds or before.rounds, config.tune.rounds or config.rounds)
    for field, (was, now) in lengths.items():
        if now < was or before.light:
            old[field], new[field] = was, now
    check_same(f"the comparison in {out}", old, new)


class _ExecutorTrainer:
    """Trains the runs of a configuration as tasks of an executor, each run in its folder."""

    def __init__(self, config: CompareConfig, out: Path, executor: TaskExecutor, observer: ComparisonObserver) -> None:
        self._out, self._config, self._executor, self._observer = out, config, executor, observer
        parallel = executor.workers > 1  # then every method is a task of its own
        groups = [[method] for method in config.methods] if parallel else mergeable_methods(config.methods)
        self.groups = [[method.label for method in group] for group in groups]
        self._tasks_per_group = -(executor.workers // -len(groups))
        self._started: dict[PlannedRun, Future[int]] = {}

    def start(self, runs: Sequence[PlannedRun]) -> None:
        """Submit runs, except those that have been started, as a few tasks."""
        new = [run for run in dict.fromkeys(runs) if run not in self._started]
        width = max(1, -(len(new) // -self._tasks_per_group))
        for i in range(0, len(new), width):
            task = new[i : i + width]
            given = json.dumps({"config": self._config.model_dump_json(), "runs": task})
            future = self._executor.submit(train_runs, given, self.folders(task))
            future.add_done_callback(self._count)
            self._started |= dict.fromkeys(task, future)

    def _count(self, future: Future[int]) -> None:
        if not future.cancelled() and future.exception() is None:
            self._observer.rounds_trained += future.result()

    def started(self, run: PlannedRun) -> bool:
        return run in self._started

    def results(self, runs: Sequence[PlannedRun]) -> list[Result]:
        for run in runs:
            self._started[run].result()
        return [Result.load(folder) for folder in self.folders(runs)]

    def folders(self, runs: Sequence[PlannedRun]) -> list[Path]:
        return [run_folder(self._config, run, self._out) for run in runs]


def train_runs(given: str, folders: list[Path]) -> int:
    """Train runs in a worker process, each in its folder, and return the number of rounds.

    Args:
        given: The configuration and the runs, as JSON.
        folders: The folders of the runs, in order.
    """
    table = json.loads(given)
    config, runs = CompareConfig.model_validate_json(table["config"]), runs_from_json(table["runs"])
    folder_of = dict(zip(runs, folders, strict=True))
    runner = Runner(config, lambda run: RunFolder(folder_of[run], light=config.light))
    with stopped_by_parent():
        runner.train(runs)
    return runner.rounds_trained
