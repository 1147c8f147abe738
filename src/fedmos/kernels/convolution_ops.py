"""Convolutions of a cohort as operators that tracing and compiling treat as opaque.

Shapes: x (M, B, C, H, W), w (M, CO, C, K, K), or (M, CO, C, 1, K) for series as images of one row, which are padded
along the row only.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from .layout import empty_images
from .operators import Operator


def empty_channels_last(like: Tensor, shape: tuple[int, ...]) -> Tensor:
    """Return an uninitialised tensor, channels last; PyTorch's backward functions use only its shape and layout."""
    return torch.empty(shape, dtype=like.dtype, device=like.device, memory_format=torch.channels_last)


def channels_last(x: Tensor) -> Tensor:
    """Return the images in the channels-last layout."""
    stored: Tensor = x.contiguous(memory_format=torch.channels_last)
    return stored


def padding(kernel: Sequence[int], pad: int) -> list[int]:
    """Return the padding of both axes of images, for a square kernel or a kernel of one row."""
    return [pad if kernel[0] == kernel[1] else 0, pad]


def convolution_backward(
    dy: Tensor, x: Tensor, w: Tensor, stride: int, pad: int, groups: int, wanted: tuple[bool, bool]
) -> Tensor:
    """Return PyTorch's gradient of a convolution: of its input if wanted[0], else of its weights."""
    how = ([stride] * 2, padding(w.shape[-2:], pad), [1, 1], False, [0, 0], groups, [*wanted, False])
    dx, dw, _ = torch.ops.aten.convolution_backward(dy, x, w, None, *how)
    gradient: Tensor = dx if wanted[0] else dw
    return gradient


# On a GPU: Triton kernels. They return images as (B, M, C, H, W), in the layout of `empty_images`.


@Operator("convolution")
def _convolution(x: Tensor, w: Tensor, stride: int, pad: int, precision: str) -> Tensor:
    from . import implicit_gemm

    return implicit_gemm.forward(x, w, stride, pad, precision)


@_convolution.register_fake
def _(x: Tensor, w: Tensor, stride: int, pad: int, precision: str) -> Tensor:
    kernel = w.shape[-2:]
    both = zip(x.shape[3:], padding(kernel, pad), kernel, strict=True)
    return empty_images(x, x.shape[1], x.shape[0], w.shape[1], *((n + 2 * p - k) // stride + 1 for n, p, k in both))


@Operator("convolution_input")
def _convolution_input(dy: Tensor, w: Tensor, h: int, v: int, stride: int, pad: int, precision: str) -> Tensor:
    from . import implicit_gemm

    return implicit_gemm.input_gradient(dy, w, (h, v), stride, pad, precision)


@_convolution_input.register_fake
def _(dy: Tensor, w: Tensor, h: int, v: int, stride: int, pad: int, precision: str) -> Tensor:
    return empty_images(dy, dy.shape[1], dy.shape[0], w.shape[2], h, v)


@Operator("convolution_weight")
def _convolution_weight(x: Tensor, dy: Tensor, kernel: list[int], stride: int, pad: int, precision: str) -> Tensor:
    from . import implicit_gemm

    return implicit_gemm.weight_gradient(x, dy, kernel, stride, pad, precision)


@_convolution_weight.register_fake
def _(x: Tensor, dy: Tensor, kernel: list[int], stride: int, pad: int, precision: str) -> Tensor:
    return x.new_empty((x.shape[0], dy.shape[2], x.shape[2], *kernel))


# On a CPU: PyTorch's convolutions, one client after another, channels last.


@Operator("each_convolution")
def _each_convolution(x: Tensor, w: Tensor, stride: int, pad: int, groups: int = 1) -> Tensor:
    return _images([F.conv2d(a, b, None, stride, pad, 1, groups) for a, b in zip(_each(x), w.unbind(), strict=True)])


@_each_convolution.register_fake
def _(x: Tensor, w: Tensor, stride: int, pad: int, groups: int = 1) -> Tensor:
    size = [(n + 2 * pad - w.shape[-1]) // stride + 1 for n in x.shape[3:]]
    return x.new_empty((*x.shape[:2], *size, w.shape[1])).permute(0, 1, 4, 2, 3)


@Operator("each_convolution_input")
def _each_convolution_input(dy: Tensor, w: Tensor, h: int, v: int, stride: int, pad: int, groups: int = 1) -> Tensor:
    like = empty_channels_last(dy, (dy.shape[1], groups * w.shape[2], h, v))
    return _images(
        [
            convolution_backward(a, like, b, stride, pad, groups, (True, False))
            for a, b in zip(_each(dy), w.unbind(), strict=True)
        ]
    )


@_each_convolution_input.register_fake
def _(dy: Tensor, w: Tensor, h: int, v: int, stride: int, pad: int, groups: int = 1) -> Tensor:
    return dy.new_empty((*dy.shape[:2], h, v, groups * w.shape[2])).permute(0, 1, 4, 2, 3)


@Operator("each_convolution_weight")
def _each_convolution_weight(x: Tensor, dy: Tensor, kernel: int, stride: int, pad: int, groups: int = 1) -> Tensor:
    like = x.new_empty((dy.shape[2], x.shape[2] // groups, kernel, kernel))
    each = [
        convolution_backward(b, a, like, stride, pad, groups, (False, True))
        for a, b in zip(_each(x), _each(dy), strict=True)
    ]
    return torch.stack(each).contiguous()


@_each_convolution_weight.register_fake
def _(x: Tensor, dy: Tensor, kernel: int, stride: int, pad: int, groups: int = 1) -> Tensor:
    return x.new_empty((x.shape[0], dy.shape[2], x.shape[2] // groups, kernel, kernel))


def _images(each: list[Tensor]) -> Tensor:
    """Stack the images of the clients as (M, B, C, H, W), channels last."""
    return torch.stack([v.permute(0, 2, 3, 1) for v in each]).contiguous().permute(0, 1, 4, 2, 3)


def _each(x: Tensor) -> Sequence[Tensor]:
    """Return the images of each client, channels last. Those of all clients are converted at once."""
    if x.shape[2] == 1 or x.shape[3:] == (1, 1):  # both layouts are one
        return [channels_last(a) for a in x]
    return x.permute(0, 1, 3, 4, 2).contiguous().permute(0, 1, 4, 2, 3).unbind()
