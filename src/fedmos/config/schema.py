"""Configurations: TOML files, checked strictly before anything runs."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

import torch
from pydantic import BaseModel, ValidationError, model_validator

import fedmos as fm

from ..core.flat_model import FlatModel
from ..core.formatting import format_value, one_line
from ..core.history import METRICS
from ..core.losses import Loss
from ..core.validation import suggest, whole_number
from ..engine.task import Task
from ..evaluation.measurable import measurable
from ..rng import signed
from ..run.preflight import check_fit, check_parts, check_precision, check_target, find_device
from ..run.spec import RunSpec
from . import registry as registry
from .fields import (
    LISTED,
    Choice,
    Clip,
    ComparedTarget,
    Count,
    Decay,
    Device,
    Every,
    FinalOf,
    Flag,
    Folder,
    Grid,
    Limited,
    LossName,
    Name,
    Seed,
    Seeds,
    Space,
    Steps,
    StepSizes,
    Strict,
    Target,
    Title,
    build,
    must,
    named,
    several,
    whole,
)
from .tables import DataConfig, DeployConfig, SystemConfig
from .text import ConfigError, check_depth, located, override, read, sentences

__all__ = [
    "Choice",
    "CompareConfig",
    "ConfigError",
    "DataConfig",
    "Method",
    "RunConfig",
    "SweepConfig",
    "Training",
    "build",
    "check_same",
    "load",
    "parse",
]


class Training(Strict):
    """What `fm.run` needs beside an algorithm, a selector and a seed."""

    data: DataConfig
    model: Choice
    rounds: Count
    local_steps: Steps | None = None
    local_epochs: Steps | None = None
    batch_size: Count | None = None
    loss: LossName = "cross_entropy"
    lr_decay: Decay = 1.0
    weight_decay: Limited = 0.0
    clip: Clip | None = None
    eval_every: Count = 1
    device: Device = "auto"
    dtype: Annotated[Literal["float32", "float64"], named("float32", "float64")] = "float32"
    precision: Annotated[Literal["tf32", "bf16"], named("tf32", "bf16")] | None = None
    engine: Annotated[Literal["auto", "loop", "batched"], named("auto", "loop", "batched")] = "auto"
    on_bad_update: Annotated[Literal["stop", "drop"], named("stop", "drop")] = "stop"
    availability: Choice | None = None
    system: SystemConfig | None = None
    diagnostics: Count | None = None
    """Measure drift, dissimilarity and the like after every so many rounds; see `fedmos.Diagnostics`."""

    @model_validator(mode="after")
    def _fits(self) -> Training:
        if (self.local_steps is None) == (self.local_epochs is None):
            got = "both" if self.local_steps is not None else "neither"
            raise whole(f"local_steps: exactly one of local_steps and local_epochs must be given, got {got}")
        if self.precision is not None and self.dtype != "float32":
            raise whole(f"precision: must be left out where dtype is {self.dtype}, got {self.precision!r}")
        if self.precision == "tf32" and self.device == "cpu":
            raise whole("precision: must be left out or 'bf16' on a CPU, got 'tf32'")
        return self

    def kept(self, **how: Any) -> dict[str, Any]:
        """The configuration as a folder keeps it, to be read from anywhere."""
        table = self.model_dump(mode="json", exclude_none=True, **how)
        if self.data.root is not None:
            table["data"]["root"] = str(Path(self.data.root).absolute())
        return table

    def run(self, algorithm: Choice, selection: Choice, seed: int, **more: Any) -> fm.Result:
        """Build everything and train."""
        return fm.run(**self.arguments(algorithm, selection, seed, **more))

    def arguments(
        self, algorithm: Choice, selection: Choice, seed: int, data: fm.FederatedData | None = None, **more: Any
    ) -> dict[str, Any]:
        """What to call `fm.run` with; `data` is the seed's federation, if it was made before."""
        parts = self._method(algorithm, selection) | self._common(seed, data)
        check_parts(RunSpec(**parts, seed=seed), located)
        return parts | more | {"seed": seed}

    def _method(self, algorithm: Choice, selection: Choice, where: str = "") -> dict[str, Any]:
        """What differs between the methods of a comparison."""
        return {
            "algorithm": build(f"{where}algorithm", algorithm, registry.algorithms()),
            "selection": build(f"{where}selection", selection, registry.selectors()),
        }

    def _common(self, seed: int, data: fm.FederatedData | None = None) -> dict[str, Any]:
        """All other arguments of `fm.run`; what costs most is made last."""
        given = {name: getattr(self, name) for name in Training.model_fields if name != "diagnostics"}
        if self.diagnostics is not None:
            given["callbacks"] = [fm.Diagnostics(every=self.diagnostics)]
        if isinstance(self.lr_decay, dict):
            given["lr_decay"] = {int(key): factor for key, factor in self.lr_decay.items()}
        given["dtype"] = getattr(torch, self.dtype)
        with located(""):
            given["device"] = find_device(self.device)
            check_precision(self.precision, given["dtype"], given["device"])
        given["system"] = None if self.system is None else self.system.make()
        if self.availability is not None:
            given["availability"] = build("availability", self.availability, registry.availabilities())
        return given | {"model": self.make_model(seed), "data": data or self.data.make(seed)}

    def make_model(self, seed: int) -> torch.nn.Module:
        """The model; its initial weights follow the run's seed unless it has one of its own."""
        choice = self.model if "seed" in self.model.fields else self.model.but(seed=seed)
        model: torch.nn.Module = build("model", choice, registry.models())
        return model


