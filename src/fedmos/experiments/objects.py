"""A comparison of Python objects: the user's own algorithms, selectors, models, losses and data."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass, replace
from typing import Any

import torch
from torch import nn

from ..algorithm import Algorithm
from ..config.comparison import tuned_label
from ..config.fields import FinalOf
from ..config.schema import Tuning
from ..core.formatting import format_value
from ..core.validation import suggest
from ..data.federated import FederatedData
from .runner import PlannedRun

OfSeed = Callable[[int], Any]
"""A function of the seed."""


@dataclass(frozen=True, kw_only=True, eq=False)
class ObjectMethod:
    """A row of a comparison: the arguments of `fm.run` that are its own."""

    label: str
    arguments: Mapping[str, Any]
    grid: dict[str, list[float]] | None = None
    """All values to try, by field of the algorithm; None without tuning."""

    @property
    def algorithm(self) -> Algorithm:
        algorithm: Algorithm = self.arguments["algorithm"]
        return algorithm

    @property
    def lr(self) -> float:
        return float(self.algorithm.lr)

    def with_values(self, values: Mapping[str, float]) -> Algorithm:
        """Return the algorithm with other values for some fields; the same object if nothing differs."""
        changed = {name: value for name, value in values.items() if getattr(self.algorithm, name, None) != value}
        return with_fields(self.algorithm, changed, f"compare: methods[{self.label!r}]") if changed else self.algorithm


@dataclass(frozen=True, kw_only=True, eq=False)
class ObjectComparison:
    """Methods × seeds with the attributes of `CompareConfig` that planning, tuning and tables use."""

    title: str
    methods: Sequence[ObjectMethod]
    seeds: Sequence[int]
    rounds: int
    metric: str
    level: float | FinalOf | None
    """The value to reach, the method whose final value it is, or None for a table of final values."""
    model: nn.Module | OfSeed
    data: FederatedData | OfSeed
    options: Mapping[str, Any]
    """Arguments of `fm.run` that all methods share."""
    baseline: str | None = None
    tune: Tuning | None = None
    shared_grid: Mapping[str, Sequence[float]] = field(default_factory=dict)
    """The values of `tune` for all methods that have these fields."""
    _made: dict[tuple[int, int], Any] = field(default_factory=dict, repr=False)
    """Models and federations by the identity of their function and by seed."""

    @property
    def reference(self) -> str:
        """The label of the method that others are compared with."""
        return self.baseline or (self.level.final_of if isinstance(self.level, FinalOf) else self.methods[0].label)

    def tuned_as(self, label: str) -> str:
        """Return the label of a method's row once it is tuned."""
        return tuned_label(label) if self.tune is not None and self.tune.rows == "both" else label

    def arguments(self, run: PlannedRun, options: Mapping[str, Any]) -> dict[str, Any]:
        """Return the arguments of `fm.run` for a run; `options` are some of them."""
        method = next(method for method in self.methods if method.label == run.label)
        given = {"model": self.model, "data": self.data, "label": run.label, **self.options, **method.arguments}
        given |= {"seed": run.seed, "algorithm": method.with_values(dict(run.values)), **options}
        return given | {name: self.of_seed(name, given[name], run.seed) for name in ("model", "data")}

    def of_seed(self, name: str, value: Any, seed: int) -> Any:
        """Return a model or federation; a function of the seed is called once for each seed.

        PyTorch's global generator has the seed while the function runs, so that weights drawn from it repeat.
        """
        if isinstance(value, nn.Module | FederatedData | type) or not callable(value):
            return value  # `RunSpec` checks its type
        if (key := (id(value), seed)) not in self._made:
            _check_takes_seed(name, value)
            with torch.random.fork_rng(devices=[]):
                torch.default_generator.manual_seed(seed)
                self._made[key] = value(seed)
        return self._made[key]


def _check_takes_seed(name: str, function: OfSeed) -> None:
    try:
        inspect.signature(function).bind(0)
    except TypeError:
        kind = {"model": "a torch.nn.Module", "data": "a fedmos.FederatedData"}[name]
        raise ValueError(
            f"compare: {name!r} must be {kind} or a function of the seed, got a function that does not take one "
            f"argument; use {name}=lambda seed: ..."
        ) from None
    except ValueError:  # a builtin without a signature
        return


def with_fields(algorithm: Algorithm, values: Mapping[str, Any], owner: str) -> Algorithm:
    """Return the algorithm with other values for some of its fields.

    Raises:
        ValueError: If it is no dataclass, or has no such field.
    """
    name = type(algorithm).__name__
    if not is_dataclass(algorithm):
        raise ValueError(f"{owner}: Cannot tune {name} because it is no dataclass; use @dataclass(frozen=True)")
    known = tunable_fields(algorithm)
    for given in values:
        if given not in known:
            raise ValueError(
                f"{owner}: {name} has no field {format_value(given)}{suggest(str(given), known)}; its fields: "
                f"{', '.join(known)}"
            )
    changed: Algorithm = replace(algorithm, **values)
    return changed


def tunable_fields(algorithm: Algorithm) -> list[str]:
    """Return the names of the fields that `dataclasses.replace` can change."""
    return [f.name for f in fields(algorithm) if f.init] if is_dataclass(algorithm) else []
