"""The model of a run from the configuration in its folder."""

from __future__ import annotations

import functools
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import ValidationError
from torch import nn

from ..core.formatting import format_value
from ..core.validation import require
from ..core.validation import seed as seed_rule
from ..models import lora
from ..models.seeded import seeded
from . import registry
from .build import build, construct, takes
from .choices import Choice
from .errors import ConfigError
from .own_classes import is_own, with_absolute_paths

RUN_FILE = "config.toml"
COMPARISON_FILE = "comparison.toml"
"""The configuration of a comparison, two folders above the folders of its runs."""


def stored_model(folder: Path, info: Mapping[str, Any]) -> nn.Module | None:
    """Build the model that the configuration of a run, or of the comparison it belongs to, names.

    Args:
        folder: The run's folder.
        info: What the run recorded about itself; its seed determines the initial weights.

    Returns:
        The model, or None for a run that was started from Python.

    Raises:
        ConfigError: If the configuration names a model that does not exist.
    """
    for path in (folder / RUN_FILE, folder.absolute().parent.parent / COMPARISON_FILE):
        choice = _choice(path)
        if choice is not None:
            return build_model(choice, int(info["seed"]))
    return None


def build_model(choice: Choice, seed: int) -> nn.Module:
    """Build a model. Its initial weights follow the run's seed unless the table `model` has a seed.

    With a table `lora`, its weights are frozen and it has adapters, unless it is a class of the user that has a
    parameter of this name.
    """
    adapters = choice.fields.get("lora")
    if adapters is None or (is_own(choice.name) and takes("model.name", choice.name, "lora")):
        return _build_plain(choice, seed)
    if not isinstance(adapters, Mapping):
        raise ConfigError(f"model.lora: must be a table with rank and targets, got {format_value(adapters)}")
    make = functools.partial(lora, _build_plain(choice.without("lora"), seed))
    model: nn.Module = construct("model.lora", "lora", make, {"seed": seed} | dict(adapters))
    return model


def _build_plain(choice: Choice, seed: int) -> nn.Module:
    """Build a model without adapters."""
    chosen = choice if "seed" in choice.fields else choice.but(seed=seed)
    if is_own(choice.name) and not takes("model.name", choice.name, "seed"):
        require("model", "seed", chosen.fields["seed"], seed_rule)
        own = chosen.without("seed")
        return seeded(lambda: build_module(own), chosen.fields["seed"])
    return build_module(chosen)


def build_module(choice: Choice) -> nn.Module:
    """Build a model of the registry or of the user."""
    model: nn.Module = build("model", choice, registry.models(), nn.Module)
    return model


def _choice(path: Path) -> Choice | None:
    """Read the table `model` of a configuration; None if there is none."""
    try:
        table = with_absolute_paths(tomllib.loads(path.read_text("utf-8")), path.absolute().parent)
        return None if table.get("from_python") else Choice.model_validate(table.get("model"))
    except (OSError, ValueError, RecursionError, ValidationError):
        return None
