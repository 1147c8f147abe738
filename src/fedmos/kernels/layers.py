"""The replacement of a model's layers by those that vectorised programs compute faster."""

from __future__ import annotations

import torch
from torch import nn

from .convolution import replace_convolutions
from .depthwise_convolution import replace_depthwise_convolutions
from .pooling import replace_pooling
from .transposed_convolution import replace_transposed_convolutions


def replace_layers(model: nn.Module, device: torch.device, dtype: torch.dtype, precision: str | None) -> None:
    """Replace the layers of `model` in place, as far as its device, dtype and precision have replacements."""
    if dtype == torch.float32 and (device.type == "cuda" or (device.type == "cpu" and precision is None)):
        replace_convolutions(model, precision, series=device.type == "cuda")
        if device.type == "cpu":
            replace_depthwise_convolutions(model)
    if device.type == "cuda":
        replace_pooling(model)
        replace_transposed_convolutions(model)
