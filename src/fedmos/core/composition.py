"""Composition of an algorithm with other objects, as an instance of a subclass."""

from __future__ import annotations

import copy
from typing import Any

from ..algorithm import Algorithm, Vectors


def recast(algorithm: Algorithm, kind: type[Algorithm]) -> Algorithm:
    """Return a copy of the algorithm, with the same fields, as an instance of another class."""
    copied = copy.copy(algorithm)
    object.__setattr__(copied, "__class__", kind)  # a frozen dataclass refuses the plain assignment
    return copied


def subclass(kind: type[Algorithm], mixin: type[Algorithm], **attributes: Any) -> type[Algorithm]:
    """Return a class of the name of `kind`, with the methods of `mixin` before its own."""
    body: dict[str, Any] = {
        "__slots__": (),
        "__doc__": kind.__doc__,
        "__module__": kind.__module__,
        "__qualname__": kind.__qualname__,
    }
    return type(kind.__name__, (mixin, kind), body | attributes)


def is_pair(v: Any) -> bool:
    """Return whether a method returned two values, of which the second is a dictionary."""
    return isinstance(v, tuple) and len(v) == 2 and isinstance(v[1], dict)


def is_pair_of_dicts(v: Any) -> bool:
    """Return whether a method returned two dictionaries."""
    return is_pair(v) and isinstance(v[0], dict)


def without(tensors: Vectors, prefix: str, *names: str) -> Vectors:
    """Return the tensors whose names do not begin with `prefix` and are none of `names`."""
    kept = copy.copy(tensors)  # of the engine's class, which names unknown names
    for name in [name for name in tensors if name.startswith(prefix) or name in names]:
        del kept[name]
    return kept
