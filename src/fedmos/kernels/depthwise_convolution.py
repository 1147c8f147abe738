"""Depthwise convolutions of a cohort on a CPU.

`vmap` makes one convolution of those of all clients, with a group per client and channel. PyTorch computes large ones
faster client by client, channels last.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd import Function
from torch.overrides import handle_torch_function, has_torch_function

from .client_axis import is_vectorised
from .convolution import clients_first, is_square
from .convolution_ops import convolution_backward

_LARGE = 1_500_000
"""Number of multiplications per client from which the clients are computed one after another."""


def replace_depthwise_convolutions(model: nn.Module) -> None:
    """Have the depthwise convolutions of `model` compute client by client where that is faster."""
    for module in model.modules():
        if type(module) is nn.Conv2d and is_square(module) and 1 < module.groups == module.in_channels:
            module.__class__ = DepthwiseConv2d


class DepthwiseConv2d(nn.Conv2d):
    """A layer of a cohort."""

    def forward(self, input: Tensor) -> Tensor:
        places = input.shape[-2] * input.shape[-1] // self.stride[0] ** 2
        large = input.ndim == 4 and input.shape[0] * places * self.weight.numel() >= _LARGE
        if not (large and is_vectorised(self.weight) and is_vectorised(input)):
            return super().forward(input)
        y = _convolution(input, self.weight, self.stride[0], int(self.padding[0]), self.groups)
        return y if self.bias is None else y + self.bias[:, None, None]


def _convolution(x: Tensor, w: Tensor, stride: int, pad: int, groups: int) -> Tensor:
    if has_torch_function((x, w)):  # so that a mode sees which line makes the images
        seen: Tensor = handle_torch_function(_convolution, (x, w), x, w, stride, pad, groups)
        return seen
    y: Tensor = _Depthwise.apply(x, w, stride, pad, groups)  # type: ignore[no-untyped-call]
    return y


class _Depthwise(Function):
    @staticmethod
    def forward(x: Tensor, w: Tensor, stride: int, pad: int, groups: int) -> Tensor:
        return F.conv2d(x, w, stride=stride, padding=pad, groups=groups)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        x, w, *ctx.how = inputs
        ctx.save_for_backward(x, w)

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> Any:
        x, w = ctx.saved_tensors
        of_input, of_weight = ctx.needs_input_grad[:2]
        dx = _DepthwiseInputGradient.apply(dy, w, *x.shape[-2:], *ctx.how) if of_input else None  # type: ignore[no-untyped-call]
        dw = _DepthwiseWeightGradient.apply(x, dy, w.shape[-1], *ctx.how) if of_weight else None  # type: ignore[no-untyped-call]
        return dx, dw, None, None, None

    @staticmethod
    def vmap(info: Any, in_dims: Any, x: Tensor, w: Tensor, stride: int, pad: int, groups: int) -> Any:
        x, w = clients_first(info, in_dims, x, w)
        return torch.ops.fedmos.each_convolution(x, w, stride, pad, groups), 0


class _DepthwiseInputGradient(Function):
    @staticmethod
    def forward(dy: Tensor, w: Tensor, h: int, v: int, stride: int, pad: int, groups: int) -> Tensor:
        x = dy.new_empty((len(dy), groups, h, v))
        return convolution_backward(dy, x, w, stride, pad, groups, (True, False))

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        pass

    @staticmethod
    def vmap(info: Any, in_dims: Any, dy: Tensor, w: Tensor, h: int, v: int, stride: int, pad: int, groups: int) -> Any:
        dy, w = clients_first(info, in_dims, dy, w)
        return torch.ops.fedmos.each_convolution_input(dy, w, h, v, stride, pad, groups), 0


class _DepthwiseWeightGradient(Function):
    @staticmethod
    def forward(x: Tensor, dy: Tensor, kernel: int, stride: int, pad: int, groups: int) -> Tensor:
        w = x.new_empty((dy.shape[1], 1, kernel, kernel))
        return convolution_backward(dy, x, w, stride, pad, groups, (False, True))

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        pass

    @staticmethod
    def vmap(info: Any, in_dims: Any, x: Tensor, dy: Tensor, kernel: int, stride: int, pad: int, groups: int) -> Any:
        x, dy = clients_first(info, in_dims, x, dy)
        return torch.ops.fedmos.each_convolution_weight(x, dy, kernel, stride, pad, groups), 0
