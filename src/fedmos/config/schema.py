"""Configurations: TOML files that are validated strictly before anything runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from ..core.formatting import format_value, one_line
from .build import build
from .choices import Choice
from .comparison import CompareConfig, Method, Tuning, tuned_label
from .data_config import DataConfig
from .errors import ConfigError, describe_errors
from .own_classes import with_absolute_paths
from .text import apply_override, check_depth, read_table
from .training import RunConfig, SweepConfig, Training

__all__ = [
    "Choice",
    "CompareConfig",
    "ConfigError",
    "DataConfig",
    "Method",
    "RunConfig",
    "SweepConfig",
    "Training",
    "Tuning",
    "build",
    "check_same",
    "load",
    "parse",
    "tuned_label",
]

C = TypeVar("C", bound=BaseModel)


def load(kind: type[C], path: str | Path, overrides: Sequence[str] = ()) -> C:
    """Read a configuration file and apply overrides. Classes of the user in files are found relative to it.

    Args:
        kind: the class of the configuration, e.g. `RunConfig`.
        path: the TOML file.
        overrides: texts "key=value" with dots between tables and TOML values.

    Raises:
        ConfigError: if the file cannot be read or is not a valid configuration.

    Example:
        >>> load(RunConfig, "run.toml", ["rounds=10", "algorithm.lr=0.1"])
    """
    table = read_table(path)
    for text in overrides:
        apply_override(table, text)
    where = one_line(str(path), 100)
    if (other := _other_command(kind, table)) is not None:
        raise ConfigError(f"{where}: is the configuration of {other}")
    table = with_absolute_paths(table, Path(path).absolute().parent)
    return parse(kind, table, where)


def _other_command(kind: type[BaseModel], table: Mapping[str, Any]) -> str | None:
    """What a file of another command configures, and the command."""
    if kind is CompareConfig:
        return "a single run; use fedmos run" if "algorithm" in table and "methods" not in table else None
    if "methods" in table and "algorithm" not in table:
        return "a comparison; use fedmos compare"
    return "a search; use fedmos sweep" if kind is RunConfig and "sweep" in table else None


def parse(kind: type[C], table: Mapping[str, Any], where: str = "configuration") -> C:
    """Validate a table as a configuration; errors begin with `where`."""
    if not isinstance(table, Mapping):
        raise ConfigError(f"{where}: must be a table, got {format_value(table)}")
    check_depth(table, where)
    try:
        return kind.model_validate(table)
    except ValidationError as error:
        raise ConfigError(f"{where}: {describe_errors(kind, table, error.errors())}") from None


def check_same(what: str, before: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    """Refuse to continue something in its folder if a field has changed."""
    for field in {**before, **now}:
        if before.get(field) != now.get(field):
            old, new = format_value(before.get(field)), format_value(now.get(field))
            raise ConfigError(f"Cannot continue {what} because its '{field}' is {old}, got {new}; use a new folder")
