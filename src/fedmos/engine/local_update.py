"""The local update: what a client does between receiving x and sending its upload."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..algorithm import Algorithm, ClientContext, Vectors
from ..core.method_checks import changed_in_place, check_direction, check_pair, kind_of, naming_errors, unchanged
from .backend import StepObserver
from .declaration import check_model, check_names, check_start
from .gradients import LocalGradient
from .named_tensors import check_assigned, named

_Y = "the client's model"
"""The name of y beside those of s."""


def local_update(
    algorithm: Algorithm, c: ClientContext, grad: LocalGradient, observer: StepObserver | None = None
) -> tuple[Vectors, Vectors]:
    """Return the uploads and the new state of one client, (D,), or of a chunk of clients, (M, D)."""
    y = grad.start(_start(algorithm, c))
    with unchanged(algorithm, "begin", {"y": y}):
        s = algorithm.begin(y, c, grad)
    check_names(algorithm, "begin", s, s if isinstance(s, dict) else ())
    method = "direction" if _is_default(algorithm, "step") else "step"
    plain = method == "direction" and _is_default(algorithm, "direction")
    for k in range(grad.batches.steps):
        grad.k = k
        y_next, s_next = (grad.descend(y, c.lr), s) if plain else _step(algorithm, method, y, s, c, grad, k)
        if grad.ragged and k >= grad.task.least_steps:
            active = grad.active(k)
            y_next = torch.where(active[:, None], y_next, y)
            _check_scratch(algorithm, method, s_next)
            s_next = {n: _where(active, v, s[n], y) if n in s else v for n, v in s_next.items()}
        if observer is not None:
            observer(grad, k, y, y_next)
        y, s = y_next, s_next
    grad.k = None
    with unchanged(algorithm, "finish", {"y": y, "s": s}):
        finished = algorithm.finish(y, named(algorithm, "s", s), c, grad)
    check_pair(algorithm, "finish", finished)
    check_assigned(c.own, "finish", finished[1])
    return finished


def _step(
    algorithm: Algorithm, method: str, y: Tensor, s: Vectors, c: ClientContext, grad: LocalGradient, k: int
) -> tuple[Tensor, Vectors]:
    """Take local step k by a method of the algorithm, "step" or "direction", and check what it returns."""
    # A step that changes y in place and returns it is harmless in the loop, where y belongs to one client.
    fixed = s if method == "step" and not grad.ragged else {**s, _Y: y}
    before = _versions(fixed)
    with naming_errors(algorithm, method):
        returned = getattr(algorithm, method)(y, named(algorithm, "s", s), c, grad, k)
    if _versions(fixed) != before:
        name = next(name for name, old in before.items() if fixed[name]._version != old)
        raise changed_in_place(algorithm, method, "y" if name == _Y else f"s[{name!r}]")
    check_pair(algorithm, method, returned)
    y_next, s = returned
    if method == "direction":
        check_direction(algorithm, y_next, y)
        y_next = grad.move(y, c.lr, y_next)
    check_model(algorithm, method, y_next, y.shape)
    return y_next.to(y.dtype), s  # random numbers are float64


def _start(algorithm: Algorithm, c: ClientContext) -> Tensor:
    """Return the model at which local training starts."""
    if not callable(algorithm.start):  # a field of that name hides the method
        return c.x
    y = algorithm.start(c)
    check_start(algorithm, y, c)
    return y.to(c.K.dtype)


def _versions(tensors: Vectors) -> dict[str, int]:
    """Return how often each tensor has been changed in place."""
    return {name: v._version for name, v in tensors.items() if isinstance(v, Tensor)}


def _is_default(algorithm: Algorithm, method: str) -> bool:
    return getattr(getattr(algorithm, method), "__func__", None) is getattr(Algorithm, method)


def _check_scratch(algorithm: Algorithm, method: str, s: Vectors) -> None:
    """Check that clients with different numbers of steps can each keep their own values."""
    for name, v in s.items():
        if not isinstance(v, Tensor | int | float | None):
            raise ValueError(
                f"{type(algorithm).__name__}: '{method}' must return tensors and numbers in s where "
                f"clients have different numbers of steps, got {kind_of(v)} as s[{name!r}]"
            )


def _where(active: Tensor, new: Any, old: Any, y: Tensor) -> Any:
    """Return the new rows of active clients and the old rows of the others, of tensors or numbers.

    A Python number counts for every client. Where it changes, it becomes a column of the dtype of y, as c.K is one.
    """
    if not isinstance(new, Tensor) and not isinstance(old, Tensor):
        if isinstance(new, bool) or new == old:
            return new if new == old else torch.where(active[:, None], new, old)
        new, old = y.new_full((), new), y.new_full((), old)
    axes = max(new.ndim, 2) if isinstance(new, Tensor) else 2
    return torch.where(active.view(-1, *[1] * (axes - 1)), new, old)
