"""Attacks on training data."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ..core.validation import check, count, none, number, share, whole_number
from ..rng import draws
from .attack import Attack


@dataclass(frozen=True)
class LabelFlip(Attack):
    """Label flipping: hostile clients train on the label C − 1 − y in place of y, with C classes.

    Args:
        share: The share of all clients that are hostile.
        clients: The hostile clients, in place of `share`.

    Example:
        >>> attack = fm.attacks.LabelFlip(share=0.2)
        >>> result = fm.run(model, data, fm.FedAvg(lr=0.1), fm.Full(), rounds=2, local_steps=2, attack=attack)
        >>> len(result.info["hostile"])
        2
    """

    def poison(self, x: Tensor, y: Tensor, classes: int, key: Tensor) -> tuple[Tensor, Tensor]:
        _require_classes(self, classes)
        return x, torch.where(y >= 0, classes - 1 - y, y)  # below 0: targets that losses ignore


@dataclass(frozen=True)
class BackdoorPixel(Attack):
    """A backdoor (Gu et al., 2017): images with a square of bright pixels in the lower right corner get one label.

    Hostile clients put the square into a share of their training images and label these with `target`. `trigger` puts
    it into test images, to measure how many of them the model then takes for `target`.

    Args:
        target: The label of images with the square.
        size: The height and width of the square in pixels.
        value: The value of its pixels, as they are stored, before normalisation; None for the largest of the images.
        fraction: The share of a hostile client's images that get the square.
        share: The share of all clients that are hostile.
        clients: The hostile clients, in place of `share`.

    Raises:
        ValueError: If an argument is out of range.

    Example:
        >>> attack = fm.attacks.BackdoorPixel(target=0, size=1, value=9.0, share=0.2)
        >>> attack.trigger(torch.zeros(1, 2, 2))
        tensor([[[0., 0.],
                 [0., 9.]]])
    """

    target: int
    size: int = 3
    value: float | None = None
    fraction: float = 0.5

    def __post_init__(self) -> None:
        super().__post_init__()
        check(self, target=whole_number, size=count, value=number | none, fraction=share)

    def poison(self, x: Tensor, y: Tensor, classes: int, key: Tensor) -> tuple[Tensor, Tensor]:
        _require_classes(self, classes)
        if y.ndim != 1 or self.target >= classes:
            raise ValueError(f"BackdoorPixel: 'target' must be one of the {classes} classes, got {self.target}")
        marked = draws(key, len(y)) < self.fraction
        return (
            torch.where(marked.view(-1, *[1] * (x.ndim - 1)), self.trigger(x), x),
            torch.where(marked, self.target, y),
        )

    def trigger(self, x: Tensor) -> Tensor:
        """Return images (n, …, height, width), as they are stored, with the square.

        Args:
            x: The images.

        Raises:
            ValueError: If x has no images, or they are smaller than the square.
        """
        if x.ndim < 3 or min(x.shape[-2:]) < self.size:
            got = f"{self.size} for inputs of shape {tuple(x.shape[1:])}"
            raise ValueError(f"BackdoorPixel: 'size' must fit into images (…, height, width), got {got}")
        marked = x.clone()
        marked[..., -self.size :, -self.size :] = x.max() if self.value is None else self.value
        return marked


def _require_classes(attack: Attack, classes: int) -> None:
    if not classes:
        name = type(attack).__name__
        raise ValueError(f"Cannot attack with {name} because the targets are not classes; use an attack on uploads")
