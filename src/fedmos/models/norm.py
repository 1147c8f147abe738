"""Group normalisation, which unlike batch normalisation keeps no statistics that clients would share."""

from __future__ import annotations

import copy
import math

import torch
from torch import Tensor, nn


class GroupNorm(nn.GroupNorm):
    """`nn.GroupNorm` in elementary operations, which `torch.compile` can follow under `vmap` on a GPU."""

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
    """A copy of `model` with each BatchNorm replaced by GroupNorm of (at most) `groups` groups.

    Scale and shift are kept. Running statistics are not: GroupNorm has none, which is the point.
    """
    model = copy.deepcopy(model)
    new: dict[int, GroupNorm] = {}  # a layer used in two places stays one layer
    for name, module in list(model.named_modules(remove_duplicate=False)):
        if not isinstance(module, nn.modules.batchnorm._BatchNorm):
            continue
        channels = module.num_features
        norm = new.setdefault(
            id(module), GroupNorm(math.gcd(groups, channels), channels, eps=module.eps, affine=module.affine)
        )
        if module.affine:
            norm.weight, norm.bias = module.weight, module.bias
        if not name:
            return norm
        parent, _, child = name.rpartition(".")
        setattr(model.get_submodule(parent), child, norm)
    return model
