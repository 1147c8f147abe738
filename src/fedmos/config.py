"""Configurations: TOML files, checked strictly before anything runs."""

from __future__ import annotations

import inspect
import tomllib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

import torch
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, model_validator

import fedmos as fm

from . import catalogue
from .history import METRICS
from .storage.pace import TIME
from .validate import suggest

Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Count = Annotated[int, Field(ge=1)]


class ConfigError(ValueError):
    """A configuration that cannot be used, in one sentence."""


class Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class Choice(BaseModel):
    """A thing by name, and its fields."""

    model_config = ConfigDict(extra="allow", strict=True, frozen=True)
    name: str

    @property
    def fields(self) -> dict[str, Any]:
        return {key: _tuples(value) for key, value in (self.model_extra or {}).items()}


class AugmentConfig(Strict):
    """Random crops and flips in training; see `fedmos.Augment`."""

    crop: Annotated[int, Field(ge=0)] = 4
    flip: bool = True


class DataConfig(Strict):
    """A data set, and how it is divided."""

    name: str
    root: str | None = None
    clients: Count | None = None
    """Needed unless the partition brings its own, as Natural does."""
    partition: Choice = Choice(name="IID")
    augment: AugmentConfig | None = None
    test_samples: Count | None = None
    """Evaluate on so many test samples, drawn at random; by default on all."""
    seed: int | None = None
    """Decides the split; by default the run's seed."""
    alpha: Annotated[float, Field(ge=0, allow_inf_nan=False)] | None = None
    beta: Annotated[float, Field(ge=0, allow_inf_nan=False)] | None = None
    """α and β of the synthetic data set."""

    @model_validator(mode="after")
    def _consistent(self) -> DataConfig:
        foreign = ("root", "augment", "partition", "test_samples") if self.name == "synthetic" else ("alpha", "beta")
        for field in foreign:
            if getattr(self, field) != DataConfig.model_fields[field].default:
                raise ValueError(f"'{field}' has no part in the data set {self.name}")
        return self

    def make(self, seed: int) -> fm.FederatedData:
        seed = seed if self.seed is None else self.seed
        if self.name == "synthetic":
            given = {f: getattr(self, f) for f in ("alpha", "beta", "clients") if getattr(self, f) is not None}
            return fm.datasets.synthetic(**given, seed=seed)
        scheme = build("data.partition", self.partition, catalogue.partitions())
        dataset = fm.datasets.load(self.name, self.root)
        if self.augment is not None:
            dataset = dataset.declare(augment=fm.Augment(crop=self.augment.crop, flip=self.augment.flip))
        if self.test_samples is not None:
            dataset = dataset.fewer_tests(self.test_samples)
        return dataset.partition(scheme, self.clients, seed)


class SystemConfig(Strict):
    """Speeds, bandwidths and deadlines; see `fedmos.System`."""

    speed: Positive | Choice = 1000.0
    down: Positive | Choice = 1e6
    up: Positive | Choice = 1e6
    deadline: Positive | None = None
    over_select: Annotated[float, Field(ge=1, allow_inf_nan=False)] = 1.0
    quorum: Annotated[float, Field(ge=0, le=1)] = 0.0

    def make(self) -> fm.System:
        fields = {name: getattr(self, name) for name in SystemConfig.model_fields}
        for name in ("speed", "down", "up"):
            if isinstance(fields[name], Choice):
                fields[name] = build(f"system.{name}", fields[name], catalogue.profiles())
        return fm.System(**fields)


class Training(Strict):
    """What `fm.run` needs beside an algorithm, a selector and a seed."""

    data: DataConfig
    model: Choice
    rounds: Count
    local_steps: Count | None = None
    local_epochs: Count | None = None
    batch_size: Count | None = None
    loss: str = "cross_entropy"
    lr_decay: Positive | dict[str, Positive] = 1.0
    weight_decay: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.0
    clip: Positive | None = None
    eval_every: Count = 1
    target: dict[str, float] | None = None
    device: str = "auto"
    dtype: Literal["float32", "float64"] = "float32"
    engine: Literal["auto", "loop", "batched"] = "auto"
    on_bad_update: Literal["stop", "drop"] = "stop"
    availability: Choice | None = None
    system: SystemConfig | None = None

    def run(self, algorithm: Choice, selection: Choice, seed: int, **more: Any) -> fm.Result:
        """Build everything and train."""
        given = {name: getattr(self, name) for name in Training.model_fields if name not in ("data", "model")}
        if isinstance(self.lr_decay, dict):
            given["lr_decay"] = {_round_number(key): factor for key, factor in self.lr_decay.items()}
        given["dtype"] = getattr(torch, self.dtype)
        given["system"] = None if self.system is None else self.system.make()
        if self.availability is not None:
            given["availability"] = build("availability", self.availability, catalogue.availabilities())
        return fm.run(
            model=self.make_model(seed),
            data=self.data.make(seed),
            algorithm=build("algorithm", algorithm, catalogue.algorithms()),
            selection=build("selection", selection, catalogue.selectors()),
            seed=seed,
            **given | more,
        )

    def make_model(self, seed: int) -> torch.nn.Module:
        """The model; its initial weights follow the run's seed unless it has one of its own."""
        fields = {"seed": seed} | self.model.fields
        model: torch.nn.Module = build("model", Choice(name=self.model.name, **fields), catalogue.models())
        return model


class RunConfig(Training):
    """One run: `fedmos run`."""

    algorithm: Choice
    selection: Choice
    seed: int = 0
    out: str | None = None
    checkpoint_every: Count | Annotated[str, Field(pattern=TIME)] | None = None
    """So many rounds, or a time such as "30s" or "5min"."""


