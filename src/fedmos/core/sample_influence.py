"""Whether the outputs of a model for a sample depend on the other samples of its batch, found out on a few samples."""

from __future__ import annotations

from contextlib import nullcontext

import torch
from torch import Tensor

from .flat_model import FlatModel

ROWS, MORE_ROWS = 3, 5
"""Two batch sizes; axes whose size follows the batch size hold samples."""


def repeated(inputs: Tensor, n: int) -> Tensor:
    """Return n samples, which are repeated if there are fewer."""
    return inputs[torch.arange(n, device=inputs.device) % len(inputs)]


def varied(inputs: Tensor) -> Tensor:
    """Return the samples without repetitions, if there are several: equal ones do not show an influence."""
    first = [not any(torch.equal(x, other) for other in inputs[:n]) for n, x in enumerate(inputs)]
    return inputs[torch.tensor(first, device=inputs.device)] if sum(first) > 1 else inputs


def mixes_others(model: FlatModel, batch: Tensor, outputs: Tensor) -> bool:
    """Whether outputs depend on other samples than the first, as by a maximum over the batch, or on their number."""
    if model.has_client_statistics:
        return _depends_on_size(model, batch)
    if model.mixes_samples:
        return False  # known already
    for x in batch:
        same = torch.tensor([torch.equal(x, other) for other in batch], device=batch.device)
        if bool(same.all()):
            break
        exchanged = batch.clone()
        exchanged[same] = batch[~same][0]
        if not close(model, outputs[~same], model.trace(model.initial(), exchanged).outputs[~same]):
            return True
    return _depends_on_size(model, batch)


def _depends_on_size(model: FlatModel, batch: Tensor) -> bool:
    """Whether further samples change outputs; BatchNorm layers leave them out of their statistics."""
    found = []
    for rows in (ROWS, MORE_ROWS):
        share = torch.arange(rows, device=model.device).lt(ROWS).to(model.dtype) / ROWS
        with model.statistics.observed(share) if model.has_client_statistics else nullcontext():
            found.append(model.trace(model.initial(), repeated(batch, rows)).outputs[:ROWS])
    # Kernels for batches of other sizes round otherwise.
    few, many = found
    return not close(model, few, many, tolerance=1e-2 if model.precision is None else 1e-1)


def close(model: FlatModel, a: Tensor, b: Tensor, tolerance: float | None = None) -> bool:
    """Whether two outputs agree up to rounding; non-finite ones are left to other checks."""
    if a.shape != b.shape:
        return False
    if tolerance is None:
        tolerance = 1e-2 if model.precision is not None else 1e-4
    difference = (a - b).abs().amax() if a.numel() else a.new_zeros(())
    return not bool(difference > tolerance * (1 + a.abs().amax())) if a.numel() else True
