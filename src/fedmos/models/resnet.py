"""Residual networks (He et al., CVPR 2016) with GroupNorm of two groups instead of BatchNorm."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import torch.nn.functional as F
from torch import Tensor, nn

from .norm import GroupNorm
from .seeded import checked, seeded

Shortcut = Callable[[int, int, int], nn.Module]
"""Makes the shortcut of a block that changes the shape, from (channels before, channels after, stride)."""


@checked
def resnet20(classes: int = 10, channels: int = 3, seed: int = 0) -> nn.Module:
    """GHBM's ResNet-20 for 32×32 images: shortcuts without parameters, 269,722 parameters for 10 classes.

    The initial weights are those of the implementation that the paper names: Kaiming normal, including the last layer.

    Args:
        classes: Number of classes.
        channels: Number of channels of the images.
        seed: Seed of the initial weights.

    Example:
        >>> fm.models.resnet20()(torch.zeros(1, 3, 32, 32)).shape
        torch.Size([1, 10])
    """

    def make() -> nn.Module:
        stages = _stages(16, (16, 32, 64), blocks=3, shortcut=Padding)
        net = nn.Sequential(*_convolution(channels, 16, 3), nn.ReLU(), *stages, *_head(64, classes))
        return _initialised(net, "fan_in", (nn.Conv2d, nn.Linear))

    return seeded(make, seed)


@checked
def resnet18(
    classes: int = 10,
    channels: int = 3,
    stem: Literal["cifar", "imagenet"] = "cifar",
    width: int = 64,
    seed: int = 0,
) -> nn.Module:
    """FedCM's ResNet-18: 11,173,962 parameters for 10 classes; with the stem for ImageNet 11,181,642.

    The paper does not specify the stem.

    Args:
        classes: Number of classes.
        channels: Number of channels of the images.
        stem: "cifar" begins with a 3×3 convolution that keeps the size of the image, "imagenet" with a 7×7
            convolution of stride 2 and a pooling layer.
        width: Number of channels of the first stage, 64 in the paper.
        seed: Seed of the initial weights.

    Example:
        >>> fm.models.resnet18(width=8)(torch.zeros(1, 3, 32, 32)).shape
        torch.Size([1, 10])
    """
    if stem not in ("cifar", "imagenet"):
        raise ValueError(f"resnet18: 'stem' must be one of 'cifar', 'imagenet', got {stem!r}")

    def make() -> nn.Module:
        if stem == "cifar":
            first = [*_convolution(channels, width, 3), nn.ReLU()]
        else:
            first = [*_convolution(channels, width, 7, stride=2), nn.ReLU(), nn.MaxPool2d(3, stride=2, padding=1)]
        stages = _stages(width, (width, 2 * width, 4 * width, 8 * width), blocks=2, shortcut=_projection)
        return _initialised(nn.Sequential(*first, *stages, *_head(8 * width, classes)), "fan_out", (nn.Conv2d,))

    return seeded(make, seed)


class Block(nn.Module):
    """Two 3×3 convolutions with a shortcut."""

    def __init__(self, before: int, after: int, stride: int, shortcut: nn.Module) -> None:
        super().__init__()
        self.body = nn.Sequential(*_convolution(before, after, 3, stride), nn.ReLU(), *_convolution(after, after, 3))
        self.shortcut = shortcut

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.body(x) + self.shortcut(x))


class Padding(nn.Module):
    """Shortcut of option A of the paper: every other pixel, with zero channels before and after."""

    def __init__(self, before: int, after: int, stride: int) -> None:
        super().__init__()
        self.more, self.stride = after - before, stride

    def forward(self, x: Tensor) -> Tensor:
        less = self.more // 2
        return F.pad(x[:, :, :: self.stride, :: self.stride], (0, 0, 0, 0, less, self.more - less))


def _projection(before: int, after: int, stride: int) -> nn.Module:
    """Shortcut of option B of the paper: a 1×1 convolution."""
    return nn.Sequential(*_convolution(before, after, 1, stride))


def _convolution(before: int, after: int, size: int, stride: int = 1) -> list[nn.Module]:
    conv = nn.Conv2d(before, after, size, stride=stride, padding=size // 2, bias=False)
    return [conv, GroupNorm(2, after)]


def _stages(before: int, widths: tuple[int, ...], blocks: int, shortcut: Shortcut) -> list[nn.Module]:
    """Return `blocks` blocks of each width; every stage but the first halves the height and width of the image."""
    layers: list[nn.Module] = []
    for width in widths:
        for _ in range(blocks):
            stride = 1 if width == before else 2
            bypass = nn.Identity() if width == before else shortcut(before, width, stride)
            layers.append(Block(before, width, stride, bypass))
            before = width
    return layers


def _head(features: int, classes: int) -> list[nn.Module]:
    return [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(features, classes)]


def _initialised(net: nn.Module, mode: Literal["fan_in", "fan_out"], kinds: tuple[type[nn.Module], ...]) -> nn.Module:
    for module in net.modules():
        if isinstance(module, kinds):
            nn.init.kaiming_normal_(module.get_parameter("weight"), mode=mode, nonlinearity="relu")
    return net
