"""Normalisation of inputs, declared on a data set and applied on the device, batch by batch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
import torch
from torch import Tensor

from ..core.validation import number, positive, require


@cache
def _on(values: tuple[float, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    """Kept on the device: a copy from the host could not be part of a CUDA graph."""
    return torch.tensor(values, dtype=dtype, device=device)


@dataclass(frozen=True)
class Normalize:
    """(x / scale − mean) / std, per channel (axis 1) where mean and std are sequences; applied on use."""

    mean: float | tuple[float, ...]
    std: float | tuple[float, ...]
    scale: float = 255.0

    def __post_init__(self) -> None:
        for name, rule in (("mean", number), ("std", positive)):
            value = getattr(self, name)
            if isinstance(value, Sequence) and not isinstance(value, str):
                object.__setattr__(self, name, value := tuple(value))
            for v in value if isinstance(value, tuple) else (value,):
                require("Normalize", name, v, rule)
        require("Normalize", "scale", self.scale, positive)

    def fits(self, x: Tensor | np.ndarray) -> bool:
        """Whether there is a number for each channel."""
        own = [len(v) for v in (self.mean, self.std) if isinstance(v, tuple)]
        return not own or (x.ndim > 1 and all(n in (1, x.shape[1]) for n in own))

    def __call__(self, x: Tensor, dtype: torch.dtype) -> Tensor:
        def column(v: float | tuple[float, ...]) -> Tensor | float:
            return _on(tuple(v), dtype, x.device).view(-1, *[1] * (x.ndim - 2)) if isinstance(v, Sequence) else v

        return (x.to(dtype) / self.scale - column(self.mean)) / column(self.std)
