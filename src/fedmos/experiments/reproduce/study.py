"""Studies of papers: parts, each a comparison, with the columns to measure and the published values."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from functools import cache
from importlib import resources
from typing import Any, Literal, get_args

from ...config.schema import CompareConfig, parse
from ...config.text import parse_toml
from ...core.history import METRICS
from ...core.metric_functions import METRIC_CLASSES
from ...core.metric_names import is_client_metric, is_loss
from ...core.validation import suggest
from .verdict import Agreement

Kind = Literal[
    "rounds_to",
    "megabytes_to",
    "last",
    "best",
    "mean_last",
    "mean_quarter",
    "best_clients",
    "given",
    "rounds_to_final",
    "megabytes_to_final",
]
"""What a column shows of a run.

    rounds_to, megabytes_to: Rounds or megabytes until a metric reaches `value`.
    last, best, mean_last: The last value of a metric; its best value; its mean over the last 100 rounds.
    mean_quarter: The mean of a metric's curve over the last quarter of the rounds.
    best_clients: The best accuracy of clients on their own test samples, over all samples, under the models they use.
    given: A value that the record of a quadratic problem holds.
    rounds_to_final, megabytes_to_final: Rounds or megabytes until a run reaches the mean of method `of` over its last
        100 rounds.
"""


@dataclass(frozen=True, kw_only=True)
class ResultColumn:
    """A quantity that the table of a part shows."""

    key: str
    heading: str
    kind: Kind
    metric: str = "accuracy"
    value: float | None = None
    """The value to reach, for `rounds_to` and `megabytes_to`."""
    of: str | None = None
    """The method whose last rounds give the value to reach."""
    digits: int = 0
    scale: float = 1.0
    """Factor of the printed values, e.g. 100 for per cent."""

    def __post_init__(self) -> None:
        if self.kind not in get_args(Kind):
            raise ValueError(f"Column {self.key}: 'kind' must be one of {', '.join(get_args(Kind))}, got {self.kind!r}")
        known = (*METRICS, *(kind.name for kind in METRIC_CLASSES.values()))
        if self.kind != "given" and self.metric not in known and not is_client_metric(self.metric):
            raise ValueError(f"Column {self.key}: 'metric' must be one of {', '.join(known)}, got {self.metric!r}")
        if (self.kind in ("rounds_to", "megabytes_to")) != (self.value is not None):
            raise ValueError(f"Column {self.key}: 'value' must be given for what is to be reached, and only then")
        if self.kind.endswith("_to_final") != (self.of is not None):
            raise ValueError(f"Column {self.key}: 'of' must be given where a method's end is to be reached, only then")

    @property
    def target_key(self) -> str | None:
        """The key under which a record keeps when the value was reached."""
        return None if self.value is None else target_key(self.metric, self.value)


def target_key(metric: str, value: float) -> str:
    """Return the key of a target in a record, e.g. "accuracy ≥ 0.9"."""
    return f"{metric} {'≤' if is_loss(metric) else '≥'} {value:g}"


@dataclass(frozen=True, kw_only=True)
class StudyPart:
    """One comparison of a study."""

    study: str
    name: str
    paper: str
    title: str
    source: str
    """The table or figure of the paper."""
    note: str = ""
    """A remark on the setting."""
    table: Mapping[str, Any]
    """The table of a comparison's configuration or, for a quadratic problem, the fields that `quadratic.py` reads."""
    kind: Literal["comparison", "quadratic"] = "comparison"
    columns: tuple[ResultColumn, ...] = ()
    published: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Published values, by method and column."""
    runs_of: str | None = None
    """Another part, as STUDY/PART, whose runs this part shows."""
    shows: tuple[str, ...] = ()
    """Labels of the methods to show; all if empty."""
    versus: tuple[tuple[str, str], ...] = ()
    """Pairs (method, baseline) to contrast."""
    drawn: str | None = None
    """The metric of the figure (default: the target's)."""
    agreement: Agreement | None = None
    """When a measured value agrees with the published one; None for a table without verdicts."""
    why: Mapping[str, str] = field(default_factory=dict)
    """Why values of a method differ from the published ones, by method."""

    @property
    def key(self) -> str:
        return f"{self.study}/{self.name}"

    @property
    def source_of_runs(self) -> StudyPart:
        """The part whose runs this part shows: itself, or the part that `runs_of` names."""
        return self if self.runs_of is None else by_key(self.runs_of)

    @property
    def labels(self) -> list[str]:
        """Labels of the methods, in order."""
        labels = [str(method["label"]) for method in self.source_of_runs.table["methods"]]
        return [label for label in labels if not self.shows or label in self.shows]

    def comparison(self, **changes: Any) -> CompareConfig:
        """Return the configuration, which adds no row, with some fields changed; a change to None is ignored."""
        given = {key: value for key, value in changes.items() if value is not None}
        table = {"local_training": False} | dict(self.table) | given
        return parse(CompareConfig, table | {"title": self.title}, self.key)


@dataclass(frozen=True, kw_only=True)
class PaperStudy:
    """A table or figure of a paper, in parts.

    Example:
        >>> load("fedcm-table3").part("digits").title
        "FedCM's α, a small convolutional model on 8×8 digits, 200 rounds"
    """

    name: str
    paper: str
    title: str
    parts: tuple[StudyPart, ...]
    needs: Literal["cpu", "gpu"] = "cpu"
    """Whether an exam is meant for any machine or for one with a GPU."""

    def part(self, name: str) -> StudyPart:
        """Return a part by name."""
        for part in self.parts:
            if part.name == name:
                return part
        names = [part.name for part in self.parts]
        raise ValueError(f"{self.name}: the part must be one of {', '.join(names)}, got {name!r}{suggest(name, names)}")

    def chosen(self, patterns: str | None) -> list[StudyPart]:
        """Return the parts that a comma-separated list of names or patterns (*) selects; all for None."""
        return [self.part(name) for name in matching(patterns, [part.name for part in self.parts], "--part")]


def matching(patterns: str | None, names: list[str], option: str) -> list[str]:
    """Return the names that `patterns` selects, as `fitting` does; raise an error if a pattern selects none."""
    for pattern in _listed(patterns, names):
        if not any(_fits(name, pattern) for name in names):
            raise ValueError(f"{option} must name some of {', '.join(names)}, got {pattern!r}{suggest(pattern, names)}")
    return fitting(patterns, names)


def fitting(patterns: str | None, names: list[str]) -> list[str]:
    """Return the names that a comma-separated list of names or patterns (*) selects; all for None."""
    return [name for name in names if any(_fits(name, pattern) for pattern in _listed(patterns, names))]


def _listed(patterns: str | None, names: list[str]) -> list[str]:
    """Split a list of patterns, unless all of it matches a name that contains commas."""
    if patterns is None or any(_fits(name, patterns) for name in names):
        return [patterns or "*"]
    return [pattern.strip() for pattern in patterns.split(",")]


def _fits(name: str, pattern: str) -> bool:
    return fnmatchcase(name.lower(), pattern.lower())


_PACKAGE = "fedmos.experiments.reproduce"


def names(folder: Literal["studies", "exams"] = "studies") -> list[str]:
    """Return the names of all studies: of the papers, or of the exams, which are tables that others published."""
    files = resources.files(_PACKAGE).joinpath(folder).iterdir()
    return sorted(file.name.removesuffix(".toml") for file in files if file.name.endswith(".toml"))


def all_names() -> list[str]:
    """Return the names of the studies and the exams."""
    return [*names("studies"), *names("exams")]


@cache
def load(name: str) -> PaperStudy:
    """Return a study or exam by name."""
    for folder in ("studies", "exams"):
        file = resources.files(_PACKAGE).joinpath(f"{folder}/{name}.toml")
        if name in all_names() and file.is_file():
            return read(name, parse_toml(file.read_text("utf-8"), name))
    raise ValueError(f"The study must be one of {', '.join(all_names())}, got {name!r}{suggest(name, all_names())}")


def read(name: str, table: Mapping[str, Any]) -> PaperStudy:
    """Make a study from its table: `base` holds the fields that all parts share, `parts.NAME` those of one part."""
    _check_fields(name, table, {"paper", "title", "kind", "needs", "agreement", "base", "columns", "parts"})
    raw: dict[str, dict[str, Any]] = {}
    for part, own in table["parts"].items():
        where = f"{name}/{part}"
        _check_fields(where, own, {"like", "change", "columns", "published", *_PLAIN})
        start: Mapping[str, Any] = {"change": table.get("base", {}), "columns": table.get("columns", {})}
        raw[part] = merged(raw[own["like"]] if "like" in own else start, own)
    parts = tuple(_part(name, part, own, table) for part, own in raw.items())
    return PaperStudy(
        name=name, paper=table["paper"], title=table["title"], parts=parts, needs=table.get("needs", "cpu")
    )


_PLAIN = ("title", "source", "note", "runs_of", "shows", "versus", "drawn", "why")


def _part(study: str, name: str, own: Mapping[str, Any], table: Mapping[str, Any]) -> StudyPart:
    plain: dict[str, Any] = {key: own[key] for key in _PLAIN if key in own}
    plain["versus"] = tuple((method, baseline) for method, baseline in plain.get("versus", ()))
    plain["shows"] = tuple(plain.get("shows", ()))
    trains = dict(own.get("change", {}))
    if plain["shows"] and "runs_of" not in plain:
        trains["methods"] = [method for method in trains["methods"] if method["label"] in plain["shows"]]
    return StudyPart(
        study=study,
        name=name,
        paper=table["paper"],
        table=trains,
        kind=table.get("kind", "comparison"),
        columns=tuple(ResultColumn(key=key, **fields) for key, fields in own["columns"].items()),
        published=own.get("published", {}),
        agreement=Agreement(**table["agreement"]) if "agreement" in table else None,
        **plain,
    )


def merged(base: Mapping[str, Any], own: Mapping[str, Any]) -> dict[str, Any]:
    """Merge nested tables, `own` over `base`.

    Other values replace those of `base`, as does a table that has a `name`: it is a different object, not a change. An
    empty table removes the field.
    """
    result = copy.deepcopy(dict(base))
    for key, value in own.items():
        both = isinstance(value, Mapping) and "name" not in value and isinstance(result.get(key), Mapping)
        result[key] = merged(result[key], value) if both and value else copy.deepcopy(value)
        if value == {}:
            del result[key]
    return result


def _check_fields(where: str, table: Mapping[str, Any], fields: set[str]) -> None:
    for field_ in table:
        if field_ not in fields:
            raise ValueError(f"{where}: '{field_}' is not a field{suggest(field_, sorted(fields))}")


def by_key(key: str) -> StudyPart:
    """Return the part with the key STUDY/PART."""
    study, _, name = key.partition("/")
    return load(study).part(name)
