"""What the fields of a configuration can be, by the rules that the Python API has."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Discriminator, Tag, model_validator
from pydantic_core import PydanticCustomError

from ..core import validation as validate
from ..core.formatting import format_value
from ..core.history import METRICS
from ..core.losses import NAMES
from ..core.metric_names import target_rule
from ..core.validation import LOCAL, Rule, suggest
from ..storage.checkpoint_schedule import is_every
from .text import ConfigError, Fault, located

LISTED = 1000
"""Entries of a list at most."""


def must(rule: Rule) -> BeforeValidator:
    """A field that a rule decides."""

    def test(v: Any) -> Any:
        fault = rule.fault(v)
        if fault is not None:
            raise ValueError(f"must be {fault}")
        return v

    return BeforeValidator(test)


def named(*options: str) -> BeforeValidator:
    """One of a few words."""

    def test(v: Any) -> Any:
        if not isinstance(v, str) or v not in options:
            raise Fault(
                f"must be one of {', '.join(map(repr, options))}", suggest(v, options) if isinstance(v, str) else ""
            )
        return v

    return BeforeValidator(test)


def whole(sentence: str) -> PydanticCustomError:
    """An error about a table rather than a value; the sentence begins with the field."""
    return PydanticCustomError("whole", "{sentence}", {"sentence": sentence})


def _text(most: int) -> Rule:
    return Rule(
        f"a text of 1 to {most:,} printable characters",
        lambda v: isinstance(v, str) and 0 < len(v) <= most and v.isprintable(),
    )


def _listed(v: Any) -> Any:
    if not isinstance(v, list | tuple) or not 1 <= len(v) <= LISTED:
        raise ValueError(f"must be a list of 1 to {LISTED:,} entries")
    return list(v)


several = BeforeValidator(_listed)


def _by_channel(rule: Rule) -> BeforeValidator:
    """A number, or one for each channel."""

    def test(v: Any) -> Any:
        for one in _listed(v) if isinstance(v, list | tuple) else [v]:
            fault = rule.fault(one)
            if fault is not None:
                raise ValueError(f"must be {fault}, or a list of such numbers, one for each channel")
        return tuple(v) if isinstance(v, list) else v

    return BeforeValidator(test)


def _grid(v: Any) -> Any:
    if not isinstance(v, dict) or not 1 <= len(v) <= LISTED:
        raise ValueError("must be a table with a list of numbers for each of some fields")
    if "name" in v:
        raise ValueError("must not have 'name', which is no field of an algorithm")
    return v


def _decay(v: Any) -> Any:
    if not isinstance(v, dict):
        if not validate.positive.test(v):
            raise ValueError("must be > 0, or factors > 0 by round")
        return v
    if len(v) > LISTED:
        raise ValueError(f"must have at most {LISTED:,} rounds")
    for key, factor in v.items():
        if not isinstance(key, str) or not re.fullmatch(r"[0-9]{1,9}", key):
            raise ValueError(f"must have rounds for keys, not {format_value(key)}")
        if not validate.positive.test(factor):
            raise ValueError(f"must have factors > 0, not {format_value(factor)}")
    return v


def _compared(v: Any) -> Any:
    """A target whose value may be what a method has at the end."""
    _target({k: 0.0 if isinstance(value, dict) else value for k, value in v.items()} if isinstance(v, dict) else v)
    return v


def _target(v: Any) -> Any:
    if not isinstance(v, dict):
        raise ValueError("must be a table of metrics and numbers")
    for metric, value in v.items():
        if metric not in METRICS:
            raise Fault(f"must name one of {', '.join(METRICS)}", suggest(str(metric), METRICS))
        fault = target_rule(metric).fault(value)
        if fault is not None:
            raise ValueError(f"must have for {metric} a number that is {fault}")
    return v


Positive = Annotated[float, must(validate.positive)]
NonNegative = Annotated[float, must(validate.non_negative)]
Fraction = Annotated[float, must(validate.fraction)]
AtLeastOne = Annotated[float, must(validate.at_least_one)]
Limited = Annotated[float, must(validate.non_negative.up_to(validate.LARGE))]
Clip = Annotated[float, must(validate.positive.up_to(validate.LARGE))]
Count = Annotated[int, must(validate.count)]
ByChannel = Annotated[float | tuple[float, ...], _by_channel(validate.number)]
ByChannelPositive = Annotated[float | tuple[float, ...], _by_channel(validate.positive)]
Every = Annotated[int | str | None, must(is_every)]
Steps = Annotated[int, must(validate.count.up_to(LOCAL))]
Pixels = Annotated[int, must(validate.pixels)]
Seed = Annotated[int, must(validate.seed)]
Flag = Annotated[bool, must(validate.boolean)]
Name = Annotated[str, must(_text(200))]
Title = Annotated[str, must(_text(1000))]
Folder = Annotated[str, must(_text(4000))]
Seeds = Annotated[list[Seed], several]
StepSizes = Annotated[list[Positive], several]
Numbers = Annotated[list[Annotated[int | float, must(validate.number)]], several]
Grid = Annotated[dict[str, Numbers], BeforeValidator(_grid)]
"""Numbers to try, by field."""
Decay = Annotated[float | dict[str, float], BeforeValidator(_decay)]
Target = Annotated[dict[str, float], BeforeValidator(_target)]
LossName = Annotated[str, named(*NAMES)]
Device = Annotated[
    str,
    must(
        Rule(
            "'auto', 'cpu' or a device such as 'cuda:0'",
            lambda v: isinstance(v, str) and re.fullmatch(r"auto|cpu|(cuda|mps|xpu)(:[0-9]{1,3})?", v) is not None,
        )
    ),
]


class Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class FinalOf(Strict):
    """What a method has at the end, as a target for others."""

    final_of: Name


class Range(Strict):
    """Numbers to search among; integers if both ends are."""

    low: Annotated[int | float, must(validate.number)]
    high: Annotated[int | float, must(validate.number)]
    log: Flag = False
    """Whether orders of magnitude count, rather than differences."""

    @model_validator(mode="after")
    def _ordered(self) -> Range:
        if not self.low < self.high:
            raise whole(f"high: must be > low ({self.low}), got {self.high}")
        if self.log and self.low <= 0:
            raise whole(f"low: must be > 0 where log is true, got {self.low}")
        return self


def _options(v: Any) -> Any:
    if isinstance(v, list | tuple):
        _listed(v)
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
"""What a field may be in a search."""

ComparedTarget = Annotated[
    dict[
        str,
        Annotated[
            Annotated[float, Tag("number")] | Annotated[FinalOf, Tag("table")],
            Discriminator(lambda v: "table" if isinstance(v, dict | FinalOf) else "number"),
        ],
    ],
    BeforeValidator(_compared),
]


class Choice(BaseModel):
    """A thing by name, and its fields."""

    model_config = ConfigDict(extra="allow", strict=True, frozen=True, protected_namespaces=())
    name: Name

    @property
    def fields(self) -> dict[str, Any]:
        return {key: _tuples(value) for key, value in (self.model_extra or {}).items()}

    def but(self, **fields: Any) -> Choice:
        """With other values for some fields."""
        return Choice.model_validate({"name": self.name} | (self.model_extra or {}) | fields)


Profile = Annotated[
    Annotated[Positive, Tag("number")] | Annotated[Choice, Tag("table")],
    Discriminator(lambda v: "table" if isinstance(v, dict | Choice) else "number"),
]


def build(where: str, choice: Choice, known: Mapping[str, Callable[..., Any]]) -> Any:
    """Make the thing that `choice` names; errors say where in the configuration they arose."""
    if choice.name not in known:
        got = f"{format_value(choice.name)}{suggest(choice.name, known)}"
        raise ConfigError(f"{where}.name: must be one of {', '.join(known)}, got {got}")
    make = known[choice.name]
    parameters = inspect.signature(make).parameters
    for field in choice.fields:
        if field not in parameters:
            word = field if re.fullmatch(r"[\w-]{1,40}", field) else format_value(field)
            allowed = ", ".join(parameters) or "none"
            raise ConfigError(
                f"{where}.{word}: {choice.name} has no such field{suggest(field, parameters)}; its fields: {allowed}"
            )
    missing = [n for n, p in parameters.items() if p.default is p.empty and n not in choice.fields]
    if missing:
        raise ConfigError(f"{where}: {choice.name} needs {', '.join(missing)}")
    with located(where):
        return make(**choice.fields)


def _tuples(value: Any) -> Any:
    return tuple(_tuples(v) for v in value) if isinstance(value, list) else value
