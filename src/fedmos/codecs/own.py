"""Codecs of the user's: what is derived of them where they do not say it."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Mapping
from functools import cache, lru_cache
from numbers import Integral
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ..core.formatting import format_value

if TYPE_CHECKING:
    from .codec import Codec, Declaration

METHODS = ("encode", "decode", "nbytes")
"""What a class that is no subclass of `Codec` must define to serve as one."""


def is_like_codec(v: object) -> bool:
    """Whether a value is no type, and has the methods of a codec."""
    return not isinstance(v, type) and all(callable(getattr(v, name, None)) for name in METHODS)


def adopted(v: Any, base: type[Codec]) -> Codec:
    """Return a codec with the methods and attributes of an object, of a class of the same name.

    Args:
        v: A codec, or an object with the methods of one.
        base: The class `Codec`.

    Raises:
        ValueError: If objects of this class cannot be given another class.
    """
    if isinstance(v, base):
        return v
    made = copy.copy(v)
    try:
        object.__setattr__(made, "__class__", _adopted_class(type(v), base))  # type: ignore[arg-type]  # classes are hashable
    except TypeError:
        raise ValueError(
            f"Cannot use {format_value(v)} as a codec because its class has a layout of its own; make it a subclass of "
            "fm.codecs.Codec"
        ) from None
    return made  # type: ignore[no-any-return]


@cache
def _adopted_class(kind: type, base: type[Codec]) -> type:
    body: dict[str, Any] = {
        "__doc__": kind.__doc__,
        "__module__": kind.__module__,
        "__qualname__": kind.__qualname__,
        "__eq__": kind.__eq__,  # that of `base` compares no attributes
        "__hash__": kind.__hash__,
    }
    return type(kind.__name__, (kind, base), body)


def derived_declaration(codec: Codec, size: int) -> Declaration:
    """Return the fields that a codec sends of `size` numbers, found by encoding some.

    Raises:
        ValueError: If it does not return vectors by name.
    """
    try:
        return dict(_derived(codec, size))
    except TypeError as error:
        if "unhashable" not in str(error):
            raise
        return dict(_derived.__wrapped__(codec, size))


@lru_cache(maxsize=256)
def _derived(codec: Codec, size: int) -> Declaration:
    numbers = torch.arange(1, size + 1, dtype=torch.float32) / max(size, 1)
    key = torch.zeros((), dtype=torch.int64)
    found, in_float64 = (_encoded(codec, numbers.to(dtype), key) for dtype in (torch.float32, torch.float64))
    declared: Declaration = {}
    for name, field in found.items():
        other = in_float64.get(name)
        follows = field.dtype == torch.float32 and other is not None and other.dtype == torch.float64
        declared[name] = ("float" if follows else field.dtype, len(field))
    return declared


def _encoded(codec: Codec, v: Tensor, key: Tensor) -> Mapping[str, Tensor]:
    fields: Any = codec.encode(v, key)
    if not isinstance(fields, Mapping) or not all(isinstance(f, Tensor) and f.ndim == 1 for f in fields.values()):
        got = {name: kind_of(f) for name, f in fields.items()} if isinstance(fields, Mapping) else fields
        raise ValueError(
            f"{type(codec).__name__}: 'encode' must return a dictionary of tensors (n,) for a vector (D,), got "
            f"{format_value(got)}"
        )
    return fields


def counted_bytes(codec: Codec, size: int, dtype: torch.dtype) -> int:
    """Return what `nbytes` says of a vector of `size` numbers of type `dtype`; it may take the size alone.

    Raises:
        ValueError: If that is no number of bytes.
    """
    count: Any = codec.nbytes(size, dtype) if takes_dtype(type(codec)) else codec.nbytes(size)  # type: ignore[arg-type]
    if not isinstance(count, Integral) or isinstance(count, bool) or count < 0:
        raise ValueError(f"{type(codec).__name__}: 'nbytes' must return an integer ≥ 0, got {format_value(count)}")
    return int(count)


@cache
def takes_dtype(kind: type[Codec]) -> bool:
    """Whether `nbytes` takes the dtype of the vector besides its size."""
    parameters = list(inspect.signature(kind.nbytes).parameters.values())
    positional = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    return len(positional) > 2 or any(p.kind is p.VAR_POSITIONAL for p in parameters)


def check_encoded(codec: Codec, fields: Any, v: Tensor) -> None:
    """Check what a codec returns of vectors in a run, as far as that costs nothing: names and shapes.

    Raises:
        ValueError: If the fields are not those that the codec declares.
    """
    declared = codec.declare(v.shape[-1])
    if not isinstance(fields, Mapping) or set(fields) != set(declared):
        got = ", ".join(map(str, fields)) if isinstance(fields, Mapping) else format_value(fields)
        raise ValueError(f"{type(codec).__name__}: 'encode' must return {', '.join(declared)}, got {got}")
    for name, (_, length) in declared.items():
        shape = (*v.shape[:-1], length)
        if not isinstance(fields[name], Tensor) or fields[name].shape != shape:
            raise ValueError(
                f"{type(codec).__name__}: 'encode' must return '{name}' of shape {shape} for vectors of shape "
                f"{tuple(v.shape)}, got {kind_of(fields[name])}"
            )


def check_decoded(codec: Codec, decoded: Any, v: Tensor) -> None:
    """Check that a codec decodes vectors of the shape that it encoded.

    Raises:
        ValueError: If it does not.
    """
    if not isinstance(decoded, Tensor) or decoded.shape != v.shape:
        raise ValueError(
            f"{type(codec).__name__}: 'decode' must return vectors of shape {tuple(v.shape)}, got {kind_of(decoded)}"
        )


def kind_of(v: Any) -> str:
    """Return the dtype and shape of a tensor; other values as in errors."""
    return f"{v.dtype} of shape {tuple(v.shape)}" if isinstance(v, Tensor) else format_value(v)
