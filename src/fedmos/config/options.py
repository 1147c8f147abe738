"""The keys of configuration files that set options of a run: generated from the fields of `RunSpec`."""

from __future__ import annotations

from dataclasses import MISSING, fields
from typing import Annotated, Any, Literal, get_args, get_origin, get_type_hints

import torch

from ..run.options import Option, options_of
from ..run.spec import RunSpec
from .choices import Choice, ChoiceOrList, DecayTable, LinkChoice, LossName, MetricNames
from .data_config import DataConfig
from .fields import ClassWeights, DeviceName, Folder, Target, obeys, one_of_names
from .tables import BufferConfig, EveryOrTable, PersonalTable, SystemConfig

TOML_TYPES: dict[str, Any] = {
    "model": Choice,
    "data": DataConfig,
    "algorithm": Choice,
    "selection": Choice,
    "loss": LossName,
    "class_weights": ClassWeights | None,
    "lr_decay": DecayTable,
    "local": ChoiceOrList | None,
    "personal": PersonalTable | None,
    "uplink": LinkChoice | None,
    "downlink": LinkChoice | None,
    "privacy": Choice | None,
    "aggregation": Choice | None,
    "attack": Choice | None,
    "evaluate_clients": EveryOrTable | None,
    "metrics": MetricNames | None,
    "target": Target | None,
    "device": DeviceName,
    "dtype": Annotated[Literal["float32", "float64"], one_of_names("float32", "float64")],
    "availability": Choice | None,
    "system": SystemConfig | None,
    "buffer": BufferConfig | None,
    "out": Folder | None,
}
"""Types of options that are objects in Python and tables or texts in TOML. All others follow from `RunSpec`."""


def option_fields(*, per_run: bool) -> dict[str, Any]:
    """Pydantic fields of the options that configurations can set, in the order of `RunSpec` but `data` first.

    Hints about a misplaced key, e.g. "did you mean 'data.name'?", name the first table that has the key.

    Args:
        per_run: whether to give the options in which the runs of a comparison differ, or all others.
    """
    described, types = options_of(RunSpec), get_type_hints(RunSpec)
    return {
        f.name: (TOML_TYPES.get(f.name) or _toml_type(types[f.name], described[f.name]), _toml_default(f.default))
        for f in sorted(fields(RunSpec), key=lambda f: f.name != "data")
        if described[f.name].toml and described[f.name].per_run == per_run
    }


def _toml_type(annotation: Any, option: Option) -> Any:
    """Return the type of a scalar option, validated by its rule. TOML has no null, so errors do not offer None."""
    kinds = [kind for kind in get_args(annotation) if kind is not type(None)] or [annotation]
    if get_origin(annotation) is Literal:
        kinds = [annotation]
    inner = kinds[0]
    for kind in kinds[1:]:
        inner = inner | kind
    if get_origin(inner) is Literal:
        validator = one_of_names(*get_args(inner))
    else:
        assert option.rule is not None, "an option without a rule needs an entry in TOML_TYPES"
        validator = obeys(option.rule)
    optional = type(None) in get_args(annotation)
    return Annotated[inner, validator] | None if optional else Annotated[inner, validator]


def _toml_default(default: Any) -> Any:
    if default is MISSING:
        return ...
    return str(default).removeprefix("torch.") if isinstance(default, torch.dtype) else default
