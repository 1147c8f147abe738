"""Methods side by side: who reaches the target in how many rounds and bytes.

Every run has a folder of its own, so a comparison that was cut off continues where it was. The runs of a
method (seeds, points of its grid) train side by side as one program (`fm.run_many`). On a CPU, methods share the
machine's cores as single-threaded processes, which for many small runs is faster than one after another with all
cores each; on a GPU, the runs of all methods with the same algorithm are one program.
"""

from __future__ import annotations

import multiprocessing
import os
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from pathlib import Path
from typing import NamedTuple

import torch

from ..config.fields import FinalOf
from ..config.schema import CompareConfig, Method, Training, Tuning, check_same, load
from ..run.many import run_many
from ..run.result import Result
from ..storage import RunFolder, toml
from ..storage.files import replace_file
from .progress import ComparisonObserver
from .seed_statistics import MethodResult, Tuned, final_mean, spread
from .table import Table, write
from .tune import choose

CONFIGURATION = "comparison.toml"
"""The name, in a comparison's folder, of the configuration that it ran with."""


class Job(NamedTuple):
    """One run of a comparison."""

    method: int
    values: tuple[tuple[str, float], ...]
    """The step size, and other fields of the algorithm that come from a grid."""
    seed: int
    tuning: bool = False

    def folder(self, out: str | Path) -> Path:
        name = "-".join(f"{field}{value:g}" for field, value in self.values)
        return Path(out) / ("tuning" if self.tuning else "runs") / f"{self.method}-{name}-seed{self.seed}"


class Entry(NamedTuple):
    """A row of the table to be."""

    label: str
    method: int
    values: tuple[tuple[str, float], ...]
    tuned: Tuned | None = None
    against: str | None = None

    def jobs(self, seeds: Sequence[int]) -> list[Job]:
        return [Job(self.method, self.values, seed) for seed in seeds]

    def row(self, results: Mapping[int, Result]) -> MethodResult:
        lr = dict(self.values)["lr"]
        return MethodResult.of(self.label, lr, results, tuned=self.tuned, against=self.against)


def entries(config: CompareConfig, chosen: Mapping[int, Tuned]) -> list[Entry]:
    """The table's rows, as far as is known which values methods (by number) have taken from their grids."""
    made = []
    if config.tune is None or config.tune.rows == "both":
        made = [Entry(m.label, i, (("lr", float(m.algorithm.fields["lr"])),)) for i, m in enumerate(config.methods)]
    against = config.tuned_as(config.reference) if made else None
    for i, tuned in sorted(chosen.items()):
        label = config.tuned_as(config.methods[i].label)
        made.append(Entry(label, i, tuple(tuned.values.items()), tuned, against))
    return made


def compare(
    config: CompareConfig, out: Path, observer: ComparisonObserver | None = None, workers: int | None = None
) -> Table:
    """Run every method for every seed, with values of its own, the best of its grid, or both, as configured.

    The table is written to the folder, too.
    """
    config.check()
    observer = observer or ComparisonObserver()
    if (out / CONFIGURATION).exists():
        _check_same(load(CompareConfig, out / CONFIGURATION), config, out)
    out.mkdir(parents=True, exist_ok=True)
    replace_file(out / CONFIGURATION, toml.dumps(config.kept()).encode())
    (out / "table.json").unlink(missing_ok=True)  # which says that the comparison is complete
    workers = workers or (os.cpu_count() or 1 if not torch.cuda.is_available() else 1)
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(workers, mp_context=spawn, initializer=_settle) as pool:
        try:
            rows = _Comparison(config, out, observer, pool, workers).rows()
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise
    table = tabulate(config, rows)
    write(table, out)
    return table


def _check_same(before: CompareConfig, config: CompareConfig, out: Path) -> None:
    """Refuse, before anything is written, to go on with runs of other settings.

    Other step sizes, seeds and values of grids, and methods after the last, have folders of their own.
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


def tabulate(config: CompareConfig, rows: list[MethodResult]) -> Table:
    """What the rows say of the configuration's target."""
    level = config.level
    if isinstance(level, FinalOf):
        level = final_mean(next(row for row in rows if row.label == level.final_of), config.metric)
    return Table(metric=config.metric, target=level, baseline=config.reference, rows=rows)


