"""Types of the objects in configurations: a name, or a table with a name and fields."""

from __future__ import annotations

import re
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Discriminator, Tag, model_validator

from ..core import validation as validate
from ..core.batch_losses import LOSS_CLASSES
from ..core.formatting import format_value
from ..core.losses import NAMES
from ..core.metric_functions import METRIC_CLASSES
from .fields import MAX_ENTRIES, Name, ObjectName, Positive, non_empty_list, one_of_names
from .own_classes import plain_name


class Choice(BaseModel):
    """An object of the registry, or of a class of the user, by its name, with the fields to construct it."""

    model_config = ConfigDict(extra="allow", strict=True, frozen=True, protected_namespaces=())
    name: ObjectName

    @model_validator(mode="before")
    @classmethod
    def _named(cls, v: Any) -> Any:
        """Take a name alone for a table with it: of an object without fields that must be given."""
        return {"name": v} if isinstance(v, str) else v

    @property
    def title(self) -> str:
        """The name for tables and reports: without the file of a class of the user."""
        return plain_name(self.name)

    @property
    def fields(self) -> dict[str, Any]:
        return {key: _tuples(value) for key, value in (self.model_extra or {}).items()}

    def but(self, **fields: Any) -> Choice:
        """Return a copy with other values for some fields."""
        return Choice.model_validate({"name": self.name} | (self.model_extra or {}) | fields)

    def without(self, field: str) -> Choice:
        """Return a copy without a field."""
        kept = {key: value for key, value in (self.model_extra or {}).items() if key != field}
        return Choice.model_validate({"name": self.name} | kept)


def _tuples(value: Any) -> Any:
    return tuple(_tuples(v) for v in value) if isinstance(value, list) else value


def _is_table(v: Any) -> str:
    return "table" if isinstance(v, dict | Choice) else "value"


def _is_table_of_names(v: Any) -> str:
    return "table" if isinstance(v, dict) else "list"


def _named(*options: str) -> Any:
    """Return the type of an object that needs no fields: a known name, a class of the user, or a table with fields."""
    name = Annotated[str, one_of_names(*options, own=True)]
    return Annotated[Annotated[name, Tag("value")] | Annotated[Choice, Tag("table")], Discriminator(_is_table)]


def _decay(v: Any) -> Any:
    if isinstance(v, Choice | str):
        return v
    if not isinstance(v, dict):
        if not validate.positive.test(v):
            raise ValueError("must be > 0, or factors > 0 by round")
        return v
    if "name" in v:  # a schedule
        return v
    if len(v) > MAX_ENTRIES:
        raise ValueError(f"must have at most {MAX_ENTRIES:,} rounds")
    for key, factor in v.items():
        if not isinstance(key, str) or not re.fullmatch(r"[0-9]{1,9}", key):
            raise ValueError(f"must have rounds for keys, not {format_value(key)}")
        if not validate.positive.test(factor):
            raise ValueError(f"must have factors > 0, not {format_value(factor)}")
    return v


def _kind_of_decay(v: Any) -> str:
    if isinstance(v, str):
        return "schedule"
    if not isinstance(v, dict | Choice):
        return "number"
    return "schedule" if isinstance(v, Choice) or "name" in v else "rounds"


Profile = Annotated[Annotated[Positive, Tag("value")] | Annotated[Choice, Tag("table")], Discriminator(_is_table)]
LossName = _named(*NAMES, *LOSS_CLASSES)
MetricName: Any = _named(*METRIC_CLASSES)
MetricNames = Annotated[
    Annotated[list[MetricName], Tag("list")] | Annotated[dict[Name, MetricName], Tag("table")],
    Discriminator(_is_table_of_names),
]
DecayTable = Annotated[
    Annotated[float, Tag("number")] | Annotated[dict[str, float], Tag("rounds")] | Annotated[Choice, Tag("schedule")],
    Discriminator(_kind_of_decay),
    BeforeValidator(_decay),
]


ChoiceOrList = Annotated[
    Annotated[Choice, Tag("table")] | Annotated[list[Choice], non_empty_list, Tag("list")],
    Discriminator(lambda v: "list" if isinstance(v, list | tuple) else "table"),
]
"""A local optimiser or a codec, or a list of them."""


def _kind_of_link(v: Any) -> str:
    if isinstance(v, list | tuple):
        return "list"
    return "table" if isinstance(v, Choice) or not isinstance(v, dict) or "name" in v else "names"


def _named_codecs(v: Any) -> Any:
    if len(v) > MAX_ENTRIES or not v:
        raise ValueError(f"must be a table with a name, or have 1 to {MAX_ENTRIES:,} names of vectors")
    return v


LinkChoice = Annotated[
    Annotated[Choice, Tag("table")]
    | Annotated[list[Choice], non_empty_list, Tag("list")]
    | Annotated[dict[str, ChoiceOrList], BeforeValidator(_named_codecs), Tag("names")],
    Discriminator(_kind_of_link),
]
"""A codec, a list of them, or either by the name of the vector."""
