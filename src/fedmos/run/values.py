"""Values of options as JSON that can be compared: by content, whatever `repr` prints."""

from __future__ import annotations

import functools
import hashlib
import math
import os
from collections.abc import Iterator, Mapping, Set
from dataclasses import fields, is_dataclass
from enum import Enum
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

Json = Any
"""None, a boolean, number or string, or a list or dictionary of such values."""

_MAX_DEPTH = 20


def structured(value: Any, depth: int = 0) -> Json:
    """Describe a value by JSON that is equal for equal values.

    A dataclass or another object becomes `{"name": class, "fields": {...}}`, a tensor or array the hash of its content
    with shape and dtype, a function or class its qualified name. Objects of other kinds are described by their class.
    A field that is marked as added is left out where it has its default: earlier versions did not record it.
    """
    if value is None or isinstance(value, bool | str):
        return value
    if isinstance(value, np.generic) and value.dtype.kind in "biufSU":
        return structured(value.item(), depth)
    if isinstance(value, int | float):
        return value if isinstance(value, int) or math.isfinite(value) else {"float": repr(value)}
    if isinstance(value, Tensor | np.ndarray):
        return _array(value)
    if isinstance(value, torch.dtype | torch.device | complex):
        return {"value": str(value)}
    if isinstance(value, Enum):
        return {"value": str(value)}
    if isinstance(value, os.PathLike):
        return {"path": os.fspath(value)}
    if isinstance(value, bytes | bytearray):
        return {"bytes": _hash(value)}
    if depth >= _MAX_DEPTH:
        return {"type": type(value).__qualname__}
    return _container(value, depth + 1)


def _container(value: Any, depth: int) -> Json:
    if isinstance(value, list | tuple | range):
        return [structured(item, depth) for item in value]
    if isinstance(value, Mapping):
        pairs = [[structured(key, depth), structured(item, depth)] for key, item in value.items()]
        return {"mapping": sorted(pairs, key=repr)}
    if isinstance(value, Set):
        return {"set": sorted((structured(item, depth) for item in value), key=repr)}
    if isinstance(value, functools.partial):
        parts = {"function": value.func, "args": value.args, "keywords": value.keywords}
        return {"name": "partial", "fields": {name: structured(part, depth) for name, part in parts.items()}}
    if hasattr(value, "__qualname__"):  # a function, method or class
        return {"function": value.__qualname__}
    return {
        "name": type(value).__qualname__,
        "fields": {name: structured(item, depth) for name, item in _attributes(value)},
    }


def _attributes(value: Any) -> Iterator[tuple[str, Any]]:
    """Yield the attributes that make up the value of an object.

    Those of a dataclass are its fields; an object of a subclass that is no dataclass itself has others beside them.
    """
    kind, declared = type(value), set()
    if is_dataclass(value):
        for f in fields(value):
            if f.compare and not (f.metadata.get("added") and getattr(value, f.name) == f.default):
                yield f.name, getattr(value, f.name)
        if "__dataclass_fields__" in vars(kind):
            return
        declared = {f.name for f in fields(value)}
    for name, item in sorted(getattr(value, "__dict__", {}).items()):
        if name in declared:
            continue
        private = isinstance(value, nn.Module) and (name.startswith("_") or name == "training")
        if not private and not isinstance(getattr(kind, name, None), functools.cached_property):
            yield name, item
    for name in (slot for base in kind.__mro__ for slot in _slots(base)):
        if hasattr(value, name):
            yield name, getattr(value, name)
    if isinstance(value, nn.Module):
        yield "state_dict", dict(value.state_dict())


def _slots(kind: type) -> tuple[str, ...]:
    slots = vars(kind).get("__slots__", ())
    return tuple(name for name in ((slots,) if isinstance(slots, str) else slots) if not name.startswith("__"))


def _array(value: Tensor | np.ndarray) -> Json:
    shape = list(value.shape)
    if isinstance(value, Tensor):
        dtype = str(value.dtype).removeprefix("torch.")
        content = value.detach().cpu().to_dense() if value.layout != torch.strided else value.detach().cpu()
        flat = content.resolve_conj().resolve_neg().flatten().contiguous()
        return {"tensor": _hash(flat.view(torch.uint8).numpy().tobytes()), "dtype": dtype, "shape": shape}
    if value.dtype.hasobject:
        return {"array": structured(value.tolist()), "dtype": "object", "shape": shape}
    return {"array": _hash(np.ascontiguousarray(value).tobytes()), "dtype": str(value.dtype), "shape": shape}


def _hash(content: bytes | bytearray) -> str:
    return hashlib.sha256(content).hexdigest()[:32]


class Difference(NamedTuple):
    """The first place in which two structured values differ."""

    path: tuple[str, ...]
    """Names of fields, from the outermost."""
    before: Json
    now: Json

    def __str__(self) -> str:
        before, now = _format(self.before), _format(self.now)
        return f"is {before}, got " + ("one with other values" if before == now else now)


def first_difference(before: Json, now: Json, path: tuple[str, ...] = ()) -> Difference | None:
    """Compare structured values; None if they are equal."""
    if before == now:
        return None
    if _is_object(before) and _is_object(now) and before["name"] == now["name"]:
        old, new = before["fields"], now["fields"]
        for name in {**old, **new}:
            found = first_difference(old.get(name), new.get(name), (*path, name))
            if found is not None:
                return found
    return Difference(path, before, now)


def _is_object(value: Json) -> bool:
    return isinstance(value, dict) and set(value) == {"name", "fields"}


def _format(value: Json) -> str:
    """Describe a structured value in an error."""
    if not isinstance(value, dict):
        return repr(value)
    for kind in ("tensor", "array"):
        if kind in value:
            return f"a {value['dtype']} {kind} of shape {tuple(value['shape'])}"
    if _is_object(value):
        return f"a {value['name']}"
    return next(iter(f"{v}" if isinstance(v, str) else f"a {k}" for k, v in value.items()))
