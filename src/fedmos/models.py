"""The models of the papers. Each function returns a fresh module whose weights depend on `seed` alone."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable

import torch
from torch import nn


def _seeded(make: Callable[[], nn.Module], seed: int) -> nn.Module:
    """Build a module with PyTorch's own initialisers, leaving the global generator as it was."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return make()


def _dropout(layer: nn.Module, on: bool) -> list[nn.Module]:
    return [layer] if on else []


def logistic(features: int = 784, classes: int = 10, seed: int = 0) -> nn.Module:
    """Multinomial logistic regression on flattened inputs."""
    return _seeded(lambda: nn.Sequential(nn.Flatten(), nn.Linear(features, classes)), seed)


def mlp(features: int = 784, classes: int = 10, dropout: bool = False, seed: int = 0) -> nn.Module:
    """Power-of-Choice's network: features-64-30-classes, 52,500 parameters for 28×28 images and 10 classes."""
    return _seeded(
        lambda: nn.Sequential(
            nn.Flatten(),
            nn.Linear(features, 64),
            nn.ReLU(),
            nn.Linear(64, 30),
            nn.ReLU(),
            *_dropout(nn.Dropout(0.5), dropout),
            nn.Linear(30, classes),
        ),
        seed,
    )


def cnn_mnist(classes: int = 10, dropout: bool = False, seed: int = 0) -> nn.Module:
    """FedMoS's network for MNIST: two 5×5 convolutions and two linear layers, 21,840 parameters."""
    return _seeded(
        lambda: nn.Sequential(
            nn.Conv2d(1, 10, 5),
            nn.MaxPool2d(2),
            nn.ReLU(),
            nn.Conv2d(10, 20, 5),
            *_dropout(nn.Dropout2d(0.5), dropout),
            nn.MaxPool2d(2),
            nn.ReLU(),
            nn.Flatten(),
            nn.Linear(320, 50),
            nn.ReLU(),
            *_dropout(nn.Dropout(0.5), dropout),
            nn.Linear(50, classes),
        ),
        seed,
    )


def cnn_digits(classes: int = 10, dropout: bool = False, seed: int = 0) -> nn.Module:
    """A small network for 8×8 digits: two 3×3 convolutions and a linear layer, 1,898 parameters."""
    return _seeded(
        lambda: nn.Sequential(
            nn.Conv2d(1, 8, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(8, 16, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Flatten(),
            *_dropout(nn.Dropout(0.5), dropout),
            nn.Linear(64, classes),
        ),
        seed,
    )


def convert_batchnorm(model: nn.Module, groups: int = 2) -> nn.Module:
    """A copy of `model` with each BatchNorm replaced by GroupNorm of (at most) `groups` groups.

    Scale and shift are kept. Running statistics are not: GroupNorm has none, which is the point.
    """
    model = copy.deepcopy(model)
    new: dict[int, nn.GroupNorm] = {}  # a layer used in two places stays one layer
    for name, module in list(model.named_modules(remove_duplicate=False)):
        if not isinstance(module, nn.modules.batchnorm._BatchNorm):
            continue
        channels = module.num_features
        norm = new.setdefault(
            id(module), nn.GroupNorm(math.gcd(groups, channels), channels, eps=module.eps, affine=module.affine)
        )
        if module.affine:
            norm.weight, norm.bias = module.weight, module.bias
        if not name:
            return norm
        parent, _, child = name.rpartition(".")
        setattr(model.get_submodule(parent), child, norm)
    return model
