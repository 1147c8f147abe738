"""Configuration of a comparison: methods × seeds."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from typing import Annotated, Any, Literal, Protocol

from pydantic import PrivateAttr, model_validator

from ..core.formatting import format_value
from ..core.validation import suggest
from ..rng import signed
from ..run.preflight import check_parts
from ..run.spec import RunSpec
from .choices import Choice, ChoiceOrList, LinkChoice
from .errors import ConfigError, error_location, table_error
from .fields import (
    MAX_ENTRIES,
    ComparedTarget,
    Count,
    FinalOf,
    Flag,
    Grid,
    Name,
    Seed,
    Seeds,
    StepSizes,
    Strict,
    Title,
    non_empty_list,
    one_of_names,
)
from .tables import BufferConfig, PersonalTable
from .training import Training, build_link, build_local, build_personal, build_robust, check_model_and_target


class Method(Strict):
    """A row of a comparison."""

    label: Name
    algorithm: Choice
    selection: Choice
    local: ChoiceOrList | None = None
    """Local optimisers of this method; by default those of the comparison."""
    personal: PersonalTable | None = None
    """Parameters that stay with this method's clients; by default those of the comparison."""
    uplink: LinkChoice | None = None
    """Codecs of this method's uploads; by default those of the comparison."""
    downlink: LinkChoice | None = None
    """Codecs of what this method's server sends; by default those of the comparison."""
    aggregation: Choice | None = None
    """The aggregation rule of this method; by default that of the comparison."""
    attack: Choice | None = None
    """The attack on this method; by default that of the comparison."""
    buffer: BufferConfig | None = None
    """Asynchronous rounds of this method; by default as in the comparison."""
    grid: Grid | None = None
    """Values to try for fields of the algorithm, in all combinations; `lr` here replaces the step sizes of `tune`."""

    @property
    def lr(self) -> float:
        """The step size that the configuration gives to the method."""
        return float(self.algorithm.fields["lr"])


ALONE = "Local training alone"
"""The label of the row that a comparison adds."""
NOT_SENT = ("privacy", "personal", "uplink", "downlink", "aggregation", "attack")
"""Options that local training alone does not have, because nothing is sent."""
INDEPENDENT = ("Full", "Uniform", "Bernoulli", "MD", "Cyclic", "FixedCohorts")
"""Selectors that need nothing from clients."""


class HasGrid(Protocol):
    """A method with a grid of its own."""

    @property
    def grid(self) -> dict[str, list[float]] | None: ...


class Tuning(Strict):
    """One grid of step sizes for all methods. Each method keeps its best, chosen on a seed that the table does not use.

    The best step size reaches the target first (`by="rounds"`) or ends with the best value (`by="final"`, which
    excludes step sizes that are fast but unstable).
    """

    lr: StepSizes
    seed: Seed
    by: Annotated[Literal["rounds", "final"], one_of_names("rounds", "final")] = "rounds"
    rounds: Count | None = None
    """Number of rounds when trying values; by default as many as the runs of the table have."""
    rows: Annotated[Literal["tuned", "both"], one_of_names("tuned", "both")] = "tuned"
    """Whether the table has rows for tuned methods only, or for all methods as given and then for all tuned."""

    def grid(self, method: HasGrid) -> dict[str, list[float]]:
        """Values to try for a method, by field."""
        return {"lr": self.lr} | (method.grid or {})

    def points(self, method: HasGrid) -> list[dict[str, float]]:
        """Every combination of the grid's values."""
        grid = self.grid(method)
        return [dict(zip(grid, values, strict=True)) for values in itertools.product(*grid.values())]


