"""Where a model draws from PyTorch's global generator."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

import torch
from torch import nn
from torch.overrides import TorchFunctionMode, resolve_name

from .vectorisation_errors import failing_module


def generator_state(device: torch.device) -> torch.Tensor:
    """Return the state of PyTorch's global generator on a device."""
    return torch.cuda.get_rng_state(device) if device.type == "cuda" else torch.get_rng_state()


class _Draws(TorchFunctionMode):
    """Finds the first function that changes the state of the generator."""

    def __init__(self, model: nn.Module, device: torch.device) -> None:
        super().__init__()
        self._model, self._device = model, device
        self.found: str | None = None

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if self.found is not None:
            return func(*args, **kwargs or {})
        before = generator_state(self._device)
        result = func(*args, **kwargs or {})
        if not torch.equal(before, generator_state(self._device)):
            where = failing_module(reversed(list(_callers(sys._getframe(1)))), self._model)
            name = resolve_name(func) or getattr(func, "__name__", "a function")
            self.found = f"{name} in {where}" if where else name
        return result


def _callers(frame: FrameType | None) -> Iterator[FrameType]:
    while frame is not None:
        yield frame
        frame = frame.f_back


def drawing_function(forward: Callable[[], object], model: nn.Module, device: torch.device) -> str | None:
    """Return the first function within `forward` that draws, and the module that calls it; None if none does."""
    mode = _Draws(model, device)
    with mode:
        forward()
    return mode.found


def refusal(where: str | None) -> str:
    """Return why a model that draws from the global generator is refused, and what to do.

    Args:
        where: What `drawing_function` returned.
    """
    return (
        f"Cannot train the model because it draws from PyTorch's global generator{f' ({where})' if where else ''}, so "
        "its runs would not repeat; use dropout (F.dropout or nn.Dropout), which gets random streams of its own, in "
        "place of other noise: F.dropout(x.new_ones(len(x), 1), p, self.training) drops whole samples, as stochastic "
        "depth does"
    )
