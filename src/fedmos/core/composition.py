"""Composition of an algorithm with other objects, as an instance of a subclass."""

from __future__ import annotations

import copy
from typing import Any

from ..algorithm import Algorithm


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
