"""What a study of a paper is: parts that are comparisons, columns to measure, and published numbers."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from functools import cache
from importlib import resources
from typing import Any, Literal, get_args

from ...config.schema import CompareConfig, parse
from ...config.text import toml
from ...core.history import METRICS
from ...core.metric_names import is_loss
from ...core.validation import suggest

Kind = Literal[
    "rounds_to", "megabytes_to", "last", "mean_last", "mean_quarter", "given", "rounds_to_final", "megabytes_to_final"
]
"""Rounds or megabytes until a metric reached a value; its last value; its mean over the last 100 rounds, and over the
points of its curve in the last quarter of them; what a run of another kind brought along; rounds or megabytes until a
run had what another method has in its last 100 rounds."""


@dataclass(frozen=True, kw_only=True)
class Column:
    """A quantity of a table."""

    key: str
    heading: str
    kind: Kind
    metric: str = "accuracy"
    value: float | None = None
    """To be reached."""
    of: str | None = None
    """The method whose last rounds are to be reached."""
    digits: int = 0
    scale: float = 1.0
    """100 for per cent."""

    def __post_init__(self) -> None:
        if self.kind not in get_args(Kind):
            raise ValueError(f"Column {self.key}: 'kind' must be one of {', '.join(get_args(Kind))}, got {self.kind!r}")
        if self.kind != "given" and self.metric not in METRICS:
            raise ValueError(f"Column {self.key}: 'metric' must be one of {', '.join(METRICS)}, got {self.metric!r}")
        if (self.kind in ("rounds_to", "megabytes_to")) != (self.value is not None):
            raise ValueError(f"Column {self.key}: 'value' must be given for what is to be reached, and only then")
        if self.kind.endswith("_to_final") != (self.of is not None):
            raise ValueError(f"Column {self.key}: 'of' must be given where a method's end is to be reached, only then")

    @property
    def aim(self) -> str | None:
        """The words under which a record keeps when the value was reached."""
        return None if self.value is None else aim(self.metric, self.value)


def aim(metric: str, value: float) -> str:
    return f"{metric} {'≤' if is_loss(metric) else '≥'} {value:g}"


@dataclass(frozen=True, kw_only=True)
class Part:
    """One comparison of a study."""

    study: str
    name: str
    paper: str
    title: str
    source: str
    """The table or figure."""
    note: str = ""
    """What readers should know of the setting."""
    table: Mapping[str, Any]
    """The comparison, as a configuration has it; for quadratic problems, as `quadratic.py` does."""
    kind: Literal["comparison", "quadratic"] = "comparison"
    columns: tuple[Column, ...] = ()
    published: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """By method and column."""
    runs_of: str | None = None
    """The part, as STUDY/PART, whose runs these are."""
    shows: tuple[str, ...] = ()
    """Of the methods of the study or of another part, which; all if none are named."""
    versus: tuple[tuple[str, str], ...] = ()
    """Pairs of methods, the second of which is the baseline of the first."""
    drawn: str | None = None
    """The metric of the figure; by default the target's."""

    @property
    def key(self) -> str:
        return f"{self.study}/{self.name}"

    @property
    def source_of_runs(self) -> Part:
        """The part that is trained for this one."""
        return self if self.runs_of is None else by_key(self.runs_of)

    @property
    def labels(self) -> list[str]:
        """Of its methods, in order."""
        labels = [str(method["label"]) for method in self.source_of_runs.table["methods"]]
        return [label for label in labels if not self.shows or label in self.shows]

    def comparison(self, **changes: Any) -> CompareConfig:
        """The configuration, with some fields changed; those that are None stay."""
        table = dict(self.table) | {key: value for key, value in changes.items() if value is not None}
        return parse(CompareConfig, table | {"title": self.title}, self.key)


@dataclass(frozen=True, kw_only=True)
class Study:
    """A table or figure of a paper, in parts."""

    name: str
    paper: str
    title: str
    parts: tuple[Part, ...]

    def part(self, name: str) -> Part:
        for part in self.parts:
            if part.name == name:
                return part
        names = [part.name for part in self.parts]
        raise ValueError(f"{self.name}: the part must be one of {', '.join(names)}, got {name!r}{suggest(name, names)}")

    def chosen(self, patterns: str | None) -> list[Part]:
        """The parts that a comma-separated list of names or patterns (*) means; all without one."""
        return [self.part(name) for name in matching(patterns, [part.name for part in self.parts], "--part")]


