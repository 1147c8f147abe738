"""Compare methods: how many rounds and bytes each needs to reach the target.

Every run has its own folder, so that an interrupted comparison continues where it stopped. The runs of a method
(seeds, points of its grid) train as one program (`fm.run_many`). On a CPU, methods train in parallel single-threaded
processes, which for many small runs is faster than one method after another on all cores. On a GPU, the runs of all
methods with the same algorithm are one program.
"""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from pathlib import Path

import torch

from ..config.comparison import ALONE
from ..config.schema import CompareConfig, Training, check_same, load
from ..run.result import Result
from ..storage import RunFolder, toml
from ..storage.files import replace_file
from .comparison import Comparison, run_folder
from .progress import ComparisonObserver
from .runner import PlannedRun, Runner, mergeable_methods, resolve_target
from .table import ComparisonTable, write
from .workers import ctrl_c_ignored, start_worker, stop_workers, stopped_by_parent

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
    with ProcessPoolExecutor(workers, mp_context=spawn, initializer=start_worker) as pool:
        try:
            results = Comparison(config, _PoolTrainer(config, out, pool, workers, observer), observer).results()
        except BaseException:
            stop_workers()
            pool.shutdown(cancel_futures=True)
            raise
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


class _PoolTrainer:
    """Trains the runs of a configuration in the processes of a pool, each in its folder."""

    def __init__(
        self, config: CompareConfig, out: Path, pool: ProcessPoolExecutor, workers: int, observer: ComparisonObserver
    ) -> None:
        self._out, self._config, self._pool, self._observer = out, config, pool, observer
        self._text = config.model_dump_json()
        parallel = workers > 1  # then every method is a task of its own
        groups = [[method] for method in config.methods] if parallel else mergeable_methods(config.methods)
        self.groups = [[method.label for method in group] for group in groups]
        self._tasks_per_group = -(workers // -len(groups))
        self._started: dict[PlannedRun, Future[int]] = {}

    def start(self, runs: Sequence[PlannedRun]) -> None:
        """Submit runs, except those that have been started, as a few tasks."""
        new = [run for run in dict.fromkeys(runs) if run not in self._started]
        width = max(1, -(len(new) // -self._tasks_per_group))
        for i in range(0, len(new), width):
            task = new[i : i + width]
            with ctrl_c_ignored():  # by the process that this may start: its parent tells it when to stop
                future = self._pool.submit(_train, self._text, task, str(self._out))
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


def _train(text: str, runs: list[PlannedRun], out: str) -> int:
    """Train runs in a worker process and return the number of rounds; `text` is the configuration as JSON."""
    config = CompareConfig.model_validate_json(text)
    runner = Runner(config, lambda run: RunFolder(run_folder(config, run, Path(out)), light=config.light))
    with stopped_by_parent():
        runner.train(runs)
    return runner.rounds_trained
