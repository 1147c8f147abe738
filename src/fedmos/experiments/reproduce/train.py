"""Train the runs of a part: one group of methods after another, the runs of a group as one program."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...config.fields import FinalOf
from ...config.schema import CompareConfig, Method, Tuning
from ..executors import TaskExecutor
from ..runner import (
    PlannedRun,
    Values,
    own_values,
    rounds_of,
    tuning_runs,
    tuning_target,
)
from ..seed_statistics import GridTrial
from ..tune import choose
from .groups import Deadline, ExecutorGroups, GroupRunner, LocalGroups
from .record import RunRecord, StudyRecords, run_record
from .study import StudyPart, fitting, target_key

Echo = Callable[[str], None]


@dataclass(frozen=True, kw_only=True)
class ReproduceOptions:
    """Which runs of a part to train, and how. None keeps the value of the part's configuration."""

    rounds: int | None = None
    seeds: int | None = None
    """Train the first so many seeds."""
    methods: str | None = None
    """Labels or patterns, separated by commas."""
    device: str | None = None
    precision: str | None = None
    progress: bool | None = None
    """Whether to show the progress of runs, as of `fm.run`."""

    def configuration(self, part: StudyPart) -> CompareConfig:
        """Return a part's configuration with these options applied."""
        changes: dict[str, Any] = {"rounds": self.rounds, "device": self.device, "precision": self.precision}
        tune = part.table.get("tune", {})
        if self.rounds is not None and self.rounds < tune.get("rounds", 0):
            changes["tune"] = tune | {"rounds": self.rounds}
        config = part.comparison(**changes)
        labels = fitting(self.methods, [method.label for method in config.methods])
        methods = [method for method in config.methods if method.label in labels]
        return config.model_copy(update={"methods": methods, "seeds": config.seeds[: self.seeds]})


def train(
    part: StudyPart,
    options: ReproduceOptions,
    out: Path,
    records: StudyRecords,
    deadline: Deadline,
    echo: Echo,
    executor: TaskExecutor | None = None,
) -> None:
    """Train the runs of a part that the records lack, here or by an executor, and add them to the records."""
    config = options.configuration(part)
    runner: GroupRunner = (
        LocalGroups(config, out, deadline, options.progress)
        if executor is None
        else ExecutorGroups(config, out, deadline, executor)
    )
    PartTrainer(part, config, records, deadline, echo, runner).train()


class PartTrainer:
    """Trains the runs of one part that the records lack."""

    def __init__(
        self,
        part: StudyPart,
        config: CompareConfig,
        records: StudyRecords,
        deadline: Deadline,
        echo: Echo,
        runner: GroupRunner,
    ) -> None:
        if any(method.grid for method in config.methods):
            raise ValueError(f"{part.key}: 'methods.grid' must be left out because records keep the step size only")
        self._part, self._config = part, config
        self._records, self._deadline, self._echo, self._runner = records, deadline, echo, runner

    def train(self) -> None:
        """Train until everything is done or the deadline has passed."""
        for methods in self._runner.groups(self._config.methods):
            values = self._values(methods)
            if values is None:
                return
            runs = [PlannedRun(label, own, seed) for label, own in values.items() for seed in self._config.seeds]
            if not self._train(runs):
                return

    def _values(self, methods: Sequence[Method]) -> dict[str, Values] | None:
        """Return the step size of each method, tuned if there is a grid; None if the deadline passed before."""
        if self._config.tune is None:
            return {method.label: own_values(method) for method in methods}
        trials = {method.label: tuning_runs(self._config, method) for method in methods}
        if not self._train([run for runs in trials.values() for run in runs]):
            return None
        for label, runs in trials.items():
            self._records.tuned(self._part)[label] = self._best_step_size(self._config.tune, runs)
        self._records.write()
        return {label: (("lr", self._records.tuned(self._part)[label]),) for label in trials}

    def _best_step_size(self, tune: Tuning, runs: Sequence[PlannedRun]) -> float:
        trials = [self._trial(run, self._records.find(self._part, run)) for run in runs]
        return choose(tune, self._config.metric, trials).values["lr"]

    def _trial(self, run: PlannedRun, record: RunRecord | None) -> GridTrial:
        """Read a trial from its record. A diverged run has no final value, whatever it reached before."""
        if record is None:
            return GridTrial(dict(run.values), None, None)
        first = None if self._target is None else record["first"].get(self._target)
        final = None if record["ended"] == "diverged" else record["last"].get(self._config.metric)
        return GridTrial(dict(run.values), None if first is None else first[0], final)

    def _train(self, runs: Sequence[PlannedRun]) -> bool:
        """Train the missing runs and add them to the records; return False if the deadline passed before the end."""
        todo = [run for run in runs if not self._is_done(run)]
        if not todo:
            return True
        if self._deadline.passed:
            return False
        rounds = rounds_of(self._config, todo[0])  # either all are tuning runs, or none is
        self._echo(f"{self._part.key}: {_describe(todo)}, {rounds} rounds")
        began = time.perf_counter()
        results = self._runner.train(todo)
        added = [run_record(self._part, run, result, rounds) for run, result in zip(todo, results, strict=True)]
        self._records.add(self._part, added)
        self._records.sessions(self._part).append(
            session(
                time.perf_counter() - began,
                todo,
                max(record["rounds"] for record in added),
                results[0].info,
                self._runner.hardware(str(results[0].info.get("device", "cpu"))),
            )
        )
        self._records.write()
        if all(record["ended"] != "cut off" for record in added):
            return True
        if not self._deadline.passed:  # the user pressed Ctrl-C
            raise KeyboardInterrupt
        return False

    def _is_done(self, run: PlannedRun) -> bool:
        record = self._records.find(self._part, run)
        if record is None:
            return False
        complete = record["ended"] == "complete" and record["rounds"] >= rounds_of(self._config, run)
        return complete or record["ended"] == "diverged" or self._is_decided(record)

    def _is_decided(self, record: RunRecord) -> bool:
        """Whether a trial reached the target, or has more rounds than another trial of its method needed for it."""
        if tuning_target(self._config) is None or not record["tuning"]:
            return False
        trials = self._records.runs(self._part, record["method"], tuning=True)
        firsts = [trial["first"].get(self._target) for trial in trials if trial["seed"] == record["seed"]]
        return any(first is not None and first[0] <= record["rounds"] for first in firsts)

    @property
    def _target(self) -> str | None:
        """The target's key in a record; None if the target is the final value of a method."""
        level = self._config.level
        return None if isinstance(level, FinalOf) else target_key(self._config.metric, level)


def _describe(runs: Sequence[PlannedRun]) -> str:
    labels = list(dict.fromkeys(run.label for run in runs))
    what = "trials of step sizes" if runs[0].tuning else "runs"
    return ", ".join(labels) + (f" ({len(runs)} {what} side by side)" if len(runs) > 1 else "")


def session(
    seconds: float, runs: Sequence[PlannedRun], rounds: int, info: Mapping[str, Any], hardware: str
) -> dict[str, Any]:
    """Return the record of a training session: when, on which hardware and how long."""
    return {
        "when": time.strftime("%Y-%m-%d"),
        "hardware": hardware,
        "torch": info["versions"]["torch"],
        "precision": info.get("precision") or info.get("dtype"),
        "seconds": round(seconds, 1),
        "runs": len(runs),
        "rounds": rounds,
        "methods": list(dict.fromkeys(run.label for run in runs)),
    }
