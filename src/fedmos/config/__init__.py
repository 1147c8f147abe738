"""Configuration files: their schema, and the registry of algorithms, models and data sets by name."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

from torch import nn

from ..run.model_source import register_model_source

_SCHEMA = ("Choice", "CompareConfig", "ConfigError", "Method", "RunConfig", "SweepConfig", "Training", "load", "parse")

__all__ = list(_SCHEMA)


def __getattr__(name: str) -> Any:
    """Import the schema, and with it pydantic, only when it is used."""
    if name in _SCHEMA:
        return getattr(import_module(".schema", __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


@register_model_source
def _stored_model(folder: Path, info: Mapping[str, Any]) -> nn.Module | None:
    """Build the model that the configuration in a run's folder names; imports the schema only when it is used."""
    from .stored_model import stored_model

    return stored_model(folder, info)
