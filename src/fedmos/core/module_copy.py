"""Copies of modules on another device and in another dtype."""

from __future__ import annotations

import copy
import types
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from .formatting import one_line
from .module_kind import UnsuitableModel

_OWN = set(vars(nn.Module()))
_DEPTH = 4
"""How deep containers are searched for tensors that a forward pass computed."""


def copied(
    model: nn.Module, device: torch.device | str, dtype: torch.dtype, known: Mapping[int, Tensor] | None = None
) -> nn.Module:
    """Return a deep copy of the module.

    Real numbers get the dtype, complex ones that of the same precision. Tensors that a forward pass stored as
    attributes, as the hook of `nn.utils.weight_norm` does, are copied without their autograd graph.

    Args:
        model: The module.
        device: The device of the copy.
        dtype: The dtype of its real numbers.
        known: By the id of a tensor of the module, the tensor that the copy shall hold in its place.

    Raises:
        UnsuitableModel: If a trainable parameter is complex, or the module cannot be copied.
    """
    for name, p in model.named_parameters():
        if p.requires_grad and p.is_complex():
            raise UnsuitableModel(
                f"Cannot train the complex parameter '{name}' because models are vectors of real numbers; use a real "
                "parameter with a last axis of size 2, and torch.view_as_complex in the forward pass"
            )
    module = duplicated(model, known)
    if not any(v.is_complex() for v in (*module.parameters(), *module.buffers())):
        return module.to(device=device, dtype=dtype)

    def converted(v: Tensor) -> Tensor:
        return v.to(device, dtype.to_complex() if v.is_complex() else dtype if v.is_floating_point() else None)

    converted_module: nn.Module = module._apply(converted)
    return converted_module


def duplicated(model: nn.Module, known: Mapping[int, Tensor] | None = None) -> nn.Module:
    """Return a deep copy of the module; stored tensors are copied without their autograd graph.

    Args:
        model: The module.
        known: By the id of a tensor of the module, the tensor that the copy shall hold in its place.

    Raises:
        UnsuitableModel: If an attribute cannot be copied.
    """
    attributes = [(name, value) for part in model.modules() for name, value in vars(part).items()]
    try:
        return copy.deepcopy(model, _without_graph(attributes, 0) | dict(known or {}))
    except Exception as first:  # whatever an attribute of the user raises
        try:
            return copy.deepcopy(model, _without_graph(attributes, _DEPTH) | dict(known or {}))
        except Exception:
            failing = next((name for name, value in attributes if name not in _OWN and _fails(value)), None)
            where = "" if failing is None else f" for its attribute '{failing}'"
            raise UnsuitableModel(
                f"Cannot copy the model because copy.deepcopy fails{where}: {one_line(str(first))}; a run trains a "
                "copy, so keep what cannot be copied outside of the model"
            ) from first


def _without_graph(attributes: list[tuple[str, Any]], depth: int) -> dict[int, Tensor]:
    """By the id of each tensor that a forward pass computed, its copy; containers are searched to a depth."""
    return {id(v): v.detach().clone() for _, value in attributes for v in _computed(value, depth)}


def _computed(value: Any, depth: int) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        if not value.is_leaf:
            yield value
    elif depth > 0 and not isinstance(value, nn.Module | type | types.ModuleType | types.FunctionType):
        items = value.values() if isinstance(value, Mapping) else value
        held = items if isinstance(value, Mapping | list | tuple | set) else getattr(value, "__dict__", {}).values()
        for item in held:
            yield from _computed(item, depth - 1)


def _fails(value: Any) -> bool:
    """Whether a value cannot be copied."""
    try:
        copy.deepcopy(value)
    except Exception:  # whatever an attribute of the user raises
        return True
    return False
