"""Copying a flat vector into the parameters of a module."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from .statistics_layout import StatisticsLayout


def load_flat(module: nn.Module, y: Tensor, personal: Sequence[str] = ()) -> None:
    """Copy the vector y into the trainable parameters of `module`.

    Args:
        module: The module.
        y: The shared parameters. Those that clients keep may follow, and then the running statistics of BatchNorm
            layers.
        personal: Names of the parameters that clients keep. Where they do not follow, they are left as they are.

    Raises:
        ValueError: If the sizes differ.
    """
    trainable = [(name, p) for name, p in module.named_parameters() if p.requires_grad]
    shared = [p for name, p in trainable if name not in personal]
    own = [p for name, p in trainable if name in personal]
    size, owned, statistics = _count(shared), _count(own), StatisticsLayout(module)
    if y.numel() in (size + owned, size + owned + statistics.size):
        shared, size = [*shared, *own], size + owned
    if y.numel() not in (size, size + statistics.size):
        raise ValueError(f"Cannot load {y.numel()} parameters because the model has {size}; use the model of the run")
    with torch.no_grad():
        for p, v in zip(shared, y[:size].split([p.numel() for p in shared]), strict=True):
            p.copy_(v.view(p.shape))
        if y.numel() > size:
            statistics.load(y[size:])


def _count(parameters: Sequence[nn.Parameter]) -> int:
    return sum(p.numel() for p in parameters)
