"""Methods side by side: who reaches the target in how many rounds and bytes.

Every run has a folder of its own, so a comparison that was cut off continues where it was. The runs of a
method (seeds, step sizes) train side by side as one program (`fm.run_many`); methods share the machine's cores as
single-threaded processes, which for many small runs is faster than one after another with all cores each.
"""

from __future__ import annotations

import math
import multiprocessing
import os
import statistics
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import torch

from .config import CompareConfig, Method
from .many import run_many
from .metrics import is_loss
from .result import Result

Say = Callable[[str], None]


@dataclass(frozen=True, kw_only=True)
class Row:
    """One method: its step size and its result for each seed."""

    method: Method
    lr: float
    results: list[Result]

    def rounds(self, metric: str, target: float) -> list[int | None]:
        return [r.rounds_to(metric, target) for r in self.results]

    def megabytes(self, metric: str, target: float) -> list[float | None]:
        return [None if b is None else b / 1e6 for b in (r.bytes_to(metric, target) for r in self.results)]

    def final(self, metric: str) -> list[float | None]:
        return [last_value(r, metric) for r in self.results]


class Job(NamedTuple):
    """One run of a comparison; `stop` ends it at the target."""

    method: int
    lr: float
    seed: int
    stop: bool

    def folder(self, out: str | Path) -> Path:
        return Path(out) / "runs" / (f"{self.method}-lr{self.lr:g}-seed{self.seed}" + ("-tuning" if self.stop else ""))


def compare(config: CompareConfig, out: Path, say: Say = lambda line: None, workers: int | None = None) -> list[Row]:
    """Run every method for every seed, each with the best step size of the grid if the configuration asks to tune."""
    config.check()
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
            lrs = _step_sizes(config, start, finished, say)
            jobs = [[Job(i, lr, seed, stop=False) for seed in config.seeds] for i, lr in enumerate(lrs)]
            futures = [start(row) for row in jobs]
            rows = []
            for i, method in enumerate(config.methods):
                rows.append(Row(method=method, lr=lrs[i], results=finished(jobs[i], futures[i])))
                say(f"{method.label}: rounds to target {rows[-1].rounds(*_target(config))}")
            return rows
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise


def _step_sizes(
    config: CompareConfig,
    start: Callable[[list[Job]], list[Future[None]]],
    finished: Callable[[list[Job], list[Future[None]]], list[Result]],
    say: Say,
) -> list[float]:
    """Each method's own step size, or the best of the common grid on the tuning seed."""
    if config.tune is None:
        return [float(method.algorithm.fields["lr"]) for method in config.methods]
    metric, target = _target(config)

    tune, chosen = config.tune, []

    def cost(result: Result) -> tuple[float, float]:
        """What to minimise: rounds to the target if it was reached and counts, then how bad the last value is."""
        rounds, value = result.rounds_to(metric, target), last_value(result, metric)
        if len(result.history) < config.rounds and rounds is None:
            value = None  # it diverged
        badness = math.inf if value is None else value if is_loss(metric) else -value
        if tune.by == "final":
            return 0.0, badness
        return (math.inf, badness) if rounds is None else (rounds, 0.0)

    stop = tune.by == "rounds"
    jobs = [[Job(i, lr, tune.seed, stop) for lr in tune.lr] for i in range(len(config.methods))]
    futures = [start(row) for row in jobs]
    for i, method in enumerate(config.methods):
        costs = dict(zip(tune.lr, map(cost, finished(jobs[i], futures[i])), strict=True))
        chosen.append(min(sorted(costs), key=lambda lr: costs[lr]))  # the smallest of equally good ones
        say(f"{method.label}: step size {chosen[-1]:g}")
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


def _target(config: CompareConfig) -> tuple[str, float]:
    ((metric, target),) = config.target.items()
    return metric, target


def last_value(result: Result, metric: str) -> float | None:
    values = [getattr(record, metric) for record in result.history if getattr(record, metric) is not None]
    return values[-1] if values else None


def spread(values: Sequence[float | None], digits: int = 0) -> str:
    """mean ± standard deviation; "not reached" where all are missing, and how many were reached where some are."""
    known = [v for v in values if v is not None]
    if not known:
        return "not reached"
    text = f"{statistics.mean(known):.{digits}f}"
    if len(known) > 1:
        text += f" ± {statistics.stdev(known):.{digits}f}"
    return text if len(known) == len(values) else f"{text} ({len(known)} of {len(values)} reached it)"


def table(config: CompareConfig, rows: list[Row]) -> tuple[list[str], list[list[str]]]:
    """Headings and cells."""
    metric, target = _target(config)
    headings = [
        "method",
        "step size",
        f"rounds to {metric} {target:g}",
        f"MB to {metric} {target:g}",
        f"final {metric}",
    ]
    cells = [
        [
            row.method.label,
            f"{row.lr:g}",
            spread(row.rounds(metric, target)),
            spread(row.megabytes(metric, target), 2),
            spread(row.final(metric), 3),
        ]
        for row in rows
    ]
    return headings, cells
