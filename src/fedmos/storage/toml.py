"""Writing of TOML files."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def dumps(table: Mapping[str, Any]) -> str:
    """Format a table as TOML, without the entries that are None."""
    import tomli_w

    return tomli_w.dumps(_without_none(table))


def _without_none(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _without_none(item) for key, item in value.items() if item is not None}
    return [_without_none(item) for item in value] if isinstance(value, list | tuple) else value