def matching(patterns: str | None, names: list[str], option: str) -> list[str]:
    """`fitting`, where each of the patterns must mean something."""
    for pattern in _listed(patterns, names):
        if not any(_fits(name, pattern) for name in names):
            raise ValueError(f"{option} must name some of {', '.join(names)}, got {pattern!r}{suggest(pattern, names)}")
    return fitting(patterns, names)


def fitting(patterns: str | None, names: list[str]) -> list[str]:
    """Of the names, those that a comma-separated list of names or patterns means; all without one."""
    return [name for name in names if any(_fits(name, pattern) for pattern in _listed(patterns, names))]


def _listed(patterns: str | None, names: list[str]) -> list[str]:
    """The patterns, of which one may have commas of its own."""
    if patterns is None or any(_fits(name, patterns) for name in names):
        return [patterns or "*"]
    return [pattern.strip() for pattern in patterns.split(",")]


def _fits(name: str, pattern: str) -> bool:
    return fnmatchcase(name.lower(), pattern.lower())


def names() -> list[str]:
    """Every study."""
    files = resources.files("fedmos.experiments.reproduce").joinpath("studies").iterdir()
    return sorted(file.name.removesuffix(".toml") for file in files if file.name.endswith(".toml"))


@cache
def load(name: str) -> Study:
    """A study by name."""
    if name not in names():
        raise ValueError(f"The study must be one of {', '.join(names())}, got {name!r}{suggest(name, names())}")
    file = resources.files("fedmos.experiments.reproduce").joinpath(f"studies/{name}.toml")
    return read(name, toml(file.read_text("utf-8"), name))


def read(name: str, table: Mapping[str, Any]) -> Study:
    """A study from its table: `base` holds what parts have in common, `parts.NAME` what is their own."""
    _known(name, table, {"paper", "title", "kind", "base", "columns", "parts"})
    raw: dict[str, dict[str, Any]] = {}
    for part, own in table["parts"].items():
        where = f"{name}/{part}"
        _known(where, own, {"like", "change", "columns", "published", *_PLAIN})
        start: Mapping[str, Any] = {"change": table.get("base", {}), "columns": table.get("columns", {})}
        raw[part] = merged(raw[own["like"]] if "like" in own else start, own)
    parts = tuple(_part(name, part, own, table) for part, own in raw.items())
    return Study(name=name, paper=table["paper"], title=table["title"], parts=parts)


_PLAIN = ("title", "source", "note", "runs_of", "shows", "versus", "drawn")


def _part(study: str, name: str, own: Mapping[str, Any], table: Mapping[str, Any]) -> Part:
    plain: dict[str, Any] = {key: own[key] for key in _PLAIN if key in own}
    plain["versus"] = tuple((method, baseline) for method, baseline in plain.get("versus", ()))
    plain["shows"] = tuple(plain.get("shows", ()))
    trains = dict(own.get("change", {}))
    if plain["shows"] and "runs_of" not in plain:
        trains["methods"] = [method for method in trains["methods"] if method["label"] in plain["shows"]]
    return Part(
        study=study,
        name=name,
        paper=table["paper"],
        table=trains,
        kind=table.get("kind", "comparison"),
        columns=tuple(Column(key=key, **fields) for key, fields in own["columns"].items()),
        published=own.get("published", {}),
        **plain,
    )


def merged(base: Mapping[str, Any], own: Mapping[str, Any]) -> dict[str, Any]:
    """Tables within tables one over the other. Anything else replaces what was there, as does a table with a name (a
    thing of its own, not a change to the other); an empty table takes it away."""
    result = copy.deepcopy(dict(base))
    for key, value in own.items():
        both = isinstance(value, Mapping) and "name" not in value and isinstance(result.get(key), Mapping)
        result[key] = merged(result[key], value) if both and value else copy.deepcopy(value)
        if value == {}:
            del result[key]
    return result


def _known(where: str, table: Mapping[str, Any], fields: set[str]) -> None:
    for field_ in table:
        if field_ not in fields:
            raise ValueError(f"{where}: '{field_}' is not a field{suggest(field_, sorted(fields))}")


def by_key(key: str) -> Part:
    """The part that STUDY/PART means."""
    study, _, name = key.partition("/")
    return load(study).part(name)
