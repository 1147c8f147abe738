"""The dictionaries that the methods of an algorithm receive, and checks that methods leave them unchanged."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
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

    __slots__ = ("owner", "source", "why")

    def __init__(self, tensors: Mapping[str, Tensor], owner: str, source: str, why: str | None) -> None:
        super().__init__(tensors)
        self.owner, self.source, self.why = owner, source, why

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


@contextmanager
def unchanged(algorithm: Algorithm, method: str, given: Mapping[str, Tensor | Mapping[str, Tensor]]) -> Iterator[None]:
    """Refuse a method that changes one of its tensors in place."""
    tensors = {
        f"{argument}[{name!r}]" if name else argument: tensor
        for argument, value in given.items()
        for name, tensor in (value.items() if isinstance(value, Mapping) else [("", value)])
        if isinstance(tensor, Tensor)
    }
    before = [v._version for v in tensors.values()]
    with refusing_writes(algorithm, method):
        yield
    for (name, tensor), version in zip(tensors.items(), before, strict=True):
        if tensor._version != version:
            raise changed_in_place(algorithm, method, name)


@contextmanager
def refusing_writes(algorithm: Algorithm, method: str) -> Iterator[None]:
    """Raise PyTorch's error about writing into a tensor whose rows share memory as one that says what to do."""
    try:
        yield
    except RuntimeError as error:
        if "single memory location" not in str(error):
            raise
        raise changed_in_place(algorithm, method, "a tensor") from error


def changed_in_place(algorithm: Algorithm, method: str, what: str) -> ValueError:
    """Return the error for a method that changes a tensor that it was given."""
    return ValueError(
        f"{type(algorithm).__name__}: '{method}' must not change {what} in place (y -= …, add_, v[i] = …); use a new "
        "tensor (y = y - …) or a clone"
    )
