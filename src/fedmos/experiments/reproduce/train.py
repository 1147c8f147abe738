"""Training a part of a study: methods one after another, the runs of a method side by side, until the time is up."""

from __future__ import annotations

import gc
import math
import os
import platform
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from ...config.fields import FinalOf
from ...config.schema import CompareConfig, Method
from ...core.callback import Callback
from ...core.history import Record
from ...data.dataset import Dataset
from ...data.federated import FederatedData
from ...run.many import run_many
from ...run.preflight import find_device
from ..compare import side_by_side
from ..tune import badness
from .record import Job, Records, Run, run_record
from .study import Part, aim, fitting

_CHECKPOINTS = "2min"
Say = Callable[[str], None]


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """How much of a part to run, and how; None is as its configuration says."""

    rounds: int | None = None
    seeds: int | None = None
    """The first so many."""
    methods: str | None = None
    """Labels or patterns, with commas."""
    device: str | None = None
    precision: str | None = None

    def configuration(self, part: Part) -> CompareConfig:
        changes: dict[str, Any] = {"rounds": self.rounds, "device": self.device, "precision": self.precision}
        tune = part.table.get("tune", {})
        if self.rounds is not None and self.rounds < tune.get("rounds", 0):
            changes["tune"] = tune | {"rounds": self.rounds}
        config = part.comparison(**changes)
        labels = fitting(self.methods, [method.label for method in config.methods])
        methods = [method for method in config.methods if method.label in labels]
        return config.model_copy(update={"methods": methods, "seeds": config.seeds[: self.seeds]})


class Deadline(Callback):
    """Ends runs, which are saved first, once so many seconds have passed since it was made."""

    def __init__(self, seconds: float | None = None) -> None:
        self._end = math.inf if seconds is None else time.monotonic() + seconds

    @property
    def passed(self) -> bool:
        return time.monotonic() > self._end

    def on_round(self, record: Record) -> None:
        if self.passed:
            raise KeyboardInterrupt


def train(part: Part, wanted: Wanted, out: Path, records: Records, deadline: Deadline, say: Say) -> None:
    """Train what the records lack of a part, and write it there method by method."""
    Trainer(part, wanted.configuration(part), out, records, deadline, say).train()


