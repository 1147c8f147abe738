"""The cohort's gradient as one tensor program: `vmap` over clients, optionally compiled."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..core.flat_model import FlatModel
from ..core.losses import Loss
from ..core.vectorisation_errors import CannotVectorise, problem_of
from ..kernels.convolution import vectorised
from .compiled import CannotCompile, Compiled
from .differentiation import cohort_gradient
from .recorded import Recorded

_log = logging.getLogger("fedmos")

Values = tuple[Tensor, ...]
"""Gradients, or models after a step, losses and, where clients keep statistics, the new statistics."""


class ClientStatistics(NamedTuple):
    """Running statistics of BatchNorm layers, and the samples that a batch adds to them."""

    share: Tensor
    """(M, B): the share of each sample in the statistics of the batch, zero for padding."""
    rows: Tensor
    """(M, n): the running statistics of each client."""


class Program:
    """(y, inputs, targets, weight, keys) → each client's gradient, (M, D), and weighted loss, (M,).

    Where the model has BatchNorm layers with client statistics, it takes them and returns them after the batch, too.
    """

    def __init__(
        self, model: FlatModel, loss: Loss, weight_decay: float, compiled: bool, clip: float | None = None
    ) -> None:
        self._model, self._loss, self._compiled = model, loss, compiled
        self._weight_decay, self._clip = weight_decay, clip
        self._tracks = model.has_client_statistics
        self._function: Callable[..., Values] = self._vectorised()
        self._recorded = Recorded(self._function)
        self._gradient, self._descent = Compiled(self._function), Compiled(self._descend)
        self._regularisation, self._movement, self._ascent = (
            Compiled(self._regularise),
            Compiled(_move),
            Compiled(_climb),
        )
        self.descends = True
        """False once `descend` failed to compile."""
        self.follows = False
        """Whether a value that the model or the loss reads has changed, so that no recorded program may be used."""

    def follow_values(self) -> None:
        """Compile and replay no more: the model or the loss reads values that change during the run."""
        if self._compiled:
            _log.warning(
                "Not compiling any more because a value that the model or the loss reads (a global variable, a closure "
                "or an attribute) has changed, and a compiled program would go on with the old one"
            )
        self._compiled, self.follows = False, True

    @property
    def compiles(self) -> bool:
        return self._compiled and self._model.training

    @property
    def fuses(self) -> bool:
        """Whether arithmetic on the parameters of all clients is compiled, too.

        On a GPU, each operation by itself passes all of them through memory again.
        """
        return self.compiles and self._model.device.type == "cuda"

    @property
    def seconds(self) -> float:
        """The time spent on compilation."""
        return sum(program.seconds for program in self._programs)

    @property
    def compilations(self) -> dict[str, float]:
        """The programs that were compiled: their number of operations by their hash."""
        return {key: count for program in self._programs for key, count in program.compilations.items()}

    @property
    def _programs(self) -> tuple[Compiled, ...]:
        return self._gradient, self._descent, self._regularisation, self._movement, self._ascent

    def _vectorised(self) -> Callable[..., Values]:
        loss = self._weighted_with_statistics if self._tracks else self._weighted
        gradient = cohort_gradient(loss, has_aux=self._tracks, frugal=self._model.has_frozen)

        def flat(*arguments: Any) -> Values:
            with vectorised.on(), self._without_warnings():
                found = gradient(*arguments)
            return (found[0], *found[1]) if self._tracks else found

        return flat

    def __call__(
        self,
        y: Tensor,
        inputs: Tensor,
        targets: Tensor,
        weight: Tensor,
        keys: Tensor | None,
        statistics: ClientStatistics | None = None,
    ) -> Values:
        arguments = (self._laid_out(y), inputs, targets, weight, *_given(keys, statistics))
        try:
            try:
                return self._used(*arguments)
            except CannotCompile as error:
                _log.warning("Not compiling because it fails: %s", error)
                self._compiled = False
                return self._used(*arguments)
        except RuntimeError as error:
            problem = problem_of(error, self._model.module, self._loss.name)
            if problem is None:
                raise
            raise CannotVectorise(problem) from error

    @contextmanager
    def _without_warnings(self) -> Iterator[None]:
        """Suppress what `vmap` says about each of the model's `slow_operations`, which the log mentions."""
        if not self._model.slow_operations:
            yield
            return
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="There is a performance drop")
            yield

    @property
    def _used(self) -> Callable[..., Values]:
        """The program as it is called: compiled, recorded on a CPU, or as it is.

        A user's loss may depend on more than its arguments; a CUDA graph records everything.
        """
        if self.compiles:
            return self._gradient
        plain = self._model.device.type != "cpu" or not self._model.training or not self._loss.is_pytorch
        return self._function if plain or self.follows else self._recorded

    def descend(
        self,
        lr: Tensor,
        y: Tensor,
        inputs: Tensor,
        targets: Tensor,
        weight: Tensor,
        keys: Tensor | None,
        statistics: ClientStatistics | None = None,
    ) -> Values:
        """Take an SGD step and return the losses, compiled as one program that never stores the whole gradient."""
        arguments = (lr, self._laid_out(y), inputs, targets, weight, *_given(keys, statistics))
        values: Values = self._descent(*arguments)
        return values

    def regularise(self, g: Tensor, y: Tensor) -> Tensor:
        """Return clip(g) + weight_decay · y in one pass after the norm's."""
        regularised: Tensor = self._regularisation(g, y, g.norm(dim=-1, keepdim=True))
        return regularised

    def move(self, y: Tensor, lr: Tensor, d: Tensor) -> Tensor:
        """Return y − lr · d in one pass."""
        moved: Tensor = self._movement(y, lr, d)
        return moved

    def climb(self, y: Tensor, g: Tensor, radius: float) -> Tensor:
        """Return y + radius · g/‖g‖ in one pass after the norm's."""
        norm = g.norm(dim=-1, keepdim=True).clamp(min=torch.finfo(g.dtype).tiny)
        reached: Tensor = self._ascent(y, g, norm, norm.new_full((), radius))
        return reached

    def _laid_out(self, y: Tensor) -> Tensor:
        """Return y with a row of its own for each client: shared rows would be compiled or recorded apart."""
        return y.contiguous() if self.compiles or self._model.device.type == "cpu" else y

    def _regularise(self, g: Tensor, y: Tensor, norm: Tensor) -> Tensor:
        g = g if self._clip is None else g * (self._clip / norm.clamp(min=self._clip))
        return g + self._weight_decay * y if self._weight_decay else g

    def _descend(self, lr: Tensor, y: Tensor, *batch: Tensor) -> Values:
        parts = self._model.split(y)
        gradient, *rest = self._function(parts, *batch)  # split, so that each parameter's step is written in place
        decay = self._weight_decay
        new = [v - lr * (g + decay * v if decay else g) for v, g in zip(parts, gradient, strict=True)]
        return torch.cat(new, dim=-1), *rest

    def _weighted(
        self, y: Tensor | tuple[Tensor, ...], inputs: Tensor, targets: Tensor, weight: Tensor, *keys: Tensor
    ) -> Tensor:
        return self._loss_of(self._model(y, inputs, *keys), targets, weight)

    def _weighted_with_statistics(
        self,
        y: Tensor | tuple[Tensor, ...],
        inputs: Tensor,
        targets: Tensor,
        weight: Tensor,
        share: Tensor,
        statistics: Tensor,
        *keys: Tensor,
    ) -> tuple[Tensor, Tensor]:
        outputs, new = self._model.with_statistics(y, statistics, inputs, share, *keys)
        return self._loss_of(outputs, targets, weight), new

    def _loss_of(self, outputs: Tensor, targets: Tensor, weight: Tensor) -> Tensor:
        faster = self._model.device.type == "cpu" and not self.compiles
        weighted = self._loss.weighted_under_vmap if faster else self._loss.weighted
        return weighted(outputs, targets, weight)


def _given(keys: Tensor | None, statistics: ClientStatistics | None) -> tuple[Tensor, ...]:
    """Return the optional arguments of a program that are given."""
    return (*(statistics or ()), *(() if keys is None else (keys,)))


def _move(y: Tensor, lr: Tensor, d: Tensor) -> Tensor:
    return y - lr * d


def _climb(y: Tensor, g: Tensor, norm: Tensor, radius: Tensor) -> Tensor:
    return y + radius * (g / norm)
