"""Tensors that a vectorised model makes and then changes in place or views, where `vmap` has no rule for that.

A tensor that a model makes, by `torch.zeros` for example, has no client axis. A model that writes values of a client
to it is computed again with such an axis in the new tensors of that line of code. So is a model that calls `view` on
images that our layers store channels last: those of that line are stored in PyTorch's default layout.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Hashable
from contextlib import AbstractContextManager, nullcontext
from types import FrameType
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch._C._functorch import get_unwrapped, is_functorch_wrapped_tensor
from torch.overrides import TorchFunctionMode

from ..kernels.client_axis import is_vectorised
from .cohort_functions import REPLACED

Result = TypeVar("Result")

_OPERATORS = {f"__i{name}__" for name in ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "and", "or", "xor")}


class CohortTensors:
    """What is known about the tensors that a model makes and changes in place."""

    def __init__(self) -> None:
        self.needed = False
        """Whether the model calls a function that is replaced here."""
        self._places: set[Hashable] = set()
        """The lines of code whose new tensors are copied to tensors with a client axis in the default layout."""

    def retried(self, forward: Callable[[AbstractContextManager[Any]], Result], like: Tensor) -> Result:
        """Return the result of a vectorised forward pass, repeated until every tensor can be changed and viewed.

        Args:
            forward: Computes the pass within a context.
            like: A tensor with a client axis.
        """
        try:
            return forward(_OwnTensors(self._places, like, search=False) if self.needed else nullcontext())
        except torch.OutOfMemoryError:
            raise
        except RuntimeError as error:
            first = error
        while True:
            mode = _OwnTensors(self._places, like, search=True)
            try:
                result = forward(mode)
            except RuntimeError:
                if mode.changed is None or mode.changed in self._places:
                    raise first from None
                self._places.add(mode.changed)
                continue
            self.needed = True
            return result


class _OwnTensors(TorchFunctionMode):
    """Copies the new tensors of some lines of code, and finds the lines whose tensors need that."""

    def __init__(self, places: set[Hashable], like: Tensor, search: bool) -> None:
        """Make the context of one forward pass.

        Args:
            places: The lines of code whose new tensors are copied.
            like: A tensor with a client axis.
            search: Whether to note which line made each tensor.
        """
        super().__init__()
        self._places, self._like, self._search = places, like, search
        self._makers: dict[int, Hashable] = {}
        """By the address of a tensor, the line that made it."""
        self.changed: Hashable = None
        """The line that made the tensor that was changed or viewed last."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if self._search and _needs_copy(func, args):
            self.changed = self._makers.get(_address(args[0]), self.changed)
        if func in REPLACED:
            result = REPLACED[func](*args, **kwargs)
            if result is not NotImplemented:
                return result
        result = func(*args, **kwargs)
        if not (self._search or self._places) or not isinstance(result, Tensor):
            return result
        address, place = _address(result), _lines()
        if any(address == _address(v) for v in _tensors(args)):
            return result  # the same tensor, or a view of it
        if place in self._places:
            return self._like.new_empty(result.shape, dtype=result.dtype, device=result.device).copy_(result)
        self._makers[address] = place
        return result


def _needs_copy(func: Any, args: Any) -> bool:
    """Whether a function may fail for a tensor without a client axis, or for one in another layout."""
    if func in (Tensor.view, Tensor.view_as, Tensor.unflatten, torch.unflatten):
        return is_vectorised(args[0])
    return _is_in_place(func) and not is_vectorised(args[0])


def _is_in_place(func: Any) -> bool:
    name = getattr(func, "__name__", "")
    return name == "__setitem__" or name in _OPERATORS or (name.endswith("_") and not name.endswith("__"))


def _address(v: Tensor) -> int:
    while is_functorch_wrapped_tensor(v):
        v = get_unwrapped(v)
    return v.untyped_storage()._cdata if v.layout is torch.strided else id(v)


def _tensors(args: Any) -> list[Tensor]:
    return [v for a in args for v in (a if isinstance(a, list | tuple) else (a,)) if isinstance(v, Tensor)]


def _lines() -> Hashable:
    """Return the lines of the model's code that called `__torch_function__`, innermost first.

    Frames by which PyTorch calls modules do not count: there are others while a program is traced.
    """
    lines: list[tuple[object, int]] = []
    frame: FrameType | None = sys._getframe(2)
    while frame is not None and len(lines) < 3:
        name = frame.f_globals.get("__name__", "")
        if name == "torch._functorch.functional_call":
            break  # the call of the model
        if name != "torch.nn.modules.module" and not name.startswith("torch.fx."):
            lines.append((frame.f_code, frame.f_lineno))
        frame = frame.f_back
    return tuple(lines)
