"""Folding of batch normalisation into the layers before it."""

from __future__ import annotations

from collections import Counter
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.nn.modules.conv import _ConvNd, _ConvTransposeNd
from torch.nn.utils.fusion import fuse_conv_bn_weights, fuse_linear_bn_weights

from ..core.module_copy import duplicated
from ..core.module_kind import torch_module
from ..core.statistics_layout import BatchNorm
from ..core.validation import require


class ChannelAffine(nn.Module):
    """Multiplies each channel (the second axis) by a trainable scale and adds a trainable shift."""

    def __init__(self, scale: Tensor, shift: Tensor) -> None:
        super().__init__()
        self.scale, self.shift = nn.Parameter(scale), nn.Parameter(shift)

    def forward(self, x: Tensor) -> Tensor:
        shape = (-1, *[1] * (x.ndim - 2))
        return torch.addcmul(self.shift.view(shape), x, self.scale.view(shape))

    def extra_repr(self) -> str:
        return f"{len(self.scale)}"


def fold_batchnorm(model: nn.Module) -> nn.Module:
    """Return a copy of `model` with each BatchNorm layer folded into the layer before it.

    The copy computes what the model computes in evaluation mode, up to rounding, with the running statistics as
    constants. A BatchNorm layer that follows a convolution or a linear layer changes its weight and bias and becomes
    `nn.Identity`; any other, and any of a model that `torch.fx` cannot trace, becomes a trainable scale and shift per
    channel. Use it for pretrained models, where `convert_batchnorm` would lose the statistics; use `convert_batchnorm`
    for models that start from random weights, whose statistics are not yet those of the data.

    Args:
        model: A module whose BatchNorm layers have running statistics.

    Raises:
        ValueError: If `model` is no module, or a BatchNorm layer has no running statistics.

    Example:
        >>> from torch import nn
        >>> model = nn.Sequential(nn.Conv2d(3, 8, 3, bias=False), nn.BatchNorm2d(8), nn.ReLU()).eval()
        >>> folded = fm.models.fold_batchnorm(model)
        >>> x = torch.ones(2, 3, 5, 5)
        >>> torch.allclose(folded(x), model(x), atol=1e-5)
        True
    """
    require("fold_batchnorm", "model", model, torch_module)
    model = duplicated(model)
    for name, module in model.named_modules():
        if isinstance(module, BatchNorm) and module.running_mean is None:
            raise ValueError(
                f"Cannot fold BatchNorm ('{name}') because it has no running statistics; "
                "use fm.models.convert_batchnorm(model)"
            )
    for before, norm in _foldable(model):
        _fold(model.get_submodule(before), model.get_submodule(norm))
        _replace(model, norm, nn.Identity())
    new: dict[int, ChannelAffine] = {}  # a layer that is used in two places stays one layer
    for name, module in list(model.named_modules(remove_duplicate=False)):
        if isinstance(module, BatchNorm):
            affine = new.setdefault(id(module), _affine(module))
            if not name:
                return affine
            _replace(model, name, affine)
    return model


def _replace(model: nn.Module, name: str, layer: nn.Module) -> None:
    layer.train(model.get_submodule(name).training)
    model.set_submodule(name, layer)


def _foldable(model: nn.Module) -> list[tuple[str, str]]:
    """Return the names of layers and of the BatchNorm layers that alone take their output; each is used once.

    Empty for a model whose forward pass cannot be traced, because it depends on the data, for example.
    """
    try:
        graph = fx.Tracer().trace(model)
    except Exception:  # a user's forward pass may raise anything here
        return []
    calls = Counter(id(model.get_submodule(str(node.target))) for node in graph.nodes if node.op == "call_module")
    read = {str(node.target).rpartition(".")[0] for node in graph.nodes if node.op == "get_attr"}
    pairs = []
    for node in graph.nodes:
        before = node.args[0] if node.op == "call_module" and node.args else None
        if not isinstance(before, fx.Node) or before.op != "call_module" or len(before.users) > 1:
            continue
        pair = str(before.target), str(node.target)
        layers = [model.get_submodule(name) for name in pair]
        if _fits(*layers) and all(calls[id(layer)] == 1 for layer in layers) and pair[0] not in read:
            pairs.append(pair)
    return pairs


def _fits(before: nn.Module, norm: nn.Module) -> bool:
    hooks = before._forward_hooks or before._forward_pre_hooks or norm._forward_hooks or norm._forward_pre_hooks
    if not isinstance(norm, BatchNorm) or hooks or hasattr(before, "parametrizations"):
        return False
    if isinstance(before, nn.Linear):
        return isinstance(norm, nn.BatchNorm1d) and before.out_features == norm.num_features
    if isinstance(before, _ConvTransposeNd) and before.groups > 1:  # PyTorch's function is for one group
        return False
    return isinstance(before, _ConvNd) and before.out_channels == norm.num_features


def _statistics(norm: Any) -> tuple[Any, Any, Any, Any, Any]:
    return norm.running_mean, norm.running_var, norm.eps, norm.weight, norm.bias


@torch.no_grad()
def _fold(before: Any, norm: nn.Module) -> None:
    """Change the weight and bias of a layer so that it computes what the layer and `norm` compute."""
    weight, bias, trained = before.weight, before.bias, before.weight.requires_grad
    if isinstance(before, nn.Linear):
        weight, bias = fuse_linear_bn_weights(weight, bias, *_statistics(norm))
    else:
        transpose = isinstance(before, _ConvTransposeNd)
        weight, bias = fuse_conv_bn_weights(weight, bias, *_statistics(norm), transpose)
    before.weight, before.bias = (nn.Parameter(v.detach(), requires_grad=trained) for v in (weight, bias))


@torch.no_grad()
def _affine(norm: BatchNorm) -> ChannelAffine:
    mean, var, eps, weight, bias = _statistics(norm)
    scale = torch.rsqrt(var + eps) if weight is None else torch.rsqrt(var + eps) * weight
    affine = ChannelAffine(scale, -mean * scale if bias is None else bias - mean * scale)
    return affine.requires_grad_(weight is None or weight.requires_grad)
