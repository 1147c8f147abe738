"""Convolutions of a cohort: a layer that, under `vmap`, uses the fastest kernel for its shape.

`vmap` turns a convolution with separate weights per client into a grouped convolution, with the client axis before the
channels. For layers with few channels that is slow (one launch per client, with layout conversions before and after),
and our own kernels (`implicit_gemm`) are faster. For wider layers PyTorch's are faster if images are stored channels
last. The choice is based on measurements on an H200 (docs/performance.md). On a CPU, PyTorch's convolutions are used,
client by client and channels last if the work per client is large.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd import Function
from torch.overrides import handle_torch_function, has_torch_function

from .convolution_ops import channels_last, convolution_backward, empty_channels_last, padding
from .switch import Switch

_LARGE = 5_000_000
"""Number of multiplications per client from which on a CPU computes the clients one after another."""

vectorised = Switch("vectorised")
"""Whether layers on a CPU compute for a cohort; otherwise they call PyTorch's convolution."""


class _Replacement(nn.Module):
    """A layer that shares the parameters of the one that it replaces. Mixed into PyTorch's layers."""

    def __init__(self, layer: nn.Module, precision: str | None) -> None:
        nn.Module.__init__(self)
        self.__dict__ |= layer.__dict__ | {"_parameters": dict(layer._parameters)}
        self.narrow = precision == "bf16"
        self.products = "tf32" if precision else "tf32x3"
        """How our own kernels multiply float32: "tf32", or three tf32 products, which are as exact as float32."""

    def convolve(self, x: Tensor, w: Tensor, stride: int, pad: int) -> Tensor:
        """Return the convolution of images, without the bias."""
        if self.narrow:
            x, w = x.to(torch.bfloat16), w.to(torch.bfloat16)
        return _convolution(x, w, stride, pad, self.products)


class CohortConv2d(_Replacement, nn.Conv2d):
    """A convolution with square kernel and stride."""

    def forward(self, x: Tensor) -> Tensor:
        if x.device.type == "cpu" and not (vectorised and self._is_large(x)):
            return super().forward(x)
        w, stride, pad = self.weight, self.stride[0], int(self.padding[0])
        if x.device.type != "cpu":
            w, pad = without_unused_taps(x, w, stride, pad)
        y = self.convolve(x, w, stride, pad)
        return y if self.bias is None else y + self.bias[:, None, None]

    def _is_large(self, x: Tensor) -> bool:
        """Whether a CPU computes the clients one after another."""
        places = x.shape[-2] * x.shape[-1] // (self.stride[0] * self.stride[1])
        return x.shape[0] * places * self.weight.numel() >= _LARGE


class CohortConv1d(_Replacement, nn.Conv1d):
    """A convolution of series on a GPU, as images of one row."""

    def forward(self, x: Tensor) -> Tensor:
        if x.ndim != 3 or x.device.type == "cpu":
            return super().forward(x)
        y = self.convolve(x.unsqueeze(-2), self.weight.unsqueeze(-2), self.stride[0], int(self.padding[0])).squeeze(-2)
        return (y if self.bias is None else y + self.bias[:, None]).contiguous()


def _convolution(x: Tensor, w: Tensor, stride: int, pad: int, precision: str) -> Tensor:
    if has_torch_function((x, w)):  # so that a mode sees which line makes the images
        seen: Tensor = handle_torch_function(_convolution, (x, w), x, w, stride, pad, precision)
        return seen
    y: Tensor = _Convolution.apply(x, w, stride, pad, precision)  # type: ignore[no-untyped-call]
    return y


def replace_convolutions(model: nn.Module, precision: str | None, series: bool = False) -> None:
    """Replace the supported convolutions of images, and of `series`, of `model` in place."""
    cohort: dict[Any, Any] = {nn.Conv2d: CohortConv2d} | ({nn.Conv1d: CohortConv1d} if series else {})
    new: dict[int, nn.Module] = {}
    for name, module in list(model.named_modules(remove_duplicate=False)):
        if name and type(module) in cohort and module.groups == 1 and is_square(module):
            model.set_submodule(name, new.setdefault(id(module), cohort[type(module)](module, precision)))


def is_square(layer: nn.Conv1d | nn.Conv2d) -> bool:
    """Whether the kernel, stride and padding of a plain layer are the same along all axes."""
    return (
        not any(v for k, v in vars(layer).items() if k.endswith("_hooks"))
        and "weight" in layer._parameters
        and set(layer.dilation) == {1}
        and layer.padding_mode == "zeros"
        and not isinstance(layer.padding, str)
        and len(set(layer.stride)) == len(set(layer.padding)) == len(set(layer.kernel_size)) == 1
        and layer.padding[0] < layer.kernel_size[0]
    )


