"""Hashes of what a module computes, apart from the values of its trainable parameters."""

from __future__ import annotations

import hashlib
from collections.abc import Collection

import torch
from torch import nn
from torch.nn.utils.parametrize import type_before_parametrizations

from .architecture import dense_parts

_TORCH_OWN = {
    "training",
    "_parameters",
    "_buffers",
    "_modules",
    "_non_persistent_buffers_set",
    "_is_full_backward_hook",
}


_DROPOUT_OWN = {"calls", "positions", "recorded"}
"""Attributes of `StreamDropout` that a forward pass or a trial sets."""


def _is_empty_dict(v: object) -> bool:
    """Whether v is an empty dictionary, as PyTorch's of hooks, whose names vary with its version."""
    return isinstance(v, dict) and not v


def attribute_key(v: object, here: bool) -> str:
    """Return a string that is equal for equal attribute values; see `modules_key`."""
    if isinstance(v, bool | int | float | str | torch.dtype | type(None)):
        return repr(v)
    if isinstance(v, tuple | list):
        return repr([attribute_key(item, here) for item in v])
    name = getattr(v, "__qualname__", type(v).__qualname__)
    return f"{name} {id(v)}" if here else name


def modules_key(module: nn.Module, here: bool) -> bytes:
    """Return the names, classes and attributes of all modules.

    Args:
        module: The module.
        here: Whether keys are compared within this process. If so, classes of modules and attributes that are neither
            numbers nor strings (functions, for example) are compared by identity, otherwise by name.
    """
    found = []
    for name, part in module.named_modules(remove_duplicate=False):
        held = {k: v for k, v in vars(part).items() if k not in _TORCH_OWN and not _is_empty_dict(v)}
        plain = sorted((k, attribute_key(v, here)) for k, v in held.items() if k not in _DROPOUT_OWN)
        kind = type_before_parametrizations(part)
        found.append(repr((name, attribute_key(kind, here), kind.__module__, plain)))
    return "".join(found).encode()


def constants_key(module: nn.Module, trainable: Collection[str]) -> str:
    """Return a hash of the names and values of frozen parameters and buffers; "" without any."""
    digest, found = hashlib.sha256(), False
    for name, value in (*module.named_parameters(), *module.named_buffers()):
        if name not in trainable:
            found = True
            digest.update(name.encode())
            for part in dense_parts(value.detach().cpu().resolve_conj()):
                digest.update(part.contiguous().numpy().data)
    return digest.hexdigest() if found else ""
