"""Configurations of a run: `fedmos run` and `fedmos sweep`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

import torch
from pydantic import create_model, model_validator

from ..core.history import METRICS
from ..core.metric_functions import METRIC_CLASSES
from ..core.validation import whole_number
from ..data.federated import FederatedData
from ..engine.task_check import check_fit
from ..evaluation.diagnostics import Diagnostics
from ..evaluation.measurable import measurable
from ..evaluation.user_metrics import choose_metrics
from ..run.build import build_task
from ..run.preflight import check_parts, check_precision, check_target, find_device
from ..run.result import Result
from ..run.run import Run
from ..run.spec import RunSpec
from . import registry
from .errors import error_location, table_error
from .fields import Choice, Count, Flag, Seed, Space, Strict, build, obeys, one_of_names
from .options import option_fields
from .stored_model import build_model
from .tables import DeployConfig

_BY_CALLER = ("algorithm", "selection", "seed", "out", "checkpoint_every")
"""Options that the caller of `Training.arguments` gives."""

if TYPE_CHECKING:

    class TrainingOptions(Strict):
        def __getattr__(self, name: str) -> Any:
            """The options of `RunSpec`, which are known at run time only."""

else:
    TrainingOptions = create_model("TrainingOptions", __base__=Strict, **option_fields(per_run=False))


class Training(TrainingOptions):
    """The options that a run shares with the other runs of a comparison; all but `diagnostics` are `RunSpec`'s."""

    given_options: ClassVar = tuple(option_fields(per_run=False))
    """Names of the options that are arguments of `fm.run` as they are in the configuration, or built from it."""
    diagnostics: Count | None = None
    """Measure drift, dissimilarity and other quantities after every so many rounds; see `fedmos.Diagnostics`."""

    @model_validator(mode="after")
    def _check_combinations(self) -> Training:
        if (self.local_steps is None) == (self.local_epochs is None):
            got = "both" if self.local_steps is not None else "neither"
            raise table_error(f"local_steps: exactly one of local_steps and local_epochs must be given, got {got}")
        if self.precision is not None and self.dtype != "float32":
            raise table_error(f"precision: must be left out where dtype is {self.dtype}, got {self.precision!r}")
        if self.precision == "tf32" and self.device == "cpu":
            raise table_error("precision: must be left out or 'bf16' on a CPU, got 'tf32'")
        return self

    def kept(self, **how: Any) -> dict[str, Any]:
        """Return the configuration as a table for a folder, with an absolute path to the data.

        Args:
            how: `include` or `exclude`, as of pydantic's `model_dump`.
        """
        table = self.model_dump(mode="json", exclude_none=True, **how)
        if self.data.root is not None:
            table["data"]["root"] = str(Path(self.data.root).absolute())
        return table

    def run(self, algorithm: Choice, selection: Choice, seed: int, **more: Any) -> Result:
        """Build everything and train."""
        return Run(self.spec(algorithm, selection, seed, **more)).play()

    def spec(self, algorithm: Choice, selection: Choice, seed: int, **more: Any) -> RunSpec:
        """Build the run; `more` are further arguments of `fm.run`."""
        return RunSpec(**self.arguments(algorithm, selection, seed, **more))

    def arguments(
        self, algorithm: Choice, selection: Choice, seed: int, data: FederatedData | None = None, **more: Any
    ) -> dict[str, Any]:
        """Return arguments for `fm.run`; `data` is the federation of the seed, if it has been made before."""
        parts = self._method(algorithm, selection) | self._common(seed, data) | {"seed": seed}
        check_parts(RunSpec(**parts), error_location)
        return parts | more

    def _method(self, algorithm: Choice, selection: Choice, where: str = "") -> dict[str, Any]:
        """Build the arguments in which the methods of a comparison differ."""
        return {
            "algorithm": build(f"{where}algorithm", algorithm, registry.algorithms()),
            "selection": build(f"{where}selection", selection, registry.selectors()),
        }

    def _common(self, seed: int, data: FederatedData | None = None) -> dict[str, Any]:
        """Build all other arguments of `fm.run`; the most expensive ones last."""
        given = {name: getattr(self, name) for name in self.given_options}
        if self.diagnostics is not None:
            given["callbacks"] = [Diagnostics(every=self.diagnostics)]
        if isinstance(self.lr_decay, dict):
            given["lr_decay"] = {int(key): factor for key, factor in self.lr_decay.items()}
        given["dtype"] = getattr(torch, self.dtype)
        with error_location(""):
            given["device"] = find_device(self.device)
            check_precision(self.precision, given["dtype"], given["device"])
        if self.metrics is not None:
            given["metrics"] = [METRIC_CLASSES[name]() for name in self.metrics]
        given["system"] = None if self.system is None else self.system.make()
        if self.availability is not None:
            given["availability"] = build("availability", self.availability, registry.availabilities())
        return given | {"model": self.make_model(seed), "data": data or self.data.make(seed)}

    def make_model(self, seed: int) -> torch.nn.Module:
        """Build the model of a run with this seed."""
        return build_model(self.model, seed)


def check_model_and_target(spec: RunSpec, target: Mapping[str, float] | None) -> None:
    """Check that the model fits the data, and that the target can be measured."""
    with error_location("model"):
        task = build_task(replace(spec, precision=None), torch.device("cpu"), spec.data)
        check_fit(task)
    with error_location(""):
        check_target(target, [*measurable(task), *choose_metrics(task, spec.metrics)])


if TYPE_CHECKING:
    RunOptions = Training
else:
    RunOptions = create_model("RunOptions", __base__=Training, **option_fields(per_run=True))


class RunConfig(RunOptions):
    """One run: `fedmos run`."""

    given_options = (*Training.given_options, *(name for name in option_fields(per_run=True) if name not in _BY_CALLER))
    deploy: DeployConfig | None = None

    def check(self) -> None:
        """Build everything and check that it fits together, without training."""
        spec = RunSpec(**self._method(self.algorithm, self.selection), **self._common(self.seed), seed=self.seed)
        check_parts(spec, error_location)
        check_model_and_target(spec, self.target)


class Search(Strict):
    """The fields of a run to search over, and the search strategy."""

    space: dict[str, Space]
    """Values to try by field, with dots between tables, e.g. "algorithm.lr"."""
    trials: Count
    metric: Annotated[str, one_of_names(*METRICS)] = "accuracy"
    """The metric whose last value the search optimises."""
    seed: Seed = 0
    """Seed of the search; every trial has the run's own seed."""
    prune: Flag = True
    """Whether to stop trials that are worse than the median of the others at the same round."""
    warmup: Annotated[int, obeys(whole_number)] = 5
    """Number of first rounds in which no trial is stopped."""

    @model_validator(mode="after")
    def _check_space(self) -> Search:
        if not 1 <= len(self.space) <= 100:
            raise table_error(f"space: must name 1 to 100 fields, got {len(self.space)}")
        return self


class SweepConfig(RunConfig):
    """A search over the fields of a run: `fedmos sweep`."""

    sweep: Search
