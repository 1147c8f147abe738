"""Group normalisation, which unlike batch normalisation keeps no running statistics of clients' data."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from ..core.module_copy import duplicated
from ..core.module_kind import torch_module
from ..core.statistics_layout import BatchNorm
from ..core.validation import count, require


class GroupNorm(nn.GroupNorm):
    """`nn.GroupNorm` in elementary operations, which `torch.compile` supports under `vmap` on a GPU.

    Example:
        >>> fm.models.GroupNorm(2, 4)(torch.zeros(5, 4, 8, 8)).shape
        torch.Size([5, 4, 8, 8])
    """

    def forward(self, x: Tensor) -> Tensor:
        B, C, G = *x.shape[:2], self.num_groups
        groups = x.reshape(B, G, -1)
        mean = groups.mean(-1, keepdim=True)
        var = (groups - mean).square().mean(-1, keepdim=True)
        # A scale and a shift per channel, so that only the last line computes with all of x.
        scale = torch.rsqrt(var + self.eps).expand(B, G, C // G)
        if self.weight is not None:
            scale = scale * self.weight.view(G, -1)
        shift = -mean * scale
        if self.bias is not None:
            shift = shift + self.bias.view(G, -1)
        shape = (B, C, *[1] * (x.ndim - 2))
        return torch.addcmul(shift.reshape(shape), x, scale.reshape(shape))


def convert_batchnorm(model: nn.Module, groups: int = 2) -> nn.Module:
    """Return a copy of `model` with each BatchNorm layer replaced by GroupNorm.

    Scale and shift are kept. Running statistics are dropped: GroupNorm has none. A pretrained model loses accuracy by
    that; `fold_batchnorm` keeps what it computes.

    Args:
        model: A module.
        groups: Number of groups per layer; fewer where the number of channels is not a multiple of it.

    Raises:
        ValueError: If an argument is out of range.

    Example:
        >>> from torch import nn
        >>> converted = fm.models.convert_batchnorm(nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8)))
        >>> converted[1].num_groups
        2
    """
    require("convert_batchnorm", "model", model, torch_module)
    require("convert_batchnorm", "groups", groups, count)
    model = duplicated(model)
    new: dict[int, GroupNorm] = {}  # a layer that is used in two places stays one layer
    for name, module in list(model.named_modules(remove_duplicate=False)):
        if not isinstance(module, BatchNorm):
            continue
        channels = module.num_features
        norm = new.setdefault(
            id(module), GroupNorm(math.gcd(groups, channels), channels, eps=module.eps, affine=module.affine)
        )
        if module.affine:
            norm.weight, norm.bias = module.weight, module.bias
        norm.train(module.training)
        if not name:
            return norm
        model.set_submodule(name, norm)
    return model
