"""Rewrites of a recorded program on a CPU that change the layout of tensors on the way, and no bits.

PyTorch's max pooling is up to twenty times as fast on images that are stored channels last, if there are many channels,
and a convolution of images with one channel twice as fast. `vmap` uses the default layout, with copies before pooling.
Operations on two tensors are up to ten times as fast if both have the same layout.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, fx

from . import convolution_ops as convolution_ops  # defines the operators

_CHANNELS = 128
"""So many channels, stored next to each other, are pooled at the kernel's full speed."""

_aten = torch.ops.aten
_pool, _pool_backward = _aten.max_pool2d_with_indices.default, _aten.max_pool2d_with_indices_backward.default
_convolution, _copy, _reshape = _aten.convolution.default, _aten.clone.default, _aten._unsafe_view.default
_threshold = _aten.threshold_backward.default
_each_convolution = torch.ops.fedmos.each_convolution.default
_views = (_aten.view.default, _aten.permute.default)


def rewrite(graph: fx.Graph) -> None:
    """Rewrite a graph of ATen operators in place. The metadata of nodes holds the "shape" and "stride" of tensors.

    The bits are the same with all kernels that we know, which a caller should verify.
    """
    for node in list(graph.nodes):
        if node.target is _pool and _is_contiguous(node.args[0]):
            node.target = max_pool
            source = _before_copy(node.args[0])
            if source is not None:
                node.update_arg(0, source)
        elif node.target is _pool_backward and _is_contiguous(node.args[1]):
            node.target = max_pool_backward
            node.update_arg(1, node.args[1].meta["shape"])
        elif node.target is _threshold and _is_contiguous(node) and _is_contiguous(node.args[1]):
            node.target = threshold_backward
    graph.eliminate_dead_code()
    for node in list(graph.nodes):
        if node.target is _convolution and node.args[1].meta["shape"][1] == 1 and _only_pooled(node):
            node.target = convolution_channels_last
    for node in graph.nodes:
        if node.target is _aten.add.Tensor and _adds_channels(node):
            node.target = add_channels_in_place if _is_own_convolution(node.args[0]) else add_channels


def _is_contiguous(node: fx.Node) -> bool:
    shape, stride = (node.meta.get(name, ()) for name in ("shape", "stride"))
    return len(shape) in (4, 5) and stride == torch.empty(shape, device="meta").stride()


def _adds_channels(node: fx.Node) -> bool:
    """Whether a node adds one number per client and channel to images (M, B, C, H, W), as a convolution does."""
    if len(node.args) != 2 or node.kwargs or not all(isinstance(v, fx.Node) for v in node.args):
        return False
    x, v = (v.meta.get("shape", ()) for v in node.args)  # type: ignore[union-attr]
    return len(x) == 5 and tuple(v) == (x[0], 1, x[2], 1, 1) and tuple(x) == tuple(node.meta["shape"])


def _is_own_convolution(node: fx.Node) -> bool:
    """Whether a node is a view of the result of a convolution, of which nothing else is used."""
    while len(node.users) == 1 and node.target in _views:
        node = node.args[0]  # type: ignore[assignment]
    return len(node.users) == 1 and node.target in (_convolution, convolution_channels_last, _each_convolution)


def _before_copy(node: fx.Node) -> fx.Node | None:
    """Return the images (M, B, C, H, W) of which the node is a contiguous copy, (M·B, C, H, W); None if it is none."""
    if node.target is not _reshape or node.args[0].target is not _copy:  # type: ignore[union-attr]
        return None
    source: Any = node.args[0].args[0]  # type: ignore[union-attr]
    shape = source.meta["shape"]
    return source if len(shape) == 5 and tuple(shape[2:]) == tuple(node.meta["shape"][1:]) else None


def _only_pooled(node: fx.Node) -> bool:
    """Whether a tensor is used for nothing but max pooling, also after a sum with another one."""
    for user in node.users:
        summed = user.target is _aten.add.Tensor and user.args[0] is node and len(user.meta["shape"]) == 5
        if not (user.target is max_pool or ((user.target in _views or summed) and _only_pooled(user))):
            return False
    return True


def max_pool(x: Tensor, *how: Any) -> tuple[Tensor, Tensor]:
    """Return what `aten::max_pool2d_with_indices` returns for contiguous images.

    The channels of several images are put side by side.

    Args:
        x: Images, (N, C, H, W), contiguous, or (M, B, C, H, W) in any layout for N = M·B.
        how: Kernel, stride and the other arguments.
    """
    if x.ndim == 4:
        N, least = len(x), -(_CHANNELS // -x.shape[1])
        x = x.unflatten(0, (next((n for n in range(least, N) if N % n == 0), N), -1))
    M, B, C, H, W = x.shape
    joined = x.permute(1, 3, 4, 0, 2).reshape(B, H, W, M * C).permute(0, 3, 1, 2)
    pooled, index = (_separated(v, M) for v in _pool(joined, *how))
    return pooled, index


def _separated(v: Tensor, M: int) -> Tensor:
    """Return (B, M·C, h, w) as (M·B, C, h, w), contiguous."""
    B, channels, *size = v.shape
    out = v.new_empty((M, B, channels // M, *size))
    return out.copy_(v.unflatten(1, (M, -1)).transpose(0, 1)).flatten(0, 1)


def max_pool_backward(g: Tensor, shape: torch.Size, *how: Any) -> Tensor:
    """Return what `aten::max_pool2d_with_indices_backward` returns, which of the images needs only the shape."""
    gradient: Tensor = _pool_backward(g, g.new_empty(shape), *how)
    return gradient


def threshold_backward(g: Tensor, *how: Any) -> Tensor:
    """Return what `aten::threshold_backward` returns for contiguous images, of a gradient in any layout."""
    gradient: Tensor = _threshold(g.contiguous(), *how)
    return gradient


def add_channels(x: Tensor, v: Tensor) -> Tensor:
    """Return x + v, of which v is part of a longer vector of each client."""
    return x + v.contiguous()


def add_channels_in_place(x: Tensor, v: Tensor) -> Tensor:
    """Return x + v in the memory of x, which nothing else uses."""
    return x.add_(v.contiguous())


def convolution_channels_last(x: Tensor, *how: Any) -> Tensor:
    """Return what `aten::convolution` returns, channels last."""
    y: Tensor = _convolution(x.contiguous(memory_format=torch.channels_last), *how)
    return y
