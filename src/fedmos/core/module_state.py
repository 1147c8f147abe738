"""What a forward pass changes in a module: attributes, buffers, parameters."""

from __future__ import annotations

import types
from collections import deque
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.utils.parametrize import type_before_parametrizations

from .batch_norm import ClientBatchNorm
from .dropout import StreamDropout

_OWN = set(vars(nn.Module()))
_VIEWS = {"_flat_weights", "_flat_weight_refs"}
"""Attributes of `nn.RNNBase` that hold the parameters once more."""
_DEPTH = 4
_PLAIN = (bool, int, float, complex, str, bytes, type(None))


class SameObject:
    """Equal to itself only. Keeps the object alive, so that its address stays unique."""

    def __init__(self, value: object, version: int = 0) -> None:
        self.value, self.version = value, version

    def __eq__(self, other: object) -> bool:
        return isinstance(other, SameObject) and self.value is other.value and self.version == other.version

    __hash__ = None  # type: ignore[assignment]


State = dict[str, Any]
"""By the full name of an attribute, a value that is equal as long as the attribute is."""


def attributes(module: nn.Module) -> State:
    """Return the state of the Python attributes of all submodules that are not PyTorch's own layers."""
    return {
        _name(prefix, attribute): _token(value, _DEPTH)
        for prefix, part in module.named_modules()
        if not isinstance(part, StreamDropout | ClientBatchNorm)
        and not type_before_parametrizations(part).__module__.startswith("torch.nn.modules")
        for attribute, value in vars(part).items()
        if attribute not in _OWN and not (attribute in _VIEWS and isinstance(part, nn.RNNBase))
    }


def buffers(module: nn.Module) -> State:
    """Return the state of all buffers but the keys of dropout."""
    return {
        _name(prefix, name): SameObject(value, value._version)
        for prefix, part in module.named_modules()
        if not isinstance(part, StreamDropout)
        for name, value in part._buffers.items()
        if value is not None
    }


def checksums(module: nn.Module) -> State:
    """Return sums of the bits of all frozen parameters and buffers but the keys of dropout."""
    kept = {**{name: p for name, p in module.named_parameters() if not p.requires_grad}, **dict(module.named_buffers())}
    keys = {f"{prefix}.key" for prefix, part in module.named_modules() if isinstance(part, StreamDropout)}
    return {name: _sum_of_bits(v.detach()) for name, v in kept.items() if name not in keys}


def _sum_of_bits(v: Tensor) -> int:
    v = torch.view_as_real(v) if v.is_complex() else v
    words = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
    return int(v.view(words[v.dtype.itemsize]).sum(dtype=torch.int64)) if v.layout is torch.strided else v._version


def changed(before: State, after: State) -> list[str]:
    """Return the names that are new, missing or changed."""
    return [name for name in {**before, **after} if name not in before or before[name] != after.get(name)]


def holds_tensor(module: nn.Module, name: str) -> bool:
    """Whether the attribute of that full name is a tensor now."""
    owner, _, attribute = name.rpartition(".")
    return isinstance(getattr(module.get_submodule(owner), attribute, None), Tensor)


def _name(prefix: str, attribute: str) -> str:
    return f"{prefix}.{attribute}" if prefix else attribute


def _token(value: Any, depth: int) -> Any:
    if isinstance(value, _PLAIN):
        return (type(value), repr(value))
    if isinstance(value, Tensor):
        return SameObject(value, value._version)
    if depth == 0 or isinstance(value, nn.Module | type | types.FunctionType | types.ModuleType):
        return SameObject(value)
    if isinstance(value, Mapping):
        return [(_token(k, depth - 1), _token(v, depth - 1)) for k, v in value.items()]
    if isinstance(value, np.ndarray):
        return (value.shape, value.tobytes() if value.dtype != object else SameObject(value))
    if isinstance(value, list | tuple | set | frozenset | deque):
        return [_token(v, depth - 1) for v in value]
    held = [(name, _token(v, depth - 1)) for name, v in getattr(value, "__dict__", {}).items()]
    return [SameObject(value), held]
