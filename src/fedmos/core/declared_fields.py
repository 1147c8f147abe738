"""The names and shapes in the declarations of an algorithm or a local optimiser."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from ..algorithm import Field
from .formatting import format_value


def names_of(declared: Iterable[Field]) -> list[str]:
    """Return the declared names without their shapes."""
    return [field if isinstance(field, str) else field[0] for field in declared]


def name_and_shape(field: Field) -> tuple[str, Any]:
    """Return a name, and its shape as a tuple or "layers". A whole number has another meaning in `server_state`."""
    if isinstance(field, str):
        return field, ("D",)
    shape = field[1]
    return field[0], (shape,) if isinstance(shape, int) else shape


def is_int(v: Any) -> bool:
    """Whether a value is a Python integer; True and False are none."""
    return isinstance(v, int) and not isinstance(v, bool)


def check_fields(owner: str, field: str, declared: Any) -> None:
    """Refuse a declaration that is not a sequence of different names, each alone or with a shape."""
    if isinstance(declared, str | Mapping) or not isinstance(declared, Iterable):
        raise ValueError(f"{owner}: '{field}' must be a tuple of names, got {format_value(declared)}")
    for entry in declared:
        pair = isinstance(entry, tuple) and len(entry) == 2 and isinstance(entry[0], str)
        if not isinstance(entry, str) and not (pair and _is_shape(entry[1])):
            raise ValueError(
                f"{owner}: '{field}' must hold names and (name, shape), where a shape is (), 'layers', a whole number "
                f"or a tuple of whole numbers and 'D', got {format_value(entry)}"
            )
        if field == "down" and isinstance(entry, tuple) and entry[0] == "x":
            raise ValueError(f"{owner}: 'down' must name x, the model, without a shape, got {format_value(entry)}")
    names = names_of(declared)
    for name in names:
        if names.count(name) > 1:
            raise ValueError(f"{owner}: '{field}' must hold each name once, got {name!r} twice")


def _is_shape(shape: Any) -> bool:
    if isinstance(shape, tuple):
        return all(n == "D" or (is_int(n) and n > 0) for n in shape)
    return shape == "layers" or (is_int(shape) and shape > 0)
