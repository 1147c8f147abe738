"""A small version of each model, and samples for it."""

import numpy as np
import pytest
import torch
from torch import nn

import fedmos as fm
from fedmos.config import registry as registry

VIT = {"image_size": 32, "layers": 2, "width": 16, "heads": 2}


# A small version of each model, the shape of a sample (of tokens, where one number), and its classes.
SMALL = {
    "char_lstm": ({"hidden": 10}, (7,), 80),
    "cnn_cifar": ({}, (3, 32, 32), 10),
    "cnn_cifar with dropout": ({"dropout": True}, (3, 32, 32), 10),
    "cnn_digits": ({}, (1, 8, 8), 10),
    "cnn_pfllib": ({"channels": 3, "size": 16, "classes": 4}, (3, 16, 16), 4),
    "cnn_mnist": ({}, (1, 28, 28), 10),
    "lenet": ({"classes": 4}, (3, 32, 32), 4),
    "logistic": ({}, (1, 28, 28), 10),
    "mlp": ({}, (1, 28, 28), 10),
    "mlp_cifar": ({"features": 48}, (3, 4, 4), 10),
    "mobilenet_v2": ({"depth_multiplier": 0.1}, (3, 32, 32), 10),
    "mobilenet_v2 with dropout": ({"depth_multiplier": 0.1, "dropout": True}, (3, 32, 32), 10),
    "resnet18": ({"width": 8}, (3, 8, 8), 10),
    "resnet20": ({"channels": 1, "classes": 3}, (1, 8, 8), 3),
    "simple_cnn": ({"channels": 1, "size": 18}, (1, 18, 18), 10),
    "vit_b16": (VIT | {"classes": 6}, (3, 32, 32), 6),
    "vit_b16 with dropout": (VIT | {"dropout": True}, (3, 32, 32), 10),
    "word_lstm": ({"vocabulary": 30, "embedding": 5, "hidden": 8}, (6,), 30),
}


def make(case: str, **more) -> nn.Module:
    name = case.split()[0]
    if name in ("mobilenet_v2", "vit_b16"):
        pytest.importorskip("transformers")
    return getattr(fm.models, name)(**SMALL[case][0] | more)


def samples(case: str, n: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    _, shape, classes = SMALL[case]
    x = rng.integers(classes, size=(n, *shape)) if len(shape) == 1 else rng.standard_normal((n, *shape))
    return x, rng.integers(classes, size=(n, *shape) if case == "word_lstm" else n)


def flat(model: nn.Module) -> torch.Tensor:
    return torch.cat([p.detach().flatten() for p in model.parameters()])
