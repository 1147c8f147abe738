"""Configuration files: their schema, and the registry of everything that has a name."""

from __future__ import annotations

from importlib import import_module
from typing import Any

_SCHEMA = ("Choice", "CompareConfig", "ConfigError", "Method", "RunConfig", "SweepConfig", "Training", "load", "parse")

__all__ = list(_SCHEMA)


def __getattr__(name: str) -> Any:
    """Import the schema, and with it pydantic, only when it is used."""
    if name in _SCHEMA:
        return getattr(import_module(".schema", __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
