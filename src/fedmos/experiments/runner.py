"""The runs of a comparison: which runs there are, their arguments and their training.

`fedmos compare`, `fedmos reproduce` and `fm.compare` plan and train their runs here. They differ in where a run's
folder lies, in what they keep of it, and in where the arguments of a run come from.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias, Union

from ..config.fields import FinalOf
from ..config.schema import CompareConfig, Method
from ..core.callback import Callback
from ..core.history import Record
from ..data.dataset import Dataset
from ..data.federated import FederatedData
from ..run.many import run_many
from ..run.result import Result
from .seed_statistics import MethodResult, TunedValues, final_mean

if TYPE_CHECKING:
    from .objects import ObjectComparison, ObjectMethod

AnyComparison: TypeAlias = Union[CompareConfig, "ObjectComparison"]
"""A comparison of a configuration file or of Python objects."""
AnyMethod: TypeAlias = Union[Method, "ObjectMethod"]
Values = tuple[tuple[str, float], ...]
"""Fields of an algorithm and their values: the step size `lr`, then other fields of the grid."""


class PlannedRun(NamedTuple):
    """A run to train: a method with values for fields of its algorithm, and a seed."""

    label: str
    """The method's label in the configuration."""
    values: Values
    seed: int
    tuning: bool = False
    """Whether the run tries a point of the method's grid."""

    @property
    def lr(self) -> float:
        return dict(self.values)["lr"]


def runs_from_json(rows: Sequence[Sequence[Any]]) -> list[PlannedRun]:
    """Return runs that were written as JSON, where tuples are lists."""
    return [
        PlannedRun(label, tuple((name, value) for name, value in values), seed, tuning)
        for label, values, seed, tuning in rows
    ]


class PlannedMethod(NamedTuple):
    """A row of the table: a method and the values that its runs have."""

    label: str
    method: AnyMethod
    values: Values
    tuned: TunedValues | None = None
    """None for a method with the values of the configuration."""
    against: str | None = None
    """The label of the row that it is measured against, if that is not the table's baseline."""

    def runs(self, seeds: Sequence[int]) -> list[PlannedRun]:
        return [PlannedRun(self.method.label, self.values, seed) for seed in seeds]

    def result(self, results: Mapping[int, Result]) -> MethodResult:
        """Gather the results of the runs, by seed."""
        lr = dict(self.values)["lr"]
        return MethodResult.of(self.label, lr, results, tuned=self.tuned, against=self.against)


def planned_methods(config: AnyComparison, tuned: Mapping[str, TunedValues]) -> list[PlannedMethod]:
    """Return the rows of the table. `tuned` holds, by method label, the values that tuning has chosen so far."""
    rows = []
    if config.tune is None or config.tune.rows == "both":
        rows = [PlannedMethod(method.label, method, own_values(method)) for method in config.methods]
    against = config.tuned_as(config.reference) if rows else None
    for method in config.methods:
        if (chosen := tuned.get(method.label)) is not None:
            label = config.tuned_as(method.label)
            rows.append(PlannedMethod(label, method, tuple(chosen.values.items()), chosen, against))
    return rows


def own_values(method: AnyMethod) -> Values:
    """Return the step size that a method is given."""
    return (("lr", method.lr),)


def tuning_runs(config: AnyComparison, method: AnyMethod) -> list[PlannedRun]:
    """Return one run per point of a method's grid; none if the comparison has no grid."""
    if config.tune is None:
        return []
    seed = config.tune.seed
    return [PlannedRun(method.label, tuple(point.items()), seed, tuning=True) for point in config.tune.points(method)]


def tuning_target(config: AnyComparison) -> dict[str, float] | None:
    """Return the target at which tuning runs end; None if they are judged by their final value."""
    if config.tune is None or config.tune.by != "rounds":
        return None
    level = config.level
    return None if level is None or isinstance(level, FinalOf) else {config.metric: level}


def rounds_of(config: AnyComparison, run: PlannedRun) -> int:
    """Return the number of rounds that a run is to have."""
    rounds: int = config.rounds
    return (config.tune.rounds or rounds) if run.tuning and config.tune is not None else rounds


def mergeable_methods(methods: Sequence[Method]) -> list[list[Method]]:
    """Group methods whose runs `run_many` can train as one program: same algorithm, only real fields differ."""
    groups: dict[str, list[Method]] = {}
    for method in methods:
        fixed = {k: v for k, v in method.algorithm.fields.items() if not isinstance(v, float)}
        groups.setdefault(f"{method.algorithm.name} {sorted(fixed.items())}", []).append(method)
    return list(groups.values())


def resolve_target(config: AnyComparison, results: Sequence[MethodResult]) -> float | None:
    """Return the value to reach: a number of the configuration, or a method's mean final value over its seeds.

    Returns None if there is no target, or it is the final value of a method that has no result.
    """
    level = config.level
    if not isinstance(level, FinalOf):
        return level
    return next((final_mean(one, config.metric) for one in results if one.label == level.final_of), None)


class ConfiguredRuns:
    """Gives the arguments of a configuration's runs; loads the data set once and makes one federation per seed."""

    def __init__(self, config: CompareConfig) -> None:
        self._config = config
        self._methods = {method.label: method for method in config.methods}
        self._dataset: Dataset | None = None
        self._federations: dict[int, FederatedData] = {}

    def arguments(self, run: PlannedRun, options: Mapping[str, Any]) -> dict[str, Any]:
        """Return the arguments of `fm.run` for a run; `options` are some of them."""
        method = self._methods[run.label]
        algorithm = method.algorithm.but(**dict(run.values))
        options = self._config.own_options(method) | dict(options)
        return self._config.arguments(algorithm, method.selection, run.seed, self._federation(run.seed), **options)

    def _federation(self, seed: int) -> FederatedData:
        """Return the seed's split. All splits share the samples, so that they are moved to the device once."""
        if seed not in self._federations:
            self._dataset = self._dataset or self._config.data.load()
            self._federations[seed] = self._config.data.make(seed, self._dataset)
        return self._federations[seed]


class Runner:
    """Trains planned runs.

    Args:
        config: The comparison.
        folder: Gives the folder of a run, where an interrupted run continues; None for runs without folders.
        options: Further arguments of `fm.run`, the same for all runs.
    """

    def __init__(
        self,
        config: AnyComparison,
        folder: Callable[[PlannedRun], str | os.PathLike[str]] | None,
        **options: Any,
    ) -> None:
        self._config, self._folder, self._options = config, folder, options
        self._runs = ConfiguredRuns(config) if isinstance(config, CompareConfig) else config
        self._counter = _RoundCounter()

    def train(self, runs: Sequence[PlannedRun]) -> list[Result]:
        """Train runs, merged where possible, and return their results in order. A diverged run is `interrupted`."""
        return run_many([self._arguments(run) for run in runs])

    @property
    def rounds_trained(self) -> int:
        """The rounds that this object has trained, over all runs; 0 if all were finished before."""
        return self._counter.rounds

    def _arguments(self, run: PlannedRun) -> dict[str, Any]:
        options = {"rounds": rounds_of(self._config, run)} | self._options
        if self._folder is not None:
            options |= {"out": self._folder(run), "resume": True}
        if run.tuning:
            options["target"] = tuning_target(self._config)
        arguments = self._runs.arguments(run, options)
        return arguments | {"callbacks": [*arguments.get("callbacks", ()), self._counter]}


class _RoundCounter(Callback):
    """Counts the rounds of all runs that have it."""

    def __init__(self) -> None:
        self.rounds = 0

    def on_round(self, record: Record) -> None:
        self.rounds += 1
