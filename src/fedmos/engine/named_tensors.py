"""The dictionaries that the methods of an algorithm receive."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NoReturn

from torch import Tensor

from ..algorithm import Algorithm
from ..core.validation import suggest

_ORIGIN = {
    "c.msg": "'down' declares",
    "c.own": "'client_state' declares",
    "state": "'server_state' declares",
    "agg": "'reduce' declares",
    "s": "'begin' or the previous step returned",
}
"""By dictionary, where its names come from."""


class UnknownNameError(ValueError, KeyError):
    """A method reads a name that its algorithm does not declare."""

    __str__ = Exception.__str__  # a KeyError shows the quoted text


class NamedTensors(dict[str, Tensor]):
    """Tensors by name. Reading an unknown name is an error that lists the known ones."""

    __slots__ = ("assigned", "owner", "source", "why")

    def __init__(self, tensors: Mapping[str, Tensor], owner: str, source: str, why: str | None) -> None:
        super().__init__(tensors)
        self.owner, self.source, self.why = owner, source, why
        self.assigned: dict[str, None] = {}
        """The names that a method has assigned, which changes nothing unless it returns them."""

    def __setitem__(self, name: str, value: Tensor) -> None:
        if self.get(name) is not value:  # `state["v"] += …` changes the tensor in place, which is refused
            self.assigned[name] = None
        super().__setitem__(name, value)

    def __copy__(self) -> NamedTensors:
        return NamedTensors(self, self.owner, self.source, self.why)

    def __missing__(self, name: Any) -> NoReturn:
        where = f"{self.owner}: there is no {self.source}[{name!r}]"
        if self.source == "c.msg" and name == "x":
            raise UnknownNameError(f"{where}; use c.x")
        if self.why is not None:
            raise UnknownNameError(f"{where}; {self.why}")
        known = f"{_ORIGIN[self.source]} {', '.join(self) or 'nothing'}"
        raise UnknownNameError(f"{where}; {known}{suggest(str(name), self)}")


def named(algorithm: Algorithm, source: str, tensors: Mapping[str, Tensor], why: str | None = None) -> NamedTensors:
    """Return tensors as the methods of an algorithm read them.

    Args:
        algorithm: The algorithm.
        source: What its methods call the dictionary.
        tensors: The tensors by name.
        why: Why other names are unknown; None for a list of the names that are known.
    """
    return NamedTensors(tensors, type(algorithm).__name__, source, why)


def check_assigned(given: Mapping[str, Tensor], method: str, returned: Mapping[str, Tensor]) -> None:
    """Refuse a method that assigns a name of the dictionary that it was given and does not return it.

    Raises:
        ValueError: If there is such a name.
    """
    if not isinstance(given, NamedTensors):
        return
    for name in given.assigned:
        if name not in returned:
            what = f"{given.source}[{name!r}]"
            raise ValueError(
                f"{given.owner}: '{method}' must return {name!r} because assigning {what} changes nothing; use "
                f"return …, {{{name!r}: …}}"
            )
