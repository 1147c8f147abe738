"""Whether the outputs of a model for a sample depend on the other samples of its batch, found out on a few samples."""

from __future__ import annotations

from collections.abc import Collection
from contextlib import nullcontext

import torch
from torch import Tensor

from .flat_model import FlatModel

ROWS, MORE_ROWS = 3, 5
"""Two batch sizes; axes whose size follows the batch size hold samples."""
_MOST_ROWS = 1024
"""The largest batch that is tried."""


def repeated(inputs: Tensor, n: int) -> Tensor:
    """Return n samples, which are repeated if there are fewer."""
    return inputs[torch.arange(n, device=inputs.device) % len(inputs)]


def varied(inputs: Tensor) -> Tensor:
    """Return the samples without repetitions, if there are several: equal ones do not show an influence."""
    first = [not any(torch.equal(x, other) for other in inputs[:n]) for n, x in enumerate(inputs)]
    return inputs[torch.tensor(first, device=inputs.device)] if sum(first) > 1 else inputs


def mixes_others(model: FlatModel, batch: Tensor, outputs: Tensor, sizes: Collection[int] = ()) -> bool:
    """Whether outputs depend on other samples than the first, as by a maximum over the batch, or on their number.

    Args:
        model: The model.
        batch: A few samples.
        outputs: The outputs of the model for them.
        sizes: Sizes of batches that the run will have.
    """
    if model.has_client_statistics:
        return _depends_on_size(model, batch, sizes)
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
    return _depends_on_size(model, batch, sizes)


def _depends_on_size(model: FlatModel, batch: Tensor, sizes: Collection[int]) -> bool:
    """Whether outputs depend on the number of samples; BatchNorm layers leave further ones out of their statistics.

    A batch of one sample, whose axis a model may remove, is left to the comparison of engines.
    """

    def outputs(rows: int) -> Tensor:
        share = torch.arange(rows, device=model.device).lt(ROWS).to(model.dtype) / ROWS
        with model.statistics.observed(share) if model.has_client_statistics else nullcontext():
            return model.trace(model.initial(), repeated(batch, rows)).outputs[:ROWS]

    least = ROWS + 1 if model.has_client_statistics else 2
    others = {MORE_ROWS, *(rows for rows in sizes if least <= rows <= _MOST_ROWS)} - {ROWS}
    few = outputs(ROWS)
    # Kernels for batches of other sizes round otherwise.
    tolerance = 1e-1 if model.precision is not None else 1e-8 if model.dtype == torch.float64 else 1e-2
    return not all(close(model, few[:rows], outputs(rows), tolerance) for rows in sorted(others))


def close(model: FlatModel, a: Tensor, b: Tensor, tolerance: float | None = None) -> bool:
    """Whether two outputs agree up to rounding; non-finite ones are left to other checks."""
    if a.shape != b.shape:
        return False
    if tolerance is None:
        tolerance = 1e-2 if model.precision is not None else 1e-8 if model.dtype == torch.float64 else 1e-4
    difference = (a - b).abs().amax() if a.numel() else a.new_zeros(())
    return not bool(difference > tolerance * (1 + a.abs().amax())) if a.numel() else True
