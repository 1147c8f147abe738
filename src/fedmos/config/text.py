"""From the text of a configuration to a table, and from what is wrong with it to a sentence."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, get_args

from pydantic import BaseModel

from ..core.formatting import format_value, one_line
from ..core.validation import suggest

LARGEST = 2**20
"""Bytes of a configuration."""
DEEPEST = 16
"""Tables and lists within each other."""
_SENTENCES = 3
"""So many mistakes are told at once."""

_LONG_KEY = re.compile(rf"(?<![\w\"'-])(?:[\w\"'-]+[ \t]*\.[ \t]*){{{DEEPEST},}}")
_ABOUT_FIELD = re.compile(r"[\w. ]+: '(\w+)' (.*)", re.DOTALL)
_PLAIN = re.compile(r"[\w-]{1,40}")


class ConfigError(ValueError):
    """A configuration that cannot be used, in one sentence."""

    def __init__(self, sentence: str) -> None:
        super().__init__(one_line(sentence))


class Fault(ValueError):
    """What a value must be, and maybe a hint at what was meant."""

    def __init__(self, must: str, hint: str = "") -> None:
        super().__init__(must)
        self.hint = hint


def read(path: str | Path) -> dict[str, Any]:
    """The table in a file."""
    where = one_line(str(path), 100)
    try:
        with Path(path).open("rb") as file:
            raw = file.read(LARGEST + 1)
        if len(raw) > LARGEST:
            raise ConfigError(f"Cannot read {where} because it is longer than {LARGEST:,} bytes")
        text = raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise ConfigError(f"Cannot read {where} because it is not UTF-8 text: {error}") from None
    except OSError as error:
        raise ConfigError(f"Cannot read {where}: {error.strerror or error}") from None
    except ValueError as error:  # a path with a zero byte
        raise error if isinstance(error, ConfigError) else ConfigError(f"Cannot read {where}: {error}") from None
    return toml(text, where)


def toml(text: str, where: str) -> dict[str, Any]:
    """The table that a text means."""
    if _LONG_KEY.search(text):
        raise ConfigError(f"Cannot read {where} because its tables are nested deeper than {DEEPEST}")
    try:
        table = tomllib.loads(text.replace("\r\n", "\n"))
    except RecursionError:
        raise ConfigError(f"Cannot read {where} because its lists are nested deeper than {DEEPEST}") from None
    except ValueError as error:  # TOMLDecodeError, and numbers with thousands of digits
        raise ConfigError(f"Cannot read {where} because it is not TOML: {error}") from None
    return table


def check_depth(table: Any, where: str) -> None:
    """Refuse tables and lists that nobody nests so deep."""
    layer = [table]
    for _ in range(DEEPEST):
        layer = [
            inner
            for v in layer
            for inner in (v.values() if isinstance(v, Mapping) else v)
            if isinstance(inner, Mapping | list | tuple)
        ]
        if not layer:
            return
    raise ConfigError(f"{where}: tables and lists must not be nested deeper than {DEEPEST}")


def override(table: dict[str, Any], text: str) -> None:
    """Apply "key=value", with dots in the key for tables and TOML for the value (or else a plain word)."""
    key, equals, value = text.partition("=")
    if not equals or not key.strip():
        raise ConfigError(f"--set must look like key=value, got {format_value(text)}")
    if len(text) > LARGEST or key.count(".") > DEEPEST:
        raise ConfigError(f"--set {one_line(key, 60)}: must not be longer than {LARGEST:,} or deeper than {DEEPEST}")
    try:
        parsed = toml(f"v = {value}", "the value")["v"]
    except ConfigError:
        parsed = value
    *path, last = key.strip().split(".")
    for part in path:
        table = table.setdefault(part, {})
        if not isinstance(table, dict):
            raise ConfigError(f"--set {one_line(key, 60)}: {format_value(part)} is not a table")
    table[last] = parsed


@contextmanager
def located(where: str) -> Iterator[None]:
    """Errors that arise within are about this part of the configuration."""
    try:
        yield
    except ConfigError:
        raise
    except (ValueError, TypeError, OSError, ImportError, RuntimeError, ArithmeticError, MemoryError) as error:
        text = str(error) or type(error).__name__
        about = _ABOUT_FIELD.fullmatch(text)
        if about is not None:
            where, text = ".".join(filter(None, (where, about[1]))), about[2]
        raise ConfigError(f"{where}: {text}") from error


def sentences(kind: type[BaseModel], table: Any, errors: list[Any]) -> str:
    """What pydantic found wrong, as "field: must be …, got …"."""
    told = list(dict.fromkeys(_sentence(kind, table, e) for e in errors))
    more = f"; and {len(told) - _SENTENCES} more" if len(told) > _SENTENCES else ""
    return "; ".join(told[:_SENTENCES]) + more


def _sentence(kind: type[BaseModel], table: Any, error: Any) -> str:
    path = _path(table, error["loc"], error["type"])
    name = ".".join(_key(part) for part in path)
    match error["type"]:
        case "whole":  # of a table; the message begins with the field
            return ".".join(filter(None, (name, error["msg"])))
        case "extra_forbidden":
            return f"{name}: unknown field{_hint(kind, path)}"
        case "missing":
            return f"{name}: must be given"
        case "model_type" | "dict_type" | "model_attributes_type":
            must = "must be a table"
        case "list_type":
            must = "must be a list"
        case "string_type":
            must = "must be a text"
        case "value_error":
            must = error["msg"].removeprefix("Value error, ")
        case _:
            must = error["msg"].replace("Input should be", "must be")
    hint = getattr(error.get("ctx", {}).get("error"), "hint", "")
    return f"{name or 'the configuration'}: {must}, got {format_value(error['input'])}{hint}"


def _path(table: Any, loc: tuple[str | int, ...], kind: str) -> list[str | int]:
    """Where an error is: of pydantic's location, the parts that are keys of the table."""
    path: list[str | int] = []
    for i, part in enumerate(loc):
        last = i == len(loc) - 1
        listed = isinstance(table, list | tuple) and isinstance(part, int) and part < len(table)
        if listed or (isinstance(table, Mapping) and part in table):
            table = table[part]
        elif not (last and kind == "missing"):
            continue
        path.append(part)
    return path


def _key(part: str | int) -> str:
    return str(part) if isinstance(part, int) or _PLAIN.fullmatch(part) else format_value(part)


def _hint(kind: type[BaseModel], path: list[str | int]) -> str:
    """The field that was meant: one of that table's, or one of that very name in another table."""
    *parents, word = path
    here = kind
    for part in parents:
        if isinstance(part, str) and part in here.model_fields:
            here = _model(here.model_fields[part].annotation) or here
    close = suggest(str(word), here.model_fields)
    return close or next((f" (did you mean '{place}'?)" for place in _places(kind) if place.split(".")[-1] == word), "")


def _places(kind: type[BaseModel], before: str = "") -> Iterator[str]:
    """The full names of all fields."""
    for name, field in kind.model_fields.items():
        yield before + name
        if (model := _model(field.annotation)) is not None:
            yield from _places(model, f"{before}{name}.")


def _model(annotation: Any) -> type[BaseModel] | None:
    """The table that a type speaks of, if any."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next((m for a in get_args(annotation) if (m := _model(a)) is not None), None)