class RunConfig(Training):
    """One run: `fedmos run`."""

    algorithm: Choice
    selection: Choice
    target: Target | None = None
    seed: Seed = 0
    out: Folder | None = None
    checkpoint_every: Every = None
    """So many rounds, or a time such as "30s" or "5min"."""
    deploy: DeployConfig | None = None

    def check(self) -> None:
        """Build everything, and see that it fits together, without training."""
        parts = self._method(self.algorithm, self.selection) | self._common(self.seed)
        check_parts(RunSpec(**parts, seed=self.seed), located)
        _check_task(parts, self.target)

    def _common(self, seed: int, data: fm.FederatedData | None = None) -> dict[str, Any]:
        return super()._common(seed, data) | {"target": self.target}


class Search(Strict):
    """Which fields of a run to search over, and how."""

    space: dict[str, Space]
    """By field, with dots for tables, e.g. "algorithm.lr"."""
    trials: Count
    metric: Annotated[str, named(*METRICS)] = "accuracy"
    """Whose last value is to be as good as can be."""
    seed: Seed = 0
    """Of the search; every trial has the run's own."""
    prune: Flag = True
    """Whether to give up trials that are worse than the median of the others at the same round."""
    warmup: Annotated[int, must(whole_number)] = 5
    """In so many first rounds, none is given up."""

    @model_validator(mode="after")
    def _some(self) -> Search:
        if not 1 <= len(self.space) <= 100:
            raise whole(f"space: must name 1 to 100 fields, got {len(self.space)}")
        return self


class SweepConfig(RunConfig):
    """A search over a run's fields: `fedmos sweep`."""

    sweep: Search


class Method(Strict):
    """A row of a comparison."""

    label: Name
    algorithm: Choice
    selection: Choice
    grid: Grid | None = None
    """Values to try for fields of the algorithm, each with each: beside the step sizes of `tune`, or in their place."""


class Tuning(Strict):
    """One grid of step sizes for all methods; each keeps its best, judged on a seed that the table does not use.

    The best reaches the target first (`by="rounds"`) or ends with the best value (`by="final"`, which a step
    size that is fast but unstable does not).
    """

    lr: StepSizes
    seed: Seed
    by: Annotated[Literal["rounds", "final"], named("rounds", "final")] = "rounds"
    rounds: Count | None = None
    """How many to play when trying values; by default as many as the table's runs."""
    rows: Annotated[Literal["tuned", "both"], named("tuned", "both")] = "tuned"
    """Whether the table has methods tuned, or first all as they are given, and then all tuned."""

    def grid(self, method: Method) -> dict[str, list[float]]:
        """What to try for a method, by field."""
        return {"lr": self.lr} | (method.grid or {})

    def points(self, method: Method) -> list[dict[str, float]]:
        """Every combination of the grid's values."""
        grid = self.grid(method)
        return [dict(zip(grid, values, strict=True)) for values in itertools.product(*grid.values())]


