"""The values that functions of the user read beside their arguments: closures, global variables, attributes.

A program that is compiled, or captured as a CUDA graph, goes on with the values that it was traced with.
"""

from __future__ import annotations

import functools
import types
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from .module_state import SameObject

_DEPTH = 6
_MOST_ITEMS, _MOST_VALUES = 256, 2000
"""The largest container whose items are compared, and the number of values that are compared by more than identity."""
_PLAIN = (bool, int, float, complex, str, bytes, type(None), torch.dtype, torch.device)


class FunctionWatch:
    """Notices whether the values that functions read change.

    Args:
        functions: The functions, or callable objects. Functions of libraries that they call are not looked into.
    """

    def __init__(self, functions: Iterable[Any]) -> None:
        self._functions = [f for f in functions if not _is_library(f)]
        self._first = self._state()
        self.changed = False
        """Whether a value has changed since the beginning; set by `look`."""

    def look(self) -> bool:
        """Return whether a value has changed since the beginning."""
        self.changed = self.changed or self._state() != self._first
        return self.changed

    def _state(self) -> list[Any]:
        return [function_state(f) for f in self._functions]


def model_functions(model: nn.Module) -> Iterator[Any]:
    """Yield the functions of a module's own code: `forward` methods, hooks, and functions that are attributes."""
    for part in model.modules():
        yield type(part).forward
        hooks = (part._forward_hooks, part._forward_pre_hooks)
        for value in (*vars(part).values(), *(hook for found in hooks for hook in found.values())):
            if isinstance(value, types.FunctionType | functools.partial):
                yield value


def function_state(function: Any) -> Any:
    """Return a value that is equal as long as what a function or callable object reads is."""
    return _ValueReader().token(function, _DEPTH)


def _is_library(v: Any) -> bool:
    module = getattr(v, "__module__", None) or ""
    return isinstance(v, str) or module.split(".")[0] in ("torch", "numpy", "fedmos", "transformers", "peft")


class _ValueReader:
    """Describes values by tokens, of which a bounded number are made: what follows is compared by identity."""

    def __init__(self) -> None:
        self._left = _MOST_VALUES
        self._within: list[int] = []
        """The objects that are being described, which may refer to themselves."""

    def token(self, v: Any, depth: int) -> Any:
        """Return a token of a value that is equal as long as the value, and what it holds down to a depth, is."""
        self._left -= 1
        if isinstance(v, _PLAIN):
            return (type(v), repr(v))
        if isinstance(v, Tensor):
            return SameObject(v, v._version)
        if depth == 0 or self._left < 0 or id(v) in self._within or isinstance(v, type | types.ModuleType):
            return SameObject(v)
        if isinstance(v, np.ndarray | np.generic):
            return (v.shape, v.tobytes()) if v.size <= _MOST_ITEMS and v.dtype != object else SameObject(v)
        self._within.append(id(v))
        parts = [self.token(part, depth - 1) for part in _parts(v)]
        self._within.pop()
        return [SameObject(v) if isinstance(v, list | dict) else type(v), parts] if parts else SameObject(v)


def _parts(v: Any) -> list[Any]:
    """Return what a value holds, or what a function reads; [] where that is not looked into."""
    if isinstance(v, Mapping | list | tuple | set | frozenset):
        items = [*v.keys(), *v.values()] if isinstance(v, Mapping) else list(v)
        return [len(items), *items] if len(items) <= _MOST_ITEMS else []
    if isinstance(v, types.MethodType):
        return [v.__func__, v.__self__]
    if isinstance(v, functools.partial):
        return [v.func, v.args, v.keywords]
    if isinstance(v, types.FunctionType):
        return [] if _is_library(v) else _read(v)
    if _is_library(v) or not hasattr(v, "__dict__"):
        return []
    method = type(v).forward if isinstance(v, nn.Module) else getattr(type(v), "__call__", None)  # noqa: B004
    return [vars(v), *([method] if isinstance(method, types.FunctionType) else [])]


def _read(function: types.FunctionType) -> list[Any]:
    """Return the values of a function's closure, global variables and defaults."""
    cells = [_contents(cell) for cell in function.__closure__ or ()]
    given = function.__globals__
    read = [given[name] for name in sorted(_names(function.__code__)) if name in given]
    return [function.__code__.co_name, *cells, *read, *(function.__defaults__ or ()), function.__kwdefaults__]


def _contents(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # an empty cell
        return None


def _names(code: types.CodeType) -> set[str]:
    inner = (c for c in code.co_consts if isinstance(c, types.CodeType))
    return {*code.co_names, *(name for c in inner for name in _names(c))}
