"""Where the model of a saved run comes from if the caller does not give it.

`config` registers a function that builds the model which the configuration in a run's folder names. This module only
knows that such functions exist, so that `run` does not import `config`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from torch import nn

ModelSource = Callable[[Path, Mapping[str, Any]], nn.Module | None]
"""Takes a run's folder and its info; returns None if the folder does not say how to build the model."""

_SOURCES: list[ModelSource] = []


class UnknownModelError(ValueError):
    """The folder of a run does not say how to build its model."""


def register_model_source(source: ModelSource) -> ModelSource:
    """Add a function that `find_model` tries; usable as a decorator."""
    _SOURCES.append(source)
    return source


def find_model(folder: Path, info: Mapping[str, Any]) -> nn.Module | None:
    """Build the model of the run in a folder; None if no source can."""
    return next((model for source in _SOURCES if (model := source(folder, info)) is not None), None)