def without_unused_taps(x: Tensor, w: Tensor, stride: int, pad: int) -> tuple[Tensor, int]:
    """Return the part of square kernels that meets images as small as x, and the padding that belongs to it.

    A 3×3 kernel on an image of one pixel, for example, is its centre. Without the other taps there is less to compute,
    and the layout of the weights' gradient does not depend on which library computes it.
    """
    kernel, (h, v) = w.shape[-1], x.shape[-2:]
    places = (h + 2 * pad - kernel) // stride + 1
    first, end = max(0, pad - (places - 1) * stride), min(kernel, h + pad)
    fewer, less = end - first, pad - first
    if h != v or fewer == kernel or (h + 2 * less - fewer) // stride + 1 != places:
        return w, pad
    return w[..., first:end, first:end], less


# A convolution and its two derivatives. Outside `vmap` they are PyTorch's. Under `vmap`, PyTorch calls their method
# `vmap` instead, with tensors that have the client axis at dimension in_dims[i]. Weights that have none are frozen: the
# images of all clients are then one batch.


class _Convolution(Function):
    @staticmethod
    def forward(x: Tensor, w: Tensor, stride: int, pad: int, precision: str) -> Tensor:
        return F.conv2d(x, w, stride=stride, padding=padding(w.shape[-2:], pad))

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        x, w, *ctx.how = inputs
        ctx.save_for_backward(x, w)

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> Any:
        x, w = ctx.saved_tensors
        of_input, of_weight = ctx.needs_input_grad[:2]
        dx = _InputGradient.apply(dy, w, *x.shape[-2:], *ctx.how) if of_input else None  # type: ignore[no-untyped-call]
        dw = _WeightGradient.apply(x, dy, list(w.shape[-2:]), *ctx.how) if of_weight else None  # type: ignore[no-untyped-call]
        return dx, dw, None, None, None

    @staticmethod
    def vmap(info: Any, in_dims: Any, x: Tensor, w: Tensor, stride: int, pad: int, precision: str) -> Any:
        if in_dims[1] is None:
            x = _merge_samples(x, in_dims[0])
            y = F.conv2d(x, w, stride=stride, padding=padding(w.shape[-2:], pad))
            return _split_samples(y, info.batch_size), 0
        shared = in_dims[0] is None
        x, w = clients_first(info, in_dims, x, w)
        if x.device.type == "cpu":
            return torch.ops.fedmos.each_convolution(x, w, stride, pad), 0
        if shared and x.dtype != torch.float64:
            # All clients share one set of images, as in evaluation: concatenate their output channels.
            y = torch.ops.fedmos.convolution(x[:1], w.flatten(0, 1)[None], stride, pad, precision)
            return y[:, 0].unflatten(1, (len(w), -1)), 1
        if _use_own_kernel("forward", x, w.shape[2], w.shape[1], len(w), w.shape[-1], stride, precision):
            return torch.ops.fedmos.convolution(x, w, stride, pad, precision), 1
        pads = padding(w.shape[-2:], pad)
        y = F.conv2d(_merge_clients(x), channels_last(w.flatten(0, 1)), None, stride, pads, 1, len(w))
        return _split_clients(y, len(w)), 1


class _InputGradient(Function):
    @staticmethod
    def forward(dy: Tensor, w: Tensor, h: int, v: int, stride: int, pad: int, precision: str) -> Tensor:
        x = dy.new_empty((len(dy), w.shape[1], h, v))
        return convolution_backward(dy, x, w, stride, pad, 1, (True, False))

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        pass

    @staticmethod
    def vmap(
        info: Any, in_dims: Any, dy: Tensor, w: Tensor, h: int, v: int, stride: int, pad: int, precision: str
    ) -> Any:
        if in_dims[1] is None:
            dy = _merge_samples(dy, in_dims[0])
            x = empty_channels_last(dy, (len(dy), w.shape[1], h, v))
            dx = convolution_backward(dy, x, w, stride, pad, 1, (True, False))
            return _split_samples(dx, info.batch_size), 0
        dy, w = clients_first(info, in_dims, dy, w)
        if dy.device.type == "cpu":
            return torch.ops.fedmos.each_convolution_input(dy, w, h, v, stride, pad), 0
        if _use_own_kernel("input", dy, w.shape[1], w.shape[2], len(w), w.shape[-1], stride, precision):
            return torch.ops.fedmos.convolution_input(dy, w, h, v, stride, pad, precision), 1
        x = empty_channels_last(dy, (dy.shape[1], w.shape[0] * w.shape[2], h, v))
        dx = convolution_backward(
            _merge_clients(dy), x, channels_last(w.flatten(0, 1)), stride, pad, len(w), (True, False)
        )
        return _split_clients(dx, len(w)), 1