class CompareConfig(Training):
    """Methods × seeds: `fedmos compare`."""

    title: Title
    target: ComparedTarget
    """A number, or `{final_of = "FedAvg"}`: what that method has at the end, in the mean over seeds."""
    seeds: Seeds
    methods: Annotated[list[Method], several]
    baseline: Name | None = None
    """The label of the method that others are measured against; by default the target's, or else the first."""
    tune: Tuning | None = None
    light: Flag = False
    """Keep of a finished run its model and history only: far smaller, but it cannot be given more rounds later."""

    @model_validator(mode="after")
    def _consistent(self) -> CompareConfig:
        labels = [method.label for method in self.methods]
        grids = {f"methods.{i}.grid": m.grid for i, m in enumerate(self.methods) if m.grid is not None}
        if self.tune is not None:
            grids["tune"] = {"lr": self.tune.lr}
        elif grids:
            raise whole(f"{next(iter(grids))}: must be left out where there is no tune")
        listed: dict[str, Sequence[Any]] = {"seeds": [signed(seed) for seed in self.seeds], "methods.label": labels}
        listed |= {f"{where}.{field}": values for where, grid in grids.items() for field, values in grid.items()}
        for name, values in listed.items():
            if len(set(values)) != len(values):
                raise whole(f"{name}: must be different in each place, got the same twice")
        if self.tune is not None:
            self._check_tuning(self.tune)
        if len(self.target) != 1:
            raise whole(f"target: must name exactly one metric, got {len(self.target)}")
        level = self.level
        for name, label in (("baseline", self.baseline), (f"target.{self.metric}.final_of", _label(level))):
            if label is not None and label not in labels:
                raise whole(f"{name}: must be the label of a method, got {format_value(label)}{suggest(label, labels)}")
        return self

    def _check_tuning(self, tune: Tuning) -> None:
        if signed(tune.seed) in map(signed, self.seeds):
            raise whole("tune.seed: must not be one of seeds, or the table would be of the seed it was tuned on")
        if tune.rounds is not None and tune.rounds > self.rounds:
            raise whole(f"tune.rounds: must be ≤ rounds ({self.rounds}), got {tune.rounds}")
        if tune.by == "rounds" and any(isinstance(level, FinalOf) for level in self.target.values()):
            raise whole("tune.by: must be 'final' where the target is what a method has at the end, got 'rounds'")
        for i, method in enumerate(self.methods):
            tried = math.prod(map(len, tune.grid(method).values()))
            if tried > LISTED:
                raise whole(f"methods.{i}.grid: must have at most {LISTED:,} combinations, got {tried:,}")
        labels = {method.label for method in self.methods}
        if tune.rows == "both" and (twice := next((v for v in labels if tuned_label(v) in labels), None)):
            raise whole(f"methods.label: must not be {tuned_label(twice)!r}, which the tuned {twice!r} is called")

    @property
    def metric(self) -> str:
        """What the target is a value of."""
        return next(iter(self.target))

    @property
    def level(self) -> float | FinalOf:
        """The value to reach, or whose."""
        return self.target[self.metric]

    @property
    def labels(self) -> list[str]:
        """Of the table's rows: methods as they are given, then as they are tuned, as far as either is asked for."""
        given = [method.label for method in self.methods]
        return given if self.tune is None or self.tune.rows == "tuned" else [*given, *map(tuned_label, given)]

    def tuned_as(self, label: str) -> str:
        """What a method's row is called once it is tuned."""
        return tuned_label(label) if self.tune is not None and self.tune.rows == "both" else label

    @property
    def reference(self) -> str:
        """The label of the method that others are measured against."""
        return self.baseline or _label(self.level) or self.methods[0].label

    def check(self) -> None:
        """Build every method once, so that a mistake in the last is found before the first has run."""
        made = []
        for i, method in enumerate(self.methods):
            for algorithm in self._variants(method):
                parts = self._method(algorithm, method.selection, f"methods.{i}.")
            made.append(parts)
        common = self._common(self.seeds[0])
        for i, parts in enumerate(made):
            check_parts(RunSpec(**parts, **common, seed=self.seeds[0]), located, f"methods.{i}.")
        level = self.level
        _check_task(made[0] | common, {self.metric: 0.0 if isinstance(level, FinalOf) else level})

    def _variants(self, method: Method) -> Iterator[Choice]:
        """Every form that a method's algorithm takes in the comparison."""
        if self.tune is None or self.tune.rows == "both":
            yield method.algorithm
        for point in self.tune.points(method) if self.tune is not None else ():
            yield method.algorithm.but(**point)


def tuned_label(label: str) -> str:
    """What a method is called once it is tuned, in a table that has it both ways."""
    return f"{label}, tuned"


def _label(level: float | FinalOf) -> str | None:
    return level.final_of if isinstance(level, FinalOf) else None


def _check_task(parts: Mapping[str, Any], target: Mapping[str, float] | None) -> None:
    """See that the model fits the data, and that the target can be measured."""
    with located("model"):
        task = Task(
            model=FlatModel(parts["model"], torch.device("cpu"), parts["dtype"], None),
            data=parts["data"],
            loss=Loss(parts["loss"]),
            seed=0,
            **{name: parts[name] for name in ("local_steps", "local_epochs", "batch_size")},
        )
        check_fit(task)
    with located(""):
        check_target(target, measurable(task))


C = TypeVar("C", bound=BaseModel)


def load(kind: type[C], path: str | Path, overrides: Sequence[str] = ()) -> C:
    """Read a configuration, with `key=value` overrides (dotted keys, TOML values) applied."""
    table = read(path)
    for text in overrides:
        override(table, text)
    return parse(kind, table, one_line(str(path), 100))


def check_same(what: str, before: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    """Refuse to go on with something in its folder where fields are not as they were."""
    for field in {**before, **now}:
        if before.get(field) != now.get(field):
            old, new = format_value(before.get(field)), format_value(now.get(field))
            raise ConfigError(f"Cannot go on with {what} because its '{field}' is {old}, got {new}; use a new folder")


def parse(kind: type[C], table: Mapping[str, Any], where: str = "configuration") -> C:
    """Check a table against a kind of configuration."""
    if not isinstance(table, Mapping):
        raise ConfigError(f"{where}: must be a table, got {format_value(table)}")
    check_depth(table, where)
    try:
        return kind.model_validate(table)
    except ValidationError as error:
        raise ConfigError(f"{where}: {sentences(kind, table, error.errors())}") from None
