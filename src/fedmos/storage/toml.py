"""Writing TOML. Python reads it but does not write it."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

_BARE = re.compile(r"[A-Za-z0-9_-]+")


def dumps(table: Mapping[str, Any]) -> str:
    """A table of strings, numbers, truth values, lists and tables; what is None is left out."""
    known = {key: value for key, value in table.items() if value is not None}
    plain = [f"{_key(k)} = {_value(v)}\n" for k, v in known.items() if not isinstance(v, Mapping)]
    tables = [f"\n[{_key(k)}]\n{_lines(v)}" for k, v in known.items() if isinstance(v, Mapping)]
    return "".join(plain + tables)


def _lines(table: Mapping[str, Any]) -> str:
    return "".join(f"{_key(k)} = {_value(v)}\n" for k, v in table.items() if v is not None)


def _value(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return repr(value)
    if isinstance(value, str):
        return _string(value)
    if isinstance(value, Mapping):
        return "{ " + ", ".join(f"{_key(k)} = {_value(v)}" for k, v in value.items() if v is not None) + " }"
    return "[" + ", ".join(_value(v) for v in value) + "]"


def _key(key: str) -> str:
    return key if _BARE.fullmatch(key) else _string(key)


def _string(text: str) -> str:
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")
