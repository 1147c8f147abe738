"""Errors in configurations, as one sentence that names the key."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, get_args

from pydantic import BaseModel
from pydantic_core import PydanticCustomError

from ..core.formatting import format_value, one_line
from ..core.validation import suggest

_MAX_REPORTED = 3
"""At most so many errors are reported at once."""

_ABOUT_FIELD = re.compile(r"[\w. ]+: '(\w+)' (.*)", re.DOTALL)
_PLAIN_KEY = re.compile(r"[\w-]{1,40}")
_TABLE_ERROR = "table_error"


class ConfigError(ValueError):
    """A configuration that cannot be used. The message is one sentence on one line."""

    def __init__(self, sentence: str) -> None:
        super().__init__(one_line(sentence, 1000))


class InvalidValue(ValueError):
    """A requirement that a value does not meet, e.g. "must be one of 'a', 'b'", with an optional hint."""

    def __init__(self, requirement: str, hint: str = "") -> None:
        super().__init__(requirement)
        self.hint = hint


def table_error(sentence: str) -> PydanticCustomError:
    """Make an error about a table instead of a single value; the sentence begins with the key."""
    return PydanticCustomError(_TABLE_ERROR, "{sentence}", {"sentence": sentence})


@contextmanager
def error_location(where: str) -> Iterator[None]:
    """Turn errors of the block into a `ConfigError` about the part `where` of the configuration."""
    try:
        yield
    except ConfigError:
        raise
    except (ValueError, TypeError, OSError, ImportError, RuntimeError, ArithmeticError, MemoryError) as error:
        text = str(error) or type(error).__name__
        about = _ABOUT_FIELD.fullmatch(text)
        if about is not None:
            where, text = ".".join(filter(None, (where, about[1]))), about[2]
        raise ConfigError(f"{where}: {text}" if where else text) from error


def describe_errors(kind: type[BaseModel], table: Any, errors: list[Any]) -> str:
    """Turn pydantic's errors into sentences of the form "key: must be …, got …"."""
    sentences = list(dict.fromkeys(_sentence(kind, table, error) for error in errors))
    more = f"; and {len(sentences) - _MAX_REPORTED} more" if len(sentences) > _MAX_REPORTED else ""
    return "; ".join(sentences[:_MAX_REPORTED]) + more


def _sentence(kind: type[BaseModel], table: Any, error: Any) -> str:
    path = _path(table, error["loc"], error["type"])
    name = ".".join(_format_key(part) for part in path)
    match error["type"]:
        case "table_error":
            return ".".join(filter(None, (name, error["msg"])))
        case "extra_forbidden":
            return f"{name}: unknown field{_hint(kind, path)}"
        case "missing":
            return f"{name}: must be given"
        case "model_type" | "dict_type" | "model_attributes_type":
            requirement = "must be a table"
        case "list_type":
            requirement = "must be a list"
        case "string_type":
            requirement = "must be a text"
        case "value_error":
            requirement = error["msg"].removeprefix("Value error, ")
        case _:
            requirement = error["msg"].replace("Input should be", "must be")
    hint = getattr(error.get("ctx", {}).get("error"), "hint", "")
    return f"{name or 'the configuration'}: {requirement}, got {format_value(error['input'])}{hint}"


def _path(table: Any, loc: tuple[str | int, ...], kind: str) -> list[str | int]:
    """Keep the parts of pydantic's location that are keys of the table."""
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


def _format_key(part: str | int) -> str:
    return str(part) if isinstance(part, int) or _PLAIN_KEY.fullmatch(part) else format_value(part)


def _hint(kind: type[BaseModel], path: list[str | int]) -> str:
    """Suggest a key for an unknown one: the same key in another table, or a similar key of that table."""
    *parents, word = path
    here = kind
    for part in parents:
        if isinstance(part, str) and part in here.model_fields:
            here = _table_type(here.model_fields[part].annotation) or here
    same = next((key for key in _all_keys(kind) if key.split(".")[-1] == word), None)
    if same is None:
        return suggest(str(word), here.model_fields)
    where = " at the top of the file" if parents and "." not in same else ""
    return f" (did you mean '{same}'{where}?)"


def _all_keys(kind: type[BaseModel], prefix: str = "") -> Iterator[str]:
    """Yield the full names of all keys, with dots between tables."""
    for name, field in kind.model_fields.items():
        yield prefix + name
        if (table := _table_type(field.annotation)) is not None:
            yield from _all_keys(table, f"{prefix}{name}.")


def _table_type(annotation: Any) -> type[BaseModel] | None:
    """Return the pydantic model in a type annotation, if there is one."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next((table for arg in get_args(annotation) if (table := _table_type(arg)) is not None), None)
