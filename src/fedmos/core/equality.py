"""Equality of the objects that options hold."""

from __future__ import annotations

from typing import Any, TypeVar

T = TypeVar("T")


class EqualByFields:
    """Base of classes whose objects are equal if their fields are: dataclasses. Other subclasses compare by identity.

    A dataclass compares the fields that it knows. A subclass without `@dataclass` inherits that comparison, and two of
    its objects with other attributes would count as one and the same wherever a composed class is cached.
    """

    def __new__(cls: type[T], *_: Any, **__: Any) -> T:
        compare_by_identity(cls)
        if vars(cls).keys().isdisjoint(("__dataclass_fields__", "__repr__")):
            cls.__repr__ = described  # type: ignore[method-assign]
        return object.__new__(cls)


def compare_by_identity(kind: type) -> None:
    """Have the objects of a class compare by identity, unless the class itself says how they compare."""
    if vars(kind).keys().isdisjoint(("__dataclass_fields__", "__eq__", "__hash__")):
        kind.__eq__ = object.__eq__  # type: ignore[method-assign, assignment]
        kind.__hash__ = object.__hash__  # type: ignore[method-assign, assignment]


def described(obj: Any) -> str:
    """Return class and attributes, as a dataclass does: records of runs name what was used."""
    given = ", ".join(f"{name}={value!r}" for name, value in vars(obj).items() if not name.startswith("_"))
    return f"{type(obj).__qualname__}({given})"
