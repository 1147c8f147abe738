"""Checks of the methods of a user's class: what they return, and that they leave their tensors unchanged."""

from __future__ import annotations

import traceback
from collections.abc import Mapping
from typing import Any

from torch import Tensor

from .composition import is_pair
from .formatting import format_value

_ONE_VALUE = (
    "Boolean value of Tensor with more than one value",
    "only one element tensors can be converted to Python scalars",
    "elements cannot be converted to Scalar",
)
"""What errors of PyTorch about a tensor of several values contain."""
_GRADIENTS = "fedmos.engine.gradients"
"""The module through which methods call gradients."""


class naming_errors:
    """A context that raises PyTorch's errors about what a cohort does not allow as errors that say what to do.

    Those are writing into a tensor whose rows share memory, and branching on the numbers of several clients. Contexts
    that are classes take a third of the time of generators; several are entered in every step.
    """

    def __init__(self, obj: object, method: str) -> None:
        self._obj, self._method = obj, method

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if not isinstance(error, RuntimeError | ValueError):
            return
        if "single memory location" in str(error):
            raise changed_in_place(self._obj, self._method, "a tensor") from error
        if any(sign in str(error) for sign in _ONE_VALUE) and not _from_gradient(error):
            raise ValueError(
                f"{type(self._obj).__name__}: '{self._method}' must not read the value of a tensor, by `if`, int(), "
                "float() or .item(), because a cohort has one for each client; compute with tensors, by torch.where "
                "for example"
            ) from error


class unchanged(naming_errors):
    """A context that also refuses a method that changes one of its tensors in place."""

    def __init__(self, obj: object, method: str, given: Mapping[str, Tensor | Mapping[str, Tensor]]) -> None:
        super().__init__(obj, method)
        self._before = [
            (argument, name, tensor, tensor._version)
            for argument, value in given.items()
            for name, tensor in (value.items() if isinstance(value, Mapping) else ((None, value),))
            if isinstance(tensor, Tensor)
        ]

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        super().__exit__(kind, error, trace)
        for argument, name, tensor, version in self._before:
            if error is None and tensor._version != version:
                what = argument if name is None else f"{argument}[{name!r}]"
                raise changed_in_place(self._obj, self._method, what)


def _from_gradient(error: Exception) -> bool:
    """Whether the model or the loss raised the error, in a gradient that the method called."""
    frames = traceback.walk_tb(error.__traceback__)
    return any(frame.f_globals.get("__name__") == _GRADIENTS for frame, _ in frames)


def reads_one_value(error: BaseException) -> bool:
    """Whether an error, or its cause, says that the value of a tensor of several numbers was read."""
    return any(sign in f"{error} {error.__cause__}" for sign in _ONE_VALUE)


def changed_in_place(obj: object, method: str, what: str) -> ValueError:
    """Return the error for a method that changes a tensor that it was given."""
    return ValueError(
        f"{type(obj).__name__}: '{method}' must not change {what} in place (y -= …, add_, v[i] = …); use a new tensor "
        "(y = y - …) or a clone"
    )


def check_pair(obj: object, method: str, got: Any) -> None:
    """Check that a method returned two values, of which the second is a dictionary."""
    if not is_pair(got):
        first = {"finish": "uploads, a dictionary,", "server": "the model"}.get(method, "a tensor")
        raise ValueError(
            f"{type(obj).__name__}: '{method}' must return {first} and a dictionary of tensors, got {kind_of(got)}"
        )


def check_direction(obj: object, got: Any, y: Tensor) -> None:
    """Check that `direction` returned a vector for each client, or one for all."""
    if not isinstance(got, Tensor) or got.shape[-1:] != y.shape[-1:]:
        raise ValueError(
            f"{type(obj).__name__}: 'direction' must return a direction of shape {tuple(y.shape)}, got {kind_of(got)}"
        )


def kind_of(v: Any) -> str:
    """Return what a method returned, in the words of an error."""
    if isinstance(v, Tensor):
        return f"a tensor of shape {tuple(v.shape)}"
    if isinstance(v, tuple):
        return f"{len(v)} values ({', '.join(kind_of(item) for item in v)})" if v else "no value"
    return f"a {type(v).__name__}" if isinstance(v, dict) else format_value(v)