class _WeightGradient(Function):
    @staticmethod
    def forward(x: Tensor, dy: Tensor, kernel: list[int], stride: int, pad: int, precision: str) -> Tensor:
        w = x.new_empty((dy.shape[1], x.shape[1], *kernel))
        return convolution_backward(dy, x, w, stride, pad, 1, (False, True))

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        pass

    @staticmethod
    def vmap(
        info: Any, in_dims: Any, x: Tensor, dy: Tensor, kernel: list[int], stride: int, pad: int, precision: str
    ) -> Any:
        x, dy = clients_first(info, in_dims, x, dy)
        if x.device.type == "cpu":
            return torch.ops.fedmos.each_convolution_weight(x, dy, kernel[0], stride, pad), 0
        M, C, CO = len(x), x.shape[2], dy.shape[2]
        if _use_own_kernel("weight", x, C, CO, M, kernel[-1], stride, precision):
            return torch.ops.fedmos.convolution_weight(x, dy, kernel, stride, pad, precision), 0
        w = empty_channels_last(x, (M * CO, C, *kernel))
        dw = convolution_backward(_merge_clients(dy), _merge_clients(x), w, stride, pad, M, (False, True))
        return dw.unflatten(0, (M, CO)), 0


def _use_own_kernel(
    what: str, x: Tensor, channels: int, others: int, clients: int, kernel: int, stride: int, precision: str
) -> bool:
    """Return whether our own kernel is faster, by measurements.

    Args:
        what: "forward", or the gradient of the "input" or the "weight".
        x: The images.
        channels: The number of channels that are summed over, or for the weight gradient those of x.
        others: The number of the other channels.
        clients: The number of clients.
        kernel: The size of the kernel.
        stride: The stride.
        precision: How our own kernel multiplies float32.
    """
    if x.dtype == torch.float64:
        return False
    if stride > 1 or kernel == 1:  # PyTorch computes these client by client
        return True
    if x.dtype == torch.bfloat16:
        if what == "weight":  # at 256 channels PyTorch takes ten times as long
            return channels <= 15 or 256 <= channels < 512
        return channels <= 256 if what == "input" else channels <= 64 or channels >= 256
    if precision != "tf32":  # PyTorch has no grouped kernels of full precision, and computes client by client
        fewer = clients < 10 and min(channels, others) > 16  # then it does so faster
        return what != "weight" or channels <= 15 or others >= (2 if channels > 64 or fewer else 1) * channels
    if what == "weight" and channels >= 256 and x.shape[-2] * x.shape[-1] <= 4:  # PyTorch launches these by client
        return True
    return channels <= {"forward": 64, "input": 256, "weight": 32}[what]


def clients_first(info: Any, in_dims: Any, *tensors: Tensor) -> tuple[Tensor, ...]:
    """Return views (M, …) of tensors with a client axis at any position or without one."""
    return tuple(
        v.expand(info.batch_size, *v.shape) if d is None else v.movedim(d, 0)
        for v, d in zip(tensors, in_dims, strict=False)
    )


def _merge_samples(x: Tensor, dim: int) -> Tensor:
    """Return images (B, C, H, W) with a client axis at `dim` as (M·B, C, H, W), channels last."""
    return channels_last(x.movedim(dim, 0).movedim(2, -1).flatten(0, 1).movedim(-1, 1))


def _split_samples(x: Tensor, M: int) -> Tensor:
    """Return (M·B, C, H, W) as (M, B, C, H, W)."""
    parts: Tensor = x.unflatten(0, (M, -1))
    return parts


def _merge_clients(x: Tensor) -> Tensor:
    """Return (M, B, C, H, W) as (B, M·C, H, W), channels last; without a copy if the memory layout is right."""
    return channels_last(x.transpose(0, 1).flatten(1, 2))


def _split_clients(x: Tensor, M: int) -> Tensor:
    """Return (B, M·C, H, W) as (B, M, C, H, W)."""
    parts: Tensor = x.unflatten(1, (M, -1))
    return parts
