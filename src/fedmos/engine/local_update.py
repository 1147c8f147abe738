"""Local work: what happens between a client's receiving x and its sending an update."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from ..algorithm import Algorithm, ClientContext, Vectors
from .gradients import LocalGradient

_PLAIN_STEP = Algorithm.step
"""The contract's default, y − η g(y), which a gradient may have a faster way to take."""

Watch = Callable[[LocalGradient, int, Tensor, Tensor], None]
"""Sees every local step: whose, which, the models before it and after it."""


def local_work(
    algorithm: Algorithm, c: ClientContext, grad: LocalGradient, watch: Watch | None = None
) -> tuple[Vectors, Vectors]:
    """Uploads and new state of one client, (D,), or of a chunk of clients, (M, D)."""
    plain = getattr(algorithm.step, "__func__", None) is _PLAIN_STEP
    y = grad.start(c.x)
    s = algorithm.begin(y, c, grad)
    for k in range(grad.batches.steps):
        grad.k = k
        y_next, s_next = (grad.descend(y, c.lr), s) if plain else algorithm.step(y, s, c, grad, k)
        if grad.ragged and k >= grad.task.least_steps:
            active = grad.active(k)[:, None]
            y_next = torch.where(active, y_next, y)
            s_next = {n: torch.where(active, v, s[n]) if n in s else v for n, v in s_next.items()}
        if watch is not None:
            watch(grad, k, y, y_next)
        y, s = y_next, s_next
    grad.k = None
    return algorithm.finish(y, s, c, grad)
