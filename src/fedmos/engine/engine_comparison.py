"""A comparison of the gradients of both engines before the first round."""

from __future__ import annotations

import torch
from torch import Tensor

from .batched import Batched
from .batches import Chunk
from .loop import Loop
from .task import Task

_SAMPLES, _MOST_SAMPLES = 2, 16
_TOLERANCES = {torch.float64: 1e-6, torch.float32: 1e-2}
_TOLERANCE_OF_SHORT_PRODUCTS = 0.3


@torch.no_grad()
def why_different(task: Task) -> str | None:
    """Return why vectorised training would compute something else than the loop; None if gradients agree.

    Models may do something else under `torch.func.vmap`: by `try` and `except`, or in a rule of their own. Gradients
    are compared at two models, because that of a trained model may be rounding only.
    """
    x = task.model.initial()
    differences = []
    for y in (x, 0.9 * x):
        differences.append(_difference(task, y))
        if differences[-1] <= _tolerance(task):
            return None
    return (
        f"its gradient differs from that of client by client training by {100 * min(differences):.3g}% (an "
        "exception that the model catches, a vmap rule of its own that is wrong, or a use of the size of the batch?)"
    )


def _tolerance(task: Task) -> float:
    return _TOLERANCES[task.model.dtype] if task.model.precision is None else _TOLERANCE_OF_SHORT_PRODUCTS


def _difference(task: Task, y: Tensor) -> float:
    """Return the relative distance of both gradients of a few clients on a few samples, padding included."""
    sizes = task.data.sizes
    ids = torch.tensor(sorted({0, min(1, len(sizes) - 1), int(sizes.argmin()), int(sizes.argmax())}))
    b = max(_SAMPLES, task.model.least_batch)
    if int(sizes.min()) < task.largest_batch:  # the smallest client is padded if it has fewer samples than others
        b = max(b, min(int(sizes.min()) + 1, _MOST_SAMPLES))
    together = Batched(task, Chunk.of(task, ids), 0)
    found = together.loss_and_gradient(y, together.batches.first(b)).gradient
    alone = []
    for i in ids.split(1):
        loop = Loop(task, Chunk.of(task, i), 0)
        alone.append(loop.loss_and_gradient(y, loop.batches.first(b)).gradient)
    expected = torch.stack(alone)
    if not bool(expected.isfinite().all()):
        return 0.0  # training says what is wrong
    difference = float((found - expected).norm() / expected.norm().clamp(min=torch.finfo(y.dtype).tiny))
    return difference if difference == difference else float("inf")
