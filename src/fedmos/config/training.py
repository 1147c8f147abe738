"""Configurations of a run: `fedmos run` and `fedmos sweep`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

import torch
from pydantic import create_model, model_validator

from ..aggregation import Aggregation
from ..algorithm import Algorithm
from ..attacks import Attack
from ..codecs.chain import is_codec
from ..core.batch_losses import LOSS_CLASSES
from ..core.formatting import format_value
from ..core.losses import NAMES
from ..core.metric_names import is_client_metric
from ..core.validation import suggest, whole_number
from ..data.federated import FederatedData
from ..engine.task_check import check_fit
from ..evaluation.diagnostics import Diagnostics
from ..privacy.mechanism import Mechanism
from ..run.build import build_task
from ..run.preflight import check_metric, check_parts, check_precision, check_target, find_device
from ..run.result import Result
from ..run.run import Run
from ..run.run_metrics import run_metrics
from ..run.spec import RunSpec
from ..selection.availability import Availability
from ..selection.selector import Selector
from . import registry
from .build import build, build_function, build_metrics
from .choices import Choice
from .errors import ConfigError, error_location, table_error
from .fields import TARGETS, Count, Flag, Name, Seed, Space, Strict, has_own_metrics, obeys
from .options import option_fields
from .own_classes import with_absolute_paths
from .stored_model import build_model
from .tables import DeployConfig, EvaluateClientsConfig, PersonalConfig

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
        kept: dict[str, Any] = with_absolute_paths(table, Path.cwd())
        return kept

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
        parts |= more
        check_parts(RunSpec(**parts), error_location)
        return parts

    def _method(self, algorithm: Choice, selection: Choice, where: str = "") -> dict[str, Any]:
        """Build the arguments in which the methods of a comparison differ."""
        return {
            "algorithm": build(f"{where}algorithm", algorithm, registry.algorithms(), Algorithm),
            "selection": build(f"{where}selection", selection, registry.selectors(), Selector),
        }

    def _common(self, seed: int, data: FederatedData | None = None) -> dict[str, Any]:
        """Build all other arguments of `fm.run`; the most expensive ones last."""
        given = {name: getattr(self, name) for name in self.given_options}
        if self.diagnostics is not None:
            given["callbacks"] = [Diagnostics(every=self.diagnostics)]
        if isinstance(self.lr_decay, dict):
            given["lr_decay"] = {int(key): factor for key, factor in self.lr_decay.items()}
        elif isinstance(self.lr_decay, Choice):
            given["lr_decay"] = build_function("lr_decay", self.lr_decay, registry.schedules())
        given["loss"] = self.loss if self.loss in NAMES else build_function("loss", self.loss, LOSS_CLASSES)
        given["dtype"] = getattr(torch, self.dtype)
        with error_location(""):
            given["device"] = find_device(self.device)
            check_precision(self.precision, given["dtype"], given["device"])
        if self.metrics is not None:
            given["metrics"] = build_metrics(self.metrics)
        if isinstance(self.evaluate_clients, EvaluateClientsConfig):
            given["evaluate_clients"] = self.evaluate_clients.make()
        given["system"] = None if self.system is None else self.system.make()
        given["buffer"] = None if self.buffer is None else self.buffer.make()
        if self.availability is not None:
            given["availability"] = build("availability", self.availability, registry.availabilities(), Availability)
        given["local"] = build_local("local", self.local)
        given["personal"] = build_personal(self.personal)
        if self.privacy is not None:
            given["privacy"] = build("privacy", self.privacy, registry.mechanisms(), Mechanism)
        given |= {name: build_link(name, getattr(self, name)) for name in ("uplink", "downlink")}
        given |= {name: build_robust(name, getattr(self, name)) for name in ("aggregation", "attack")}
        return given | {"model": self.make_model(seed), "data": data or self.data.make(seed)}

    def make_model(self, seed: int) -> torch.nn.Module:
        """Build the model of a run with this seed."""
        return build_model(self.model, seed)


def build_local(where: str, given: Choice | list[Choice] | None) -> Any:
    """Build the local optimisers of a configuration."""
    if isinstance(given, list):
        return [build(f"{where}.{i}", choice, registry.local_optimizers()) for i, choice in enumerate(given)]
    return None if given is None else build(where, given, registry.local_optimizers())


def build_personal(given: list[str] | PersonalConfig | None) -> Any:
    """Build the parameters of a configuration that stay with clients."""
    return given.make() if isinstance(given, PersonalConfig) else given


def build_link(where: str, given: Choice | list[Choice] | Mapping[str, Choice | list[Choice]] | None) -> Any:
    """Build the codecs of a configuration."""
    if isinstance(given, Mapping):
        return {name: build_link(f"{where}.{name}", codecs) for name, codecs in given.items()}
    if isinstance(given, list):
        return [_build_codec(f"{where}.{i}", choice) for i, choice in enumerate(given)]
    return None if given is None else _build_codec(where, given)


def _build_codec(where: str, choice: Choice) -> Any:
    made = build(where, Choice.model_validate(_with_tables({"name": choice.name} | choice.fields)), registry.codecs())
    if not is_codec(made):
        got = f"{choice.title} gives {format_value(made)}"
        raise ConfigError(f"{where}.name: must give a fedmos.codecs.Codec, or an object with its methods, but {got}")
    return made


def _with_tables(codec: Any) -> Any:
    """Return a table of a codec, in which codecs that are named alone are tables, too."""
    if isinstance(codec, str):
        return {"name": codec}
    if isinstance(codec, list | tuple):
        return [_with_tables(one) for one in codec]
    if not isinstance(codec, Mapping):
        return codec
    field = {"ErrorFeedback": "codec", "Chain": "codecs"}.get(str(codec.get("name")))
    return {key: _with_tables(value) if key == field else value for key, value in codec.items()}


def build_robust(where: str, given: Choice | None) -> Any:
    """Build the aggregation rule or the attack of a configuration; the last part of `where` says which."""
    if given is None:
        return None
    if where.endswith("aggregation"):
        return build(where, given, registry.aggregations(), Aggregation)
    return build(where, given, registry.attacks(), Attack)


def check_model_and_target(spec: RunSpec, target: Mapping[str, float] | None) -> list[str]:
    """Check that the model fits the data, and that the target can be measured; return the names of all metrics."""
    with error_location("model"):
        task = build_task(replace(spec, precision=None), torch.device("cpu"), spec.data)
        check_fit(task)
    with error_location(""):
        known = run_metrics(spec, task).names
        check_target(target, known)
        check_metric("run", "keep_best", spec.keep_best, known)
    return known


if TYPE_CHECKING:
    RunOptions = Training
else:
    RunOptions = create_model("RunOptions", __base__=Training, **option_fields(per_run=True))


class RunConfig(RunOptions):
    """One run: `fedmos run`."""

    given_options = (*Training.given_options, *(name for name in option_fields(per_run=True) if name not in _BY_CALLER))
    deploy: DeployConfig | None = None

    def check(self) -> list[str]:
        """Build everything and check that it fits together, without training; return the names of the metrics."""
        spec = RunSpec(**self._method(self.algorithm, self.selection), **self._common(self.seed), seed=self.seed)
        check_parts(spec, error_location)
        return check_model_and_target(spec, self.target)


class Search(Strict):
    """The fields of a run to search over, and the search strategy."""

    space: dict[str, Space]
    """Values to try by field, with dots between tables, e.g. "algorithm.lr"."""
    trials: Count
    metric: Name = "accuracy"
    """The metric whose last value the search optimises."""
    seed: Seed = 0
    """Seed of the search; every trial has the run's own seed."""
    prune: Flag = True
    """Whether to stop trials that are worse than the median of the others at the same round."""
    warmup: Annotated[int, obeys(whole_number)] = 5
    """Number of first rounds in which no trial is stopped."""
    parallel: Count = 1
    """Number of trials that are suggested together and train at a time, on several processes or with Ray."""

    @model_validator(mode="after")
    def _check_space(self) -> Search:
        if not 1 <= len(self.space) <= 100:
            raise table_error(f"space: must name 1 to 100 fields, got {len(self.space)}")
        return self


class SweepConfig(RunConfig):
    """A search over the fields of a run: `fedmos sweep`."""

    sweep: Search

    @model_validator(mode="after")
    def _check_metric(self) -> SweepConfig:
        of_clients = self.evaluate_clients is not None and is_client_metric(self.sweep.metric)
        if self.sweep.metric not in TARGETS and not has_own_metrics(self.metrics) and not of_clients:
            names, got = ", ".join(map(repr, TARGETS)), format_value(self.sweep.metric)
            raise table_error(f"sweep.metric: must be one of {names}, got {got}{suggest(self.sweep.metric, TARGETS)}")
        return self