class Trainer:
    """The training of one part."""

    def __init__(
        self, part: Part, config: CompareConfig, out: Path, records: Records, deadline: Deadline, say: Say
    ) -> None:
        self._part, self._config, self._out = part, config, out
        self._records, self._deadline, self._say = records, deadline, say
        self._dataset: Dataset | None = None
        self._federations: dict[int, FederatedData] = {}

    def train(self) -> None:
        for group in side_by_side(self._config.methods):
            methods = [self._config.methods[i] for i in group]
            chosen = self._step_sizes(methods)
            if chosen is None:
                return
            jobs = [
                Job(m.label, lr, seed) for m, lr in zip(methods, chosen, strict=True) for seed in self._config.seeds
            ]
            if not self._play(jobs, self._config.rounds):
                return

    def _step_sizes(self, methods: Sequence[Method]) -> list[float] | None:
        """Each method's own, or the best of the grid; None if the time was up before that was known."""
        tune, part = self._config.tune, self._part
        if tune is None:
            return [float(method.algorithm.fields["lr"]) for method in methods]
        rounds = tune.rounds or self._config.rounds
        grids = [[Job(method.label, lr, tune.seed, tuning=True) for lr in tune.lr] for method in methods]
        if not self._play([job for grid in grids for job in grid], rounds):
            return None
        for method, grid in zip(methods, grids, strict=True):
            costs = {job.lr: self._cost(self._records.find(part, job)) for job in grid}
            self._records.tuned(part)[method.label] = min(sorted(costs), key=lambda lr: costs[lr])
        self._records.write()
        return [self._records.tuned(part)[method.label] for method in methods]

    def _cost(self, run: Run | None) -> tuple[float, float]:
        """How bad a trial of a step size was; one that diverged has no last value, whatever it reached before."""
        metric, level = self._config.metric, self._config.level
        if run is None or self._config.tune is None:
            return math.inf, math.inf
        first = None if isinstance(level, FinalOf) else run["first"].get(aim(metric, level))
        final = None if run["ended"] == "diverged" else run["last"].get(metric)
        return badness(self._config.tune, metric, None if first is None else first[0], final)

    def _play(self, jobs: Sequence[Job], rounds: int) -> bool:
        """Train what is missing, and note it; False if the time was up first."""
        todo = [job for job in jobs if not self._done(job, rounds)]
        if not todo:
            return True
        if self._deadline.passed:
            return False
        self._say(f"{self._part.key}: {_words(todo)}, {rounds} rounds")
        began = time.perf_counter()
        results = run_many([self._arguments(job, rounds) for job in todo])
        runs = [run_record(self._part, job, result, rounds) for job, result in zip(todo, results, strict=True)]
        self._records.add(self._part, runs)
        self._records.sessions(self._part).append(
            session(time.perf_counter() - began, todo, max(r["rounds"] for r in runs), results[0].info)
        )
        self._records.write()
        del results
        gc.collect()  # recorded graphs refer to each other in circles
        if all(run["ended"] != "cut off" for run in runs):
            return True
        if not self._deadline.passed:  # somebody pressed Ctrl-C
            raise KeyboardInterrupt
        return False

    def _done(self, job: Job, rounds: int) -> bool:
        run = self._records.find(self._part, job)
        if run is None:
            return False
        long_enough = run["ended"] == "complete" and run["rounds"] >= rounds
        return long_enough or run["ended"] == "diverged" or self._decided(run)

    def _decided(self, run: Run) -> bool:
        """Whether a trial ended at the target, or is longer already than another of its method's took to get there."""
        if self._stop is None or not run["tuning"]:
            return False
        trials = [t for t in self._records.runs(self._part, run["method"], tuning=True) if t["seed"] == run["seed"]]
        firsts = [trial["first"].get(aim(*self._stop)) for trial in trials]
        return any(first is not None and first[0] <= run["rounds"] for first in firsts)

    @property
    def _stop(self) -> tuple[str, float] | None:
        """The target at which a run that only tries a step size ends."""
        level, tune = self._config.level, self._config.tune
        if tune is None or tune.by != "rounds" or isinstance(level, FinalOf):
            return None
        return self._config.metric, level

    def _arguments(self, job: Job, rounds: int) -> dict[str, Any]:
        method = next(m for m in self._config.methods if m.label == job.label)
        return self._config.arguments(
            method.algorithm.but(lr=job.lr),
            method.selection,
            job.seed,
            self._federation(job.seed),
            rounds=rounds,
            target=dict([self._stop]) if job.tuning and self._stop is not None else None,
            out=job.folder(self._out),
            resume=True,
            checkpoint_every=_CHECKPOINTS,
            callbacks=[self._deadline],
        )

    def _federation(self, seed: int) -> FederatedData:
        """The seed's split. All share the data set's samples, which are brought to the device once."""
        if seed not in self._federations:
            self._dataset = self._dataset or self._config.data.load()
            self._federations[seed] = self._config.data.make(seed, self._dataset)
        return self._federations[seed]


def _words(jobs: Sequence[Job]) -> str:
    labels = list(dict.fromkeys(job.label for job in jobs))
    what = "trials of step sizes" if jobs[0].tuning else "runs"
    return ", ".join(labels) + (f" ({len(jobs)} {what} side by side)" if len(jobs) > 1 else "")


def session(seconds: float, jobs: Sequence[Job], rounds: int, info: dict[str, Any]) -> dict[str, Any]:
    """On what, with what and how long runs were trained."""
    return {
        "when": time.strftime("%Y-%m-%d"),
        "hardware": hardware(str(info.get("device", "cpu"))),
        "torch": info["versions"]["torch"],
        "precision": info.get("precision") or info.get("dtype"),
        "seconds": round(seconds, 1),
        "runs": len(jobs),
        "rounds": rounds,
        "methods": list(dict.fromkeys(job.label for job in jobs)),
    }


def hardware(device: str) -> str:
    """A device in words."""
    found = find_device(device)
    if found.type == "cuda":
        return torch.cuda.get_device_name(found)
    return f"{os.cpu_count()} CPU cores ({platform.machine()})"
