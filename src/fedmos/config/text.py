"""Reading of configuration files, with limits on their size and depth, and overrides of single keys."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..core.formatting import format_value, one_line
from .errors import ConfigError

MAX_BYTES = 2**20
MAX_DEPTH = 16
"""Maximum nesting of tables and lists."""

_SHORT_NUMBER = re.compile(r"\s*(?P<sign>[+-]?)(?P<whole>\d*)\.(?P<part>\d*)(?P<power>[eE][+-]?\d+)?\s*")
"""A number like .05 or 5., which TOML does not know."""
_LONG_KEY = re.compile(rf"(?<![\w\"'-])(?:[\w\"'-]+[ \t]*\.[ \t]*){{{MAX_DEPTH},}}")


def read_table(path: str | Path) -> dict[str, Any]:
    """Read a TOML file."""
    where = one_line(str(path), 100)
    try:
        with Path(path).open("rb") as file:
            raw = file.read(MAX_BYTES + 1)
        if len(raw) > MAX_BYTES:
            raise ConfigError(f"Cannot read {where} because it is longer than {MAX_BYTES:,} bytes")
        text = raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise ConfigError(f"Cannot read {where} because it is not UTF-8 text: {error}") from None
    except OSError as error:
        raise ConfigError(f"Cannot read {where}: {error.strerror or error}") from None
    except ValueError as error:  # a path with a zero byte
        raise error if isinstance(error, ConfigError) else ConfigError(f"Cannot read {where}: {error}") from None
    return parse_toml(text, where)


def parse_toml(text: str, where: str) -> dict[str, Any]:
    """Parse TOML; errors name `where` the text is from."""
    if _LONG_KEY.search(text):
        raise ConfigError(f"Cannot read {where} because its tables are nested deeper than {MAX_DEPTH}")
    try:
        return tomllib.loads(text.replace("\r\n", "\n"))
    except RecursionError:
        raise ConfigError(f"Cannot read {where} because its lists are nested deeper than {MAX_DEPTH}") from None
    except ValueError as error:  # TOMLDecodeError, and numbers with thousands of digits
        raise ConfigError(f"Cannot read {where} because it is not TOML: {error}") from None


def check_depth(table: Any, where: str) -> None:
    """Refuse tables and lists that are nested too deep."""
    layer = [table]
    for _ in range(MAX_DEPTH):
        layer = [
            inner
            for v in layer
            for inner in (v.values() if isinstance(v, Mapping) else v)
            if isinstance(inner, Mapping | list | tuple)
        ]
        if not layer:
            return
    raise ConfigError(f"{where}: tables and lists must not be nested deeper than {MAX_DEPTH}")


def apply_override(table: dict[str, Any], text: str) -> None:
    """Apply "key=value" to a table. The key has dots between tables; the value is TOML, or else plain text."""
    key, equals, value = text.partition("=")
    if not equals or not key.strip():
        raise ConfigError(f"--set must look like key=value, got {format_value(text)}")
    if len(text) > MAX_BYTES or key.count(".") > MAX_DEPTH:
        raise ConfigError(
            f"--set {one_line(key, 60)}: must not be longer than {MAX_BYTES:,} or deeper than {MAX_DEPTH}"
        )
    try:
        parsed = parse_toml(f"v = {_with_zeros(value)}", "the value")["v"]
    except ConfigError:
        parsed = value
    *path, last = key.strip().split(".")
    for part in path:
        table = table.setdefault(part, {})
        if not isinstance(table, dict):
            raise ConfigError(f"--set {one_line(key, 60)}: {format_value(part)} is not a table")
    table[last] = parsed


def _with_zeros(value: str) -> str:
    """Return a number like .05 or 5. as TOML writes it; any other text as it is."""
    match = _SHORT_NUMBER.fullmatch(value)
    if match is None or not (match["whole"] or match["part"]):
        return value
    return f"{match['sign']}{match['whole'] or '0'}.{match['part'] or '0'}{match['power'] or ''}"