class Method(Strict):
    """A row of a comparison."""

    label: str
    algorithm: Choice
    selection: Choice


class Tuning(Strict):
    """One grid of step sizes for all methods; each keeps its best, judged on a seed that the table does not use.

    The best reaches the target first (`by="rounds"`) or ends with the best value (`by="final"`, which a step
    size that is fast but unstable does not).
    """

    lr: Annotated[list[Positive], Field(min_length=1)]
    seed: int
    by: Literal["rounds", "final"] = "rounds"


def _one_target(target: dict[str, float]) -> dict[str, float]:
    if len(target) != 1:
        raise ValueError("must name exactly one metric")
    return target


class CompareConfig(Training):
    """Methods × seeds: `fedmos compare`."""

    title: str
    target: Annotated[dict[str, float], AfterValidator(_one_target)]
    seeds: Annotated[list[int], Field(min_length=1)]
    methods: Annotated[list[Method], Field(min_length=1)]
    tune: Tuning | None = None

    @model_validator(mode="after")
    def _consistent(self) -> CompareConfig:
        for name, values in (("seeds", self.seeds), ("tune.lr", self.tune.lr if self.tune else [])):
            if len(set(values)) != len(values):
                raise ValueError(f"{name} must hold different numbers")
        if self.tune is not None and self.tune.seed in self.seeds:
            raise ValueError("tune.seed must not be one of seeds, or the table would be of the seed it was tuned on")
        (metric,) = self.target
        if metric not in METRICS:
            raise ValueError(f"target must name one of {', '.join(METRICS)}{suggest(metric, METRICS)}")
        return self

    def check(self) -> None:
        """Build every method once, so that a mistake in the last is found before the first has run."""
        selectors = []
        for i, method in enumerate(self.methods):
            fields = method.algorithm.fields
            if self.tune is not None:
                fields = {"lr": self.tune.lr[0]} | fields
            build(f"methods.{i}.algorithm", Choice(name=method.algorithm.name, **fields), catalogue.algorithms())
            selectors.append(build(f"methods.{i}.selection", method.selection, catalogue.selectors()))
        self.make_model(self.seeds[0])
        clients = len(self.data.make(self.seeds[0]))
        for selector in selectors:
            selector.validate(clients)


C = TypeVar("C", bound=BaseModel)


def load(kind: type[C], path: str | Path, overrides: Sequence[str] = ()) -> C:
    """Read a configuration, with `key=value` overrides (dotted keys, TOML values) applied."""
    try:
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"Cannot read {path}: {error}") from None
    try:
        table = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"Cannot read {path} because it is not TOML: {error}") from None
    for override in overrides:
        _override(table, override)
    return parse(kind, table, str(path))


def parse(kind: type[C], table: Mapping[str, Any], where: str = "configuration") -> C:
    """Check a table against a kind of configuration."""
    try:
        return kind.model_validate(table)
    except ValidationError as error:
        raise ConfigError(f"{where}: " + "; ".join(_sentence(kind, e) for e in error.errors())) from None


def build(where: str, choice: Choice, known: Mapping[str, Callable[..., Any]]) -> Any:
    """Make the thing that `choice` names; errors say where in the configuration they arose."""
    if choice.name not in known:
        raise ConfigError(
            f"{where}.name: must be one of {', '.join(known)}, got {choice.name!r}{suggest(choice.name, known)}"
        )
    make = known[choice.name]
    parameters = inspect.signature(make).parameters
    for field in choice.fields:
        if field not in parameters:
            allowed = ", ".join(parameters) or "none"
            raise ConfigError(
                f"{where}.{field}: {choice.name} has no such field{suggest(field, parameters)}; its fields: {allowed}"
            )
    missing = [n for n, p in parameters.items() if p.default is p.empty and n not in choice.fields]
    if missing:
        raise ConfigError(f"{where}: {choice.name} needs {', '.join(missing)}")
    try:
        return make(**choice.fields)
    except (TypeError, ValueError) as error:
        raise ConfigError(f"{where}: {error}") from error


def _sentence(kind: type[BaseModel], error: Any) -> str:
    """A pydantic error as "field: what is wrong, got value"."""
    path = ".".join(str(part) for part in error["loc"] if "[" not in str(part) and "-" not in str(part))
    if error["type"] == "extra_forbidden":
        return f"{path}: unknown field{suggest(str(error['loc'][-1]), kind.model_fields)}"
    if error["type"] == "missing":
        return f"{path}: must be given"
    message = error["msg"].removeprefix("Value error, ").replace("Input should be", "must be")
    return f"{path}: {message}, got {error['input']!r}" if path else message


def _override(table: dict[str, Any], override: str) -> None:
    key, equals, value = override.partition("=")
    if not equals or not key.strip():
        raise ConfigError(f"--set must look like key=value, got {override!r}")
    try:
        parsed = tomllib.loads(f"v = {value}")["v"]
    except tomllib.TOMLDecodeError:
        parsed = value
    *path, last = key.strip().split(".")
    for part in path:
        table = table.setdefault(part, {})
        if not isinstance(table, dict):
            raise ConfigError(f"--set {key}: '{part}' is not a table")
    table[last] = parsed


def _round_number(key: str) -> int:
    try:
        return int(key)
    except ValueError:
        raise ConfigError(f"lr_decay: must have rounds for keys, got {key!r}") from None


def _tuples(value: Any) -> Any:
    return tuple(_tuples(v) for v in value) if isinstance(value, list) else value
