"""Random crops and flips, declared on a data set and applied on the device, batch by batch.

The transformation of a sample is a hash of its key, one per (seed, round, client, step, sample). It therefore does not
depend on the engine or device, and two gradients on one batch use the same images.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ..core.validation import Rule, boolean, check, pixels
from ..rng import draws


@dataclass(frozen=True, kw_only=True)
class Augment:
    """Random crops and horizontal flips of the training images.

    Args:
        crop: Images are shifted by up to this number of pixels in each direction: a random crop of the image padded
            with zeros.
        flip: Mirror each image with probability ½.

    Raises:
        ValueError: If an argument is out of range.

    Example:
        >>> digits = fm.datasets.load("digits").declare(augment=fm.Augment(crop=1, flip=False))
        >>> digits.augment
        Augment(crop=1, flip=False)
    """

    crop: int = 4
    flip: bool = True

    def __post_init__(self) -> None:
        check(self, crop=pixels, flip=boolean)

    def __call__(self, x: Tensor, key: Tensor) -> Tensor:
        """Return the transformed images.

        Args:
            x: Stored images, (n, channels, height, width).
            key: One key per image, (n,), int64.
        """
        chance = draws(key, 3)
        shift = (chance[:, :2] * (2 * self.crop + 1)).to(torch.int64) - self.crop
        rows = torch.arange(x.shape[-2], device=x.device) + shift[:, :1]
        columns = torch.arange(x.shape[-1], device=x.device) + shift[:, 1:]
        if self.flip:
            columns = torch.where(chance[:, 2:] < 0.5, columns.flip(1), columns)
        x = _take(x, rows[:, None, :, None], -2)
        return _take(x, columns[:, None, None, :], -1)


def _take(x: Tensor, index: Tensor, axis: int) -> Tensor:
    """Return the entries of an axis by index, and zero where the index is outside the image."""
    inside = (index >= 0) & (index < x.shape[axis])
    taken = x.gather(axis, index.clamp(0, x.shape[axis] - 1).expand(x.shape))
    return taken * inside.to(x.dtype)


augment_rule = Rule("a fedmos.Augment or None", lambda v: isinstance(v, Augment | None))
