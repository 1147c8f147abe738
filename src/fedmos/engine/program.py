"""The cohort's gradient as one tensor program: `vmap` over clients, and that compiled where it pays."""

from __future__ import annotations

import logging
import shutil
from collections.abc import Callable
from time import perf_counter

import torch
from torch import Tensor
from torch.func import grad_and_value, vmap

from ..losses import Loss
from ..params import FlatModel

_log = logging.getLogger("fedmos")

Values = tuple[Tensor, Tensor]


class Program:
    """(y, inputs, targets, weight, keys) → each client's gradient, (M, D), and weighted loss, (M,).

    Compiled, it is first traced into plain tensor operations (which leaves nothing of `vmap` and `grad` but what they
    compute), once for every shape, and then handed to `torch.compile`.
    """

    def __init__(self, model: FlatModel, loss: Loss, compiled: bool) -> None:
        self._model, self._loss, self.compiled = model, loss, compiled
        self._made: dict[object, Callable[..., Values]] = {}
        self.seconds = 0.0
        """Spent on compiling."""

    def __call__(self, y: Tensor, inputs: Tensor, targets: Tensor, weight: Tensor, keys: Tensor | None) -> Values:
        arguments = (y, inputs, targets, weight) if keys is None else (y, inputs, targets, weight, keys)
        if not self.compiled:
            return vmap(grad_and_value(self._weighted))(*arguments)
        shape = tuple((a.shape, a.stride()) for a in arguments), self._model.module.training
        if shape not in self._made:
            self._made[shape] = self._compile(*arguments)
        return self._made[shape](*arguments)

    def _weighted(self, y: Tensor, inputs: Tensor, targets: Tensor, weight: Tensor, *keys: Tensor) -> Tensor:
        return (weight * self._loss.each(self._model(y, inputs, *keys), targets)).sum()

    def _compile(self, *arguments: Tensor) -> Callable[..., Values]:
        from torch import _inductor
        from torch.fx.experimental.proxy_tensor import make_fx

        began = perf_counter()
        traced = make_fx(vmap(grad_and_value(self._weighted)))(*arguments)
        with torch.no_grad():
            # The compiler behind torch.compile, called directly: there is nothing left for its front end to find out.
            program: Callable[..., Values] = _inductor.compile(traced, list(arguments))
            program(*arguments)
        self.seconds += perf_counter() - began
        return program


def can_compile(device: torch.device) -> bool:
    """Whether this machine has what `torch.compile` needs."""
    if device.type == "cuda":
        return torch.cuda.get_device_capability(device) >= (7, 0)
    return device.type == "cpu" and any(shutil.which(name) for name in ("g++", "clang++"))
