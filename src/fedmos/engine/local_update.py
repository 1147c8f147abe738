"""The local update: what a client does between receiving x and sending its upload."""

from __future__ import annotations

import torch

from ..algorithm import Algorithm, ClientContext, Vectors
from .backend import StepObserver
from .gradients import LocalGradient

_PLAIN_STEP = Algorithm.step
"""The default step, y − η g(y), which a gradient object may compute faster."""


def local_update(
    algorithm: Algorithm, c: ClientContext, grad: LocalGradient, observer: StepObserver | None = None
) -> tuple[Vectors, Vectors]:
    """Return the uploads and the new state of one client, (D,), or of a chunk of clients, (M, D)."""
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
        if observer is not None:
            observer(grad, k, y, y_next)
        y, s = y_next, s_next
    grad.k = None
    return algorithm.finish(y, s, c, grad)
