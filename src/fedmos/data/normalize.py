"""Normalisation of inputs, declared on a data set and applied on the device, batch by batch."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache

import numpy as np
import torch
from torch import Tensor

from ..core.validation import Rule, none, number, positive, require


@cache
def _on_device(values: tuple[float, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    """Return a tensor that is cached on the device: a copy from the host cannot be part of a CUDA graph."""
    return torch.tensor(values, dtype=dtype, device=device)


_BYTE = 255.0


def _is_bytes(x: Tensor | np.ndarray) -> bool:
    return x.dtype in (torch.uint8, np.uint8)


@dataclass(frozen=True)
class Normalize:
    """Normalisation of inputs, (x / scale − mean) / std, applied when samples are used.

    Args:
        mean: One number, or one per channel (axis 1).
        std: One number, or one per channel.
        scale: Divisor of the stored values (default: 255 for uint8 pixels, 1 for other types).

    Raises:
        ValueError: If an argument is not finite, or `std` or `scale` is not positive.

    Example:
        >>> normalize = fm.Normalize(mean=0.5, std=0.5)
        >>> normalize(torch.tensor([[0, 255]], dtype=torch.uint8), torch.float32)
        tensor([[-1.,  1.]])
    """

    mean: float | tuple[float, ...]
    std: float | tuple[float, ...]
    scale: float | None = None

    def __post_init__(self) -> None:
        for name, rule in (("mean", number), ("std", positive)):
            value = getattr(self, name)
            if isinstance(value, Sequence) and not isinstance(value, str):
                object.__setattr__(self, name, value := tuple(value))
            for v in value if isinstance(value, tuple) else (value,):
                require("Normalize", name, v, rule)
        require("Normalize", "scale", self.scale, positive | none)

    def resolved(self, x: Tensor | np.ndarray) -> Normalize:
        """Return the normalisation with the scale for inputs x, by their type.

        Warns if x could be pixels from 0 to 255 that are not stored as uint8.
        """
        if self.scale is not None:
            return self
        if _is_bytes(x):
            return replace(self, scale=_BYTE)
        if x.shape[0] and x.min() >= 0 and _BYTE - 5 <= x.max() <= _BYTE:
            kind = str(x.dtype).removeprefix("torch.")
            warnings.warn(
                f"Normalize: 'scale' is 1 because the inputs are {kind}; use scale=255 if they are pixels up to 255",
                stacklevel=3,
            )
        return replace(self, scale=1.0)

    def fits(self, x: Tensor | np.ndarray) -> bool:
        """Return whether mean and std have one number or one for each channel of x."""
        lengths = [len(v) for v in (self.mean, self.std) if isinstance(v, tuple)]
        return not lengths or (x.ndim > 1 and all(n in (1, x.shape[1]) for n in lengths))

    def __call__(self, x: Tensor, dtype: torch.dtype) -> Tensor:
        """Return the normalised samples in `dtype`."""

        def column(v: float | tuple[float, ...]) -> Tensor | float:
            return _on_device(tuple(v), dtype, x.device).view(-1, *[1] * (x.ndim - 2)) if isinstance(v, Sequence) else v

        scale = self.scale or (_BYTE if _is_bytes(x) else 1.0)
        if x.dtype == dtype or x.device.type != "cpu":
            return (x.to(dtype) / scale - column(self.mean)) / column(self.std)
        return x.to(dtype).div_(scale).sub_(column(self.mean)).div_(column(self.std))  # in place takes half the time


normalize_rule = Rule("a fedmos.Normalize or None", lambda v: isinstance(v, Normalize | None))
