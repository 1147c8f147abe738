"""A comparison as a sequence of steps: tune every method, train every row of the table, gather the results.

A `Trainer` does the training: `fedmos compare` has a pool of processes, `fm.compare` trains in this process.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol

from ..config.comparison import ALONE
from ..config.fields import FinalOf
from ..config.schema import Tuning
from ..run.result import Result
from .progress import ComparisonObserver
from .runner import AnyComparison, PlannedMethod, PlannedRun, planned_methods, tuning_runs
from .seed_statistics import MethodResult, TunedValues, spread
from .tune import choose, judged_by, trial_of


class Trainer(Protocol):
    """Trains the runs of a comparison."""

    groups: list[list[str]]
    """Labels of all methods; the runs of a group's methods are started together."""

    def start(self, runs: Sequence[PlannedRun]) -> None:
        """Start runs together, except those that have been started."""

    def started(self, run: PlannedRun) -> bool:
        """Return whether a run has been started."""

    def results(self, runs: Sequence[PlannedRun]) -> list[Result]:
        """Wait for runs that have been started, and return their results in order."""

    def folders(self, runs: Sequence[PlannedRun]) -> list[Path]:
        """Return the folders of runs; none if they have no folders."""


class Comparison:
    """The runs of a comparison, trained by a `Trainer`."""

    def __init__(self, config: AnyComparison, trainer: Trainer, observer: ComparisonObserver) -> None:
        self._config, self._trainer, self._observer = config, trainer, observer

    def results(self) -> list[MethodResult]:
        """Train everything, and return the rows of the table."""
        config = self._config
        tuned = {} if config.tune is None else self.tune(config.tune)
        rows = planned_methods(config, tuned)
        for group in self._trainer.groups:
            self._start(group, rows)
        return [self._result(planned) for planned in rows]

    def tune(self, tune: Tuning) -> dict[str, TunedValues]:
        """Choose values for every method, by label. The runs of the table start as early as possible."""
        config, tuned = self._config, dict[str, TunedValues]()
        trials = {method.label: tuning_runs(config, method) for method in config.methods}
        for label, runs in trials.items():
            self._observer.tuning(config.tuned_as(label), self._trainer.folders(runs))
        for group in self._trainer.groups:
            self._start(group, planned_methods(config, {}), [run for label in group for run in trials[label]])
        for group in self._trainer.groups:
            for label in group:
                runs = trials[label]
                results = zip(runs, self._trainer.results(runs), strict=True)
                pairs = list(results)
                metric = judged_by(config, [result for _, result in pairs])
                tuned[label] = choose(tune, metric, [trial_of(config, run, result, metric) for run, result in pairs])
                self._observer.tuned(config.tuned_as(label), str(tuned[label]))
            self._start(group, planned_methods(config, tuned))
        return tuned

    def _start(self, group: list[str], rows: list[PlannedMethod], runs: Sequence[PlannedRun] = ()) -> None:
        """Start `runs` and the runs of a group's rows, except those that have been started."""
        for planned in rows:
            own = planned.runs(self._config.seeds)
            if planned.method.label in group and not all(map(self._trainer.started, own)):
                self._observer.training(planned.label, self._trainer.folders(own))
                runs = [*runs, *own]
        self._trainer.start(runs)

    def _result(self, planned: PlannedMethod) -> MethodResult:
        results = self._trainer.results(planned.runs(self._config.seeds))
        result = planned.result(dict(zip(self._config.seeds, results, strict=True)))
        self._observer.trained(planned.label, _outcome(self._config, result))
        return result


def run_folder(config: AnyComparison, run: PlannedRun, out: Path) -> Path:
    """Return the folder of a run of the comparison in `out`."""
    number = method_number([method.label for method in config.methods], run.label)
    return out / ("tuning" if run.tuning else "runs") / folder_name(number, dict(run.values), run.seed)


def method_number(labels: Sequence[str], label: str) -> int | str:
    """Return what identifies a method in the names of folders: the row that a comparison adds has no number."""
    return "local" if label == ALONE else list(labels).index(label)


def folder_name(number: int | str, values: Mapping[str, float], seed: int) -> str:
    """Return the name of a run's folder: the method's number, the values of its fields, the seed."""
    return f"{number}-{'-'.join(f'{field}{value:g}' for field, value in values.items())}-seed{seed}"


def _outcome(config: AnyComparison, result: MethodResult) -> str:
    """One line about a method, which needs no other method's results."""
    if not result.trains(config.metric):
        return "no global model; see the accuracy of clients"
    level = config.level
    known = [v for v in result.final(config.metric).values() if v is not None]
    final = f"final {config.metric} {spread(known, 3) if known else 'not measured'}"
    if level is None or isinstance(level, FinalOf):
        return final
    costs = result.costs(config.metric, level).values()
    rounds = spread([None if c is None else c.rounds for c in costs])
    return f"rounds to {config.metric} {level:g}: {rounds}; {final}"