class CompareConfig(Training):
    """Methods × seeds: `fedmos compare`."""

    title: Title
    target: ComparedTarget
    """A number, or `{final_of = "FedAvg"}`: the final value of that method, averaged over seeds."""
    seeds: Seeds
    methods: Annotated[list[Method], non_empty_list]
    baseline: Name | None = None
    """Label of the method that others are compared with; by default the target's method, or else the first."""
    tune: Tuning | None = None
    local_training: Flag = True
    """Whether to add a row of local training alone, where clients have test samples of their own.

    It has the step size and selection of the first method, and clients are evaluated at the end.
    """
    light: Flag = False
    """Keep only the model and history of finished runs: smaller folders, which cannot be given more rounds later."""

    _completed: bool = PrivateAttr(default=False)
    """Whether it is known if the data have test samples of clients."""

    @model_validator(mode="after")
    def _complete_holdout(self) -> CompareConfig:
        """Add the row of local training alone where the configuration says that clients have test samples."""
        if self.data.holdout is not None:
            self._add_local_training()
        return self

    def completed(self) -> CompareConfig:
        """Return the configuration with the row of local training alone, if the data have test samples of clients.

        Raises:
            ConfigError: If the data cannot be loaded, or a method has the label of the row.
        """
        if self._completed or not self.local_training:
            return self
        made = self.model_copy()
        made._completed = True
        if made.data.holdout is None and made.data.has_own_tests(made.seeds[0]):
            made._add_local_training()
            if sum(method.label == ALONE for method in made.methods) > 1:
                raise ConfigError(
                    f"methods.label: must not be {ALONE!r}, which the row of local training is called; use another "
                    "label, or local_training = false"
                )
        return made

    def _add_local_training(self) -> None:
        """Add the row of local training alone."""
        if not self.local_training:
            return
        if self.evaluate_clients is None:
            self.__dict__["evaluate_clients"] = self.rounds
        if all(method.algorithm.name != "LocalOnly" for method in self.methods):
            first = self.methods[0]
            lr = {"lr": first.algorithm.fields["lr"]} if "lr" in first.algorithm.fields else {}
            grid = {"lr": first.grid["lr"]} if first.grid is not None and "lr" in first.grid else None
            row = Method(
                label=ALONE,
                algorithm=Choice.model_validate({"name": "LocalOnly"} | lr),
                selection=_independent(first.selection),
                local=first.local,
                grid=grid,
            )
            self.__dict__["methods"] = [*self.methods, row]

    @model_validator(mode="after")
    def _check_consistency(self) -> CompareConfig:
        labels = [method.label for method in self.methods]
        grids = {f"methods.{i}.grid": m.grid for i, m in enumerate(self.methods) if m.grid is not None}
        if self.tune is not None:
            grids["tune"] = {"lr": self.tune.lr}
        elif grids:
            raise table_error(f"{next(iter(grids))}: must be left out where there is no tune")
        listed: dict[str, Sequence[Any]] = {"seeds": [signed(seed) for seed in self.seeds], "methods.label": labels}
        listed |= {f"{where}.{field}": values for where, grid in grids.items() for field, values in grid.items()}
        for name, values in listed.items():
            if len(set(values)) != len(values):
                raise table_error(f"{name}: must be different in each place, got the same twice")
        if self.tune is not None:
            self._check_tuning(self.tune)
        if len(self.target) != 1:
            raise table_error(f"target: must name exactly one metric, got {len(self.target)}")
        level = self.level
        for name, label in (("baseline", self.baseline), (f"target.{self.metric}.final_of", _label(level))):
            if label is not None and label not in labels:
                raise table_error(
                    f"{name}: must be the label of a method, got {format_value(label)}{suggest(label, labels)}"
                )
        return self

    def _check_tuning(self, tune: Tuning) -> None:
        if signed(tune.seed) in map(signed, self.seeds):
            raise table_error("tune.seed: must not be one of seeds, or the table would be of the seed it was tuned on")
        if tune.rounds is not None and tune.rounds > self.rounds:
            raise table_error(f"tune.rounds: must be ≤ rounds ({self.rounds}), got {tune.rounds}")
        if tune.by == "rounds" and any(isinstance(level, FinalOf) for level in self.target.values()):
            raise table_error("tune.by: must be 'final' where the target is what a method has at the end, got 'rounds'")
        for i, method in enumerate(self.methods):
            tried = math.prod(map(len, tune.grid(method).values()))
            if tried > MAX_ENTRIES:
                raise table_error(f"methods.{i}.grid: must have at most {MAX_ENTRIES:,} combinations, got {tried:,}")
        labels = {method.label for method in self.methods}
        if tune.rows == "both" and (twice := next((v for v in labels if tuned_label(v) in labels), None)):
            raise table_error(f"methods.label: must not be {tuned_label(twice)!r}, which the tuned {twice!r} is called")

    @property
    def metric(self) -> str:
        """The metric of the target."""
        return next(iter(self.target))

    @property
    def level(self) -> float | FinalOf:
        """The value to reach, or the method whose final value it is."""
        return self.target[self.metric]

    @property
    def labels(self) -> list[str]:
        """Labels of the table's rows: of methods as given, then of tuned methods, where the table has them."""
        given = [method.label for method in self.methods]
        return given if self.tune is None or self.tune.rows == "tuned" else [*given, *map(tuned_label, given)]

    def tuned_as(self, label: str) -> str:
        """Return the label of a method's row once it is tuned."""
        return tuned_label(label) if self.tune is not None and self.tune.rows == "both" else label

    @property
    def reference(self) -> str:
        """The label of the method that others are compared with."""
        return self.baseline or _label(self.level) or self.methods[0].label

    def check(self) -> None:
        """Build every method once, so that an error in the last is found before the first has run."""
        methods = []
        for i, method in enumerate(self.methods):
            for algorithm in self._variants(method):
                parts = self._method(algorithm, method.selection, f"methods.{i}.")
            methods.append(parts | self.own_options(method))
        common = self._common(self.seeds[0])
        specs = [RunSpec(**common | parts, seed=self.seeds[0]) for parts in methods]
        for i, spec in enumerate(specs):
            check_parts(spec, error_location, f"methods.{i}.")
        level = self.level
        check_model_and_target(specs[0], {self.metric: 0.0 if isinstance(level, FinalOf) else level})

    def own_options(self, method: Method) -> dict[str, Any]:
        """Return the arguments of `fm.run` that a method has in place of the comparison's."""
        where = f"methods.{self.methods.index(method)}"
        given: dict[str, Any] = dict.fromkeys(NOT_SENT) if method.algorithm.name == "LocalOnly" else {}
        if method.local is not None:
            given["local"] = build_local(f"{where}.local", method.local)
        if method.personal is not None:
            given["personal"] = build_personal(method.personal)
        for name in ("uplink", "downlink"):
            if (link := getattr(method, name)) is not None:
                given[name] = build_link(f"{where}.{name}", link)
        for name in ("aggregation", "attack"):
            if (choice := getattr(method, name)) is not None:
                given[name] = build_robust(f"{where}.{name}", choice)
        if method.buffer is not None:
            given["buffer"] = method.buffer.make(f"{where}.buffer")
        return given

    def _variants(self, method: Method) -> Iterator[Choice]:
        """Every variant of a method's algorithm in the comparison."""
        if self.tune is None or self.tune.rows == "both":
            yield method.algorithm
        for point in self.tune.points(method) if self.tune is not None else ():
            yield method.algorithm.but(**point)


def tuned_label(label: str) -> str:
    """Return the label of a tuned method in a table that also has the method as given."""
    return f"{label}, tuned"


def _independent(selection: Choice) -> Choice:
    """Return the selection of local training alone: one of as many clients that needs nothing from them."""
    if selection.name in INDEPENDENT:
        return selection
    m = selection.fields.get("m")
    return Choice(name="Full") if m is None else Choice.model_validate({"name": "Uniform", "m": m})


def _label(level: float | FinalOf) -> str | None:
    return level.final_of if isinstance(level, FinalOf) else None