class _Comparison:
    """The runs of a comparison, in the processes of a pool."""

    def __init__(
        self, config: CompareConfig, out: Path, observer: ComparisonObserver, pool: ProcessPoolExecutor, workers: int
    ) -> None:
        self._config, self._out, self._onlooker, self._pool = config, out, observer, pool
        self._text = config.model_dump_json()
        several = workers > 1  # then each method is handed to a process of its own
        self._groups = [[i] for i in range(len(config.methods))] if several else side_by_side(config.methods)
        self._parts = -(workers // -len(self._groups))
        self._begun: dict[Job, Future[None]] = {}

    def rows(self) -> list[MethodResult]:
        config = self._config
        chosen = {} if config.tune is None else self._tuned(config.tune)
        for group in self._groups:
            self._start(group, entries(config, chosen))
        return [self._row(entry) for entry in entries(config, chosen)]

    def _tuned(self, tune: Tuning) -> dict[int, Tuned]:
        """What each method takes from its grid; the runs of its rows begin as soon as can be."""
        config, chosen = self._config, dict[int, Tuned]()
        tries = {
            i: [Job(i, tuple(point.items()), tune.seed, tuning=True) for point in tune.points(method)]
            for i, method in enumerate(config.methods)
        }
        for i, jobs in tries.items():
            self._onlooker.tuning(config.tuned_as(config.methods[i].label), self._folders(jobs))
        for group in self._groups:
            self._start(group, entries(config, {}), [job for i in group for job in tries[i]])
        for group in self._groups:
            for i in group:
                chosen[i] = choose(config, tune, config.methods[i], self._ended(tries[i]))
                self._onlooker.tuned(config.tuned_as(config.methods[i].label), str(chosen[i]))
            self._start(group, entries(config, chosen))
        return chosen

    def _start(self, group: list[int], rows: list[Entry], jobs: Sequence[Job] = ()) -> None:
        """Begin the runs of a group's rows, and others of its methods, in as many processes as there are to spare."""
        for entry in rows:
            own = entry.jobs(self._config.seeds)
            if entry.method in group and not all(job in self._begun for job in own):
                self._onlooker.training(entry.label, self._folders(own))
                jobs = [*jobs, *own]
        new = [job for job in dict.fromkeys(jobs) if job not in self._begun]
        width = max(1, -(len(new) // -self._parts))
        for i in range(0, len(new), width):
            share = new[i : i + width]
            future = self._pool.submit(_work, self._text, share, str(self._out))
            self._begun |= dict.fromkeys(share, future)

    def _ended(self, jobs: list[Job]) -> list[Result]:
        for job in jobs:
            self._begun[job].result()
        return [Result.load(folder) for folder in self._folders(jobs)]

    def _folders(self, jobs: list[Job]) -> list[Path]:
        return [job.folder(self._out) for job in jobs]

    def _row(self, entry: Entry) -> MethodResult:
        results = self._ended(entry.jobs(self._config.seeds))
        row = entry.row(dict(zip(self._config.seeds, results, strict=True)))
        self._onlooker.trained(entry.label, _in_short(self._config, row))
        return row


def side_by_side(methods: Sequence[Method]) -> list[list[int]]:
    """Methods, by number, whose runs can be one program: of one algorithm, the same but for real numbers."""
    groups: dict[str, list[int]] = {}
    for i, method in enumerate(methods):
        fixed = {k: v for k, v in method.algorithm.fields.items() if not isinstance(v, float)}
        groups.setdefault(f"{method.algorithm.name} {sorted(fixed.items())}", []).append(i)
    return list(groups.values())


def _in_short(config: CompareConfig, row: MethodResult) -> str:
    """What is known of a method before all others have ended."""
    known = [v for v in row.final(config.metric).values() if v is not None]
    final = f"final {config.metric} {spread(known, 3) if known else 'not measured'}"
    if isinstance(config.level, FinalOf):
        return final
    costs = row.costs(config.metric, config.level).values()
    rounds = spread([None if c is None else c.rounds for c in costs])
    return f"rounds to {config.metric} {config.level:g}: {rounds}; {final}"


def _settle() -> None:
    """Make a process a worker: of one thread, and gone when the comparison's process is, even if that was killed."""
    torch.set_num_threads(1)
    threading.Thread(target=_follow, daemon=True).start()


def _follow() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)  # runs go on from their checkpoints


def _work(text: str, jobs: list[Job], out: str) -> None:
    """Runs of a group of methods, in a worker, side by side; one that diverges counts as far as it got."""
    config = CompareConfig.model_validate_json(text)
    dataset, runs = config.data.load(), []
    federations = {seed: config.data.make(seed, dataset) for seed in {job.seed for job in jobs}}
    for job in jobs:
        method = config.methods[job.method]
        more = {"out": RunFolder(job.folder(out), light=config.light), "resume": True}
        if job.tuning and config.tune is not None:
            more |= {
                "rounds": config.tune.rounds or config.rounds,
                "target": config.target if config.tune.by == "rounds" else None,
            }
        algorithm = method.algorithm.but(**dict(job.values))
        runs.append(config.arguments(algorithm, method.selection, job.seed, federations[job.seed], **more))
    run_many(runs)


def caption(config: CompareConfig) -> str:
    """How the numbers of the table came about."""
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
