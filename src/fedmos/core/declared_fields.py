"""The names and shapes in the declarations of an algorithm or a local optimiser."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from ..algorithm import Field


def names_of(declared: Iterable[Field]) -> list[str]:
    """Return the declared names without their shapes."""
    return [field if isinstance(field, str) else field[0] for field in declared]


def name_and_shape(field: Field) -> tuple[str, Any]:
    """Return a name, and its shape as a tuple or "layers". A whole number has another meaning in `server_state`."""
    if isinstance(field, str):
        return field, ("D",)
    shape = field[1]
    return field[0], (shape,) if isinstance(shape, int) else shape
