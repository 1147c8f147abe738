"""Classes of the user whose methods take sums, norms or extremes, which may be those of a whole cohort."""

from __future__ import annotations

import inspect
import types
from collections.abc import Iterator
from typing import Any

# fmt: off
_REDUCTIONS = frozenset((
    "sum", "mean", "norm", "vector_norm", "std", "var", "max", "amax", "maximum", "min", "amin", "median",
    "quantile", "prod", "logsumexp", "softmax", "normalize", "cosine_similarity", "dot", "vdot", "inner",
    "matmul", "mm", "einsum", "topk", "kthvalue", "sort", "argsort", "argmax", "argmin", "cumsum", "numel",
))
# fmt: on
_LIBRARIES = ("fedmos", "torch", "numpy", "abc", "builtins", "typing")
_DEPTH = 3
"""How deep functions that a method calls are searched."""


def reduces(obj: Any) -> bool:
    """Whether a method that the user wrote for the class of an object, or a function that it calls, reduces tensors."""
    own = [kind for kind in type(obj).__mro__ if not _of_library(kind)]
    return any(_mentions(function, _DEPTH) for kind in own for function in _functions(kind))


def _functions(kind: type[Any]) -> Iterator[types.FunctionType]:
    for value in vars(kind).values():
        function = value.fget if isinstance(value, property) else inspect.unwrap(getattr(value, "__func__", value))
        if isinstance(function, types.FunctionType):
            yield function


def _mentions(function: types.FunctionType, depth: int) -> bool:
    names = _names(function.__code__)
    if names & _REDUCTIONS:
        return True
    called = [v for name in names if isinstance(v := function.__globals__.get(name), types.FunctionType)]
    return depth > 0 and any(_mentions(v, depth - 1) for v in called if not _of_library(v))


def _names(code: types.CodeType) -> set[str]:
    inner = (c for c in code.co_consts if isinstance(c, types.CodeType))
    return {*code.co_names, *(name for c in inner for name in _names(c))}


def _of_library(v: Any) -> bool:
    return str(v.__module__).split(".")[0] in _LIBRARIES
