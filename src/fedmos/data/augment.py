"""Random crops and flips, declared on a data set and applied on the device, batch by batch.

What happens to a sample is a hash of its key, one per (seed, round, client, step, sample), so it depends neither on
the engine nor on the device, and two gradients on one batch see the same images.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ..core.validation import boolean, check, pixels
from ..rng import draws


@dataclass(frozen=True, kw_only=True)
class Augment:
    """Shift images by up to `crop` pixels (a random crop of the image padded with zeros), and mirror half of them."""

    crop: int = 4
    flip: bool = True

    def __post_init__(self) -> None:
        check(self, crop=pixels, flip=boolean)

    def __call__(self, x: Tensor, key: Tensor) -> Tensor:
        """Stored images (n, channels, height, width) as a client sees them; `key` is (n,), int64."""
        chance = draws(key, 3)
        shift = (chance[:, :2] * (2 * self.crop + 1)).to(torch.int64) - self.crop
        rows = torch.arange(x.shape[-2], device=x.device) + shift[:, :1]
        columns = torch.arange(x.shape[-1], device=x.device) + shift[:, 1:]
        if self.flip:
            columns = torch.where(chance[:, 2:] < 0.5, columns.flip(1), columns)
        x = _take(x, rows[:, None, :, None], -2)
        return _take(x, columns[:, None, None, :], -1)


def _take(x: Tensor, where: Tensor, axis: int) -> Tensor:
    """Entries of an axis by number, zero outside the image."""
    inside = (where >= 0) & (where < x.shape[axis])
    taken = x.gather(axis, where.clamp(0, x.shape[axis] - 1).expand(x.shape))
    return taken * inside.to(x.dtype)
