"""Types of the plain values in configurations, validated by the rules of the Python API."""

from __future__ import annotations

import re
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Discriminator, Tag, ValidationInfo, model_validator

from ..core import validation as validate
from ..core.history import METRICS
from ..core.losses import class_weights_rule
from ..core.metric_functions import METRIC_CLASSES
from ..core.metric_names import is_client_metric, target_rule
from ..core.validation import Rule, suggest
from ..data.subset import SHARE
from .errors import InvalidValue, table_error
from .own_classes import is_own

MAX_ENTRIES = 1000
"""Maximum length of a list."""


TARGETS = (*METRICS, *sorted(kind.name for kind in METRIC_CLASSES.values()))
"""Metrics that a target can name."""


def obeys(rule: Rule) -> BeforeValidator:
    """Validate a value by a rule."""

    def validate_value(v: Any) -> Any:
        fault = rule.fault(v)
        if fault is not None:
            raise ValueError(f"must be {fault}")
        return v

    return BeforeValidator(validate_value)


def one_of_names(*options: str, own: bool = False) -> BeforeValidator:
    """Accept one of a few names, and with `own` that of a class of the user; suggest one for a misspelt name."""

    def validate_name(v: Any) -> Any:
        if own and is_own(v):
            return v
        if not isinstance(v, str) or v not in options:
            raise InvalidValue(
                f"must be one of {', '.join(map(repr, options))}", suggest(v, options) if isinstance(v, str) else ""
            )
        return v

    return BeforeValidator(validate_name)


def _checked_list(v: Any) -> Any:
    if not isinstance(v, list | tuple) or not 1 <= len(v) <= MAX_ENTRIES:
        raise ValueError(f"must be a list of 1 to {MAX_ENTRIES:,} entries")
    return list(v)


non_empty_list = BeforeValidator(_checked_list)


def _by_channel(rule: Rule) -> BeforeValidator:
    """Accept a number, or one for each channel."""

    def validate_channels(v: Any) -> Any:
        for one in _checked_list(v) if isinstance(v, list | tuple) else [v]:
            fault = rule.fault(one)
            if fault is not None:
                raise ValueError(f"must be {fault}, or a list of such numbers, one for each channel")
        return tuple(v) if isinstance(v, list) else v

    return BeforeValidator(validate_channels)


def _grid(v: Any) -> Any:
    if not isinstance(v, dict) or not 1 <= len(v) <= MAX_ENTRIES:
        raise ValueError("must be a table with a list of numbers for each of some fields")
    if "name" in v:
        raise ValueError("must not have 'name', which is no field of an algorithm")
    return v


def _compared_target(v: Any, info: ValidationInfo) -> Any:
    """Accept a target whose value is a number or the final value of a method."""
    numbers = {k: 0.0 if isinstance(value, dict) else value for k, value in v.items()} if isinstance(v, dict) else v
    _target(numbers, info)
    return v


def has_own_metrics(metrics: Any) -> bool:
    """Whether the option `metrics` names a class or function of the user, whose metric can have any name."""
    if isinstance(metrics, dict):  # names of the user's
        return bool(metrics)
    return any(is_own(getattr(one, "name", one)) for one in metrics or ())


def _target(v: Any, info: ValidationInfo) -> Any:
    if not isinstance(v, dict):
        raise ValueError("must be a table of metrics and numbers")
    own = has_own_metrics(info.data.get("metrics"))  # whether the run measures the metric is checked later
    for metric, value in v.items():
        of_clients = info.data.get("evaluate_clients") is not None and is_client_metric(str(metric))
        if metric not in TARGETS and not own and not of_clients:
            hint = "; use evaluate_clients = 1" if is_client_metric(str(metric)) else suggest(str(metric), TARGETS)
            raise InvalidValue(f"must name one of {', '.join(TARGETS)}", hint)
        fault = target_rule(metric).fault(value)
        if fault is not None:
            raise ValueError(f"must have for {metric} a number that is {fault}")
    return v


_short = validate.text_up_to(200)
Positive = Annotated[float, obeys(validate.positive)]
NonNegative = Annotated[float, obeys(validate.non_negative)]
Fraction = Annotated[float, obeys(validate.fraction)]
Share = Annotated[float, obeys(SHARE)]
AtLeastOne = Annotated[float, obeys(validate.at_least_one)]
Count = Annotated[int, obeys(validate.count)]
ByChannel = Annotated[float | tuple[float, ...], _by_channel(validate.number)]
ByChannelPositive = Annotated[float | tuple[float, ...], _by_channel(validate.positive)]
Pixels = Annotated[int, obeys(validate.pixels)]
Seed = Annotated[int, obeys(validate.seed)]
Flag = Annotated[bool, obeys(validate.boolean)]
Name = Annotated[str, obeys(validate.text_up_to(200))]
ObjectName = Annotated[str, obeys(Rule(_short.text, lambda v: _short.test(v) or is_own(v)))]
"""A name of the registry, or the path and name of a class of the user, which can be longer."""
Title = Annotated[str, obeys(validate.text_up_to(1000))]
Folder = Annotated[str, obeys(validate.text_up_to(4000))]
Seeds = Annotated[list[Seed], non_empty_list]
StepSizes = Annotated[list[Positive], non_empty_list]
Numbers = Annotated[list[Annotated[int | float, obeys(validate.number)]], non_empty_list]
Grid = Annotated[dict[str, Numbers], BeforeValidator(_grid)]
"""Values to try, by field of the algorithm."""
Target = Annotated[dict[str, float], BeforeValidator(_target)]
ClassWeights = Annotated[str | list[float], obeys(class_weights_rule)]
DeviceName = Annotated[
    str,
    obeys(
        Rule(
            "'auto', 'cpu' or a device such as 'cuda:0'",
            lambda v: isinstance(v, str) and re.fullmatch(r"auto|cpu|(cuda|mps|xpu)(:[0-9]{1,3})?", v) is not None,
        )
    ),
]


class Strict(BaseModel):
    """A table that has no unknown keys and converts no types."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class FinalOf(Strict):
    """The final value of a method, as a target for others."""

    final_of: Name


class Range(Strict):
    """Numbers to search among; integers if both bounds are."""

    low: Annotated[int | float, obeys(validate.number)]
    high: Annotated[int | float, obeys(validate.number)]
    log: Flag = False
    """Whether to sample on a logarithmic scale."""

    @model_validator(mode="after")
    def _ordered(self) -> Range:
        if not self.low < self.high:
            raise table_error(f"high: must be > low ({self.low}), got {self.high}")
        if self.log and self.low <= 0:
            raise table_error(f"low: must be > 0 where log is true, got {self.low}")
        return self


def _options(v: Any) -> Any:
    if isinstance(v, list | tuple):
        _checked_list(v)
        if not all(isinstance(option, bool | int | float | str) for option in v):
            raise ValueError("must be a list of numbers, texts or truth values, or a table with low and high")
    elif not isinstance(v, dict | Range):
        raise ValueError("must be a list of values, or a table with low and high")
    return v


Space = Annotated[
    Annotated[list[bool | int | float | str], Tag("list")] | Annotated[Range, Tag("table")],
    Discriminator(lambda v: "table" if isinstance(v, dict | Range) else "list"),
    BeforeValidator(_options),
]
"""Values that a search tries for a field."""

ComparedTarget = Annotated[
    dict[
        str,
        Annotated[
            Annotated[float, Tag("number")] | Annotated[FinalOf, Tag("table")],
            Discriminator(lambda v: "table" if isinstance(v, dict | FinalOf) else "number"),
        ],
    ],
    BeforeValidator(_compared_target),
]
