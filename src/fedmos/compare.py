"""Methods side by side: who reaches the target in how many rounds and bytes.

Every run has a folder of its own, so a comparison that was cut off continues where it was. The runs of a
method (seeds, step sizes) train side by side as one program (`fm.run_many`); methods share the machine's cores as
single-threaded processes, which for many small runs is faster than one after another with all cores each.
"""

from __future__ import annotations

import math
import multiprocessing
import os
from collections.abc import Callable
from concurrent.futures import Future, ProcessPoolExecutor
from pathlib import Path
from typing import NamedTuple

import torch

from .config import CompareConfig
from .config_fields import FinalOf
from .many import run_many
from .metrics import is_loss
from .outcomes import Row, final_mean, last_value, spread
from .result import Result
from .storage import toml
from .storage.files import replace_file
from .table import Table, write
from .watching import Onlooker

CONFIGURATION = "comparison.toml"
"""The name, in a comparison's folder, of the configuration that it ran with."""


class Job(NamedTuple):
    """One run of a comparison; `stop` ends it at the target."""

    method: int
    lr: float
    seed: int
    stop: bool

    def folder(self, out: str | Path) -> Path:
        return Path(out) / "runs" / (f"{self.method}-lr{self.lr:g}-seed{self.seed}" + ("-tuning" if self.stop else ""))


def compare(config: CompareConfig, out: Path, onlooker: Onlooker | None = None, workers: int | None = None) -> Table:
    """Run every method for every seed, each with the best step size of the grid if the configuration asks to tune.

    The table is written to the folder, too.
    """
    config.check()
    onlooker = onlooker or Onlooker()
    out.mkdir(parents=True, exist_ok=True)
    replace_file(out / CONFIGURATION, toml.dumps(config.kept()).encode())
    (out / "table.json").unlink(missing_ok=True)  # which says that the comparison is complete
    rows = _rows(config, out, onlooker, workers)
    table = tabulate(config, rows)
    write(table, out)
    return table


def tabulate(config: CompareConfig, rows: list[Row]) -> Table:
    """What the rows say of the configuration's target."""
    level = config.level
    if isinstance(level, FinalOf):
        level = final_mean(next(row for row in rows if row.label == level.final_of), config.metric)
    return Table(metric=config.metric, target=level, baseline=config.reference, rows=rows)


def _rows(config: CompareConfig, out: Path, onlooker: Onlooker, workers: int | None) -> list[Row]:
    workers = workers or (os.cpu_count() or 1 if not torch.cuda.is_available() else 1)
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(workers, mp_context=spawn, initializer=torch.set_num_threads, initargs=(1,)) as pool:
        text = config.model_dump_json()
        parts = -(workers // -len(config.methods))

        def start(jobs: list[Job]) -> list[Future[None]]:
            """Begin the runs of one method, in as many processes as there are to spare; a future for each run."""
            width = -(len(jobs) // -parts)
            shares = [jobs[i : i + width] for i in range(0, len(jobs), width)]
            futures = [(pool.submit(_work, text, share, str(out)), len(share)) for share in shares]
            return [future for future, count in futures for _ in range(count)]

        def finished(jobs: list[Job], futures: list[Future[None]]) -> list[Result]:
            for future in futures:
                future.result()
            return [Result.load(job.folder(out)) for job in jobs]

        try:
            lrs = _step_sizes(config, out, start, finished, onlooker)
            jobs = [[Job(i, lr, seed, stop=False) for seed in config.seeds] for i, lr in enumerate(lrs)]
            for method, row in zip(config.methods, jobs, strict=True):
                onlooker.training(method.label, [job.folder(out) for job in row])
            futures = [start(row) for row in jobs]
            rows = []
            for i, method in enumerate(config.methods):
                results = dict(zip(config.seeds, finished(jobs[i], futures[i]), strict=True))
                rows.append(Row.of(method.label, lrs[i], results))
                onlooker.trained(method.label, _in_short(config, rows[-1]))
            return rows
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise


def _in_short(config: CompareConfig, row: Row) -> str:
    """What is known of a method before all others have ended."""
    final = f"final {config.metric} {spread(list(row.final(config.metric).values()), 3)}"
    if isinstance(config.level, FinalOf):
        return final
    costs = row.costs(config.metric, config.level).values()
    rounds = spread([None if c is None else c.rounds for c in costs])
    return f"rounds to {config.metric} {config.level:g}: {rounds}; {final}"


def _step_sizes(
    config: CompareConfig,
    out: Path,
    start: Callable[[list[Job]], list[Future[None]]],
    finished: Callable[[list[Job], list[Future[None]]], list[Result]],
    onlooker: Onlooker,
) -> list[float]:
    """Each method's own step size, or the best of the common grid on the tuning seed."""
    if config.tune is None:
        return [float(method.algorithm.fields["lr"]) for method in config.methods]
    tune, metric, target, chosen = config.tune, config.metric, config.level, []

    def cost(result: Result) -> tuple[float, float]:
        """What to minimise: rounds to the target if it was reached and counts, then how bad the last value is."""
        rounds = None if isinstance(target, FinalOf) else result.rounds_to(metric, target)
        value = last_value(result.history, metric)
        if len(result.history) < config.rounds and rounds is None:
            value = None  # it diverged
        badness = math.inf if value is None else value if is_loss(metric) else -value
        if tune.by == "final":
            return 0.0, badness
        return (math.inf, badness) if rounds is None else (rounds, 0.0)

    stop = tune.by == "rounds"
    jobs = [[Job(i, lr, tune.seed, stop) for lr in tune.lr] for i in range(len(config.methods))]
    for method, row in zip(config.methods, jobs, strict=True):
        onlooker.tuning(method.label, [job.folder(out) for job in row])
    futures = [start(row) for row in jobs]
    for i, method in enumerate(config.methods):
        costs = dict(zip(tune.lr, map(cost, finished(jobs[i], futures[i])), strict=True))
        chosen.append(min(sorted(costs), key=lambda lr: costs[lr]))  # the smallest of equally good ones
        onlooker.tuned(method.label, chosen[-1])
    return chosen


def _work(text: str, jobs: list[Job], out: str) -> None:
    """Runs of one method, in a worker, side by side; one that diverges counts as far as it got."""
    config = CompareConfig.model_validate_json(text)
    dataset = config.data.load()
    runs = []
    for job in jobs:
        method = config.methods[job.method]
        algorithm = method.algorithm.but(lr=job.lr)
        more = {"target": config.target if job.stop else None, "out": job.folder(out), "resume": True}
        runs.append(config.arguments(algorithm, method.selection, job.seed, dataset, **more))
    run_many(runs)


def caption(config: CompareConfig) -> str:
    """How the numbers of the table came about."""
    how = "its own step size"
    if config.tune is not None:
        grid = ", ".join(f"{lr:g}" for lr in config.tune.lr)
        best = {"rounds": "reached it first", "final": "ended best"}[config.tune.by]
        how = f"the step size among {grid} that {best} on seed {config.tune.seed}"
    return (
        f"Mean ± standard deviation over {len(config.seeds)} seeds; every method with {how}. MB count both directions."
    )
