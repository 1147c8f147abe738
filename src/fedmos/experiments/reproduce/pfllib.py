"""PFLlib's setting: Fashion-MNIST with training and test samples merged, its pathological split, and its network."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from torch import nn

from ...core.validation import check, count
from ...data import Dataset, Normalize, datasets
from ...data.partition.split import ClientSplit
from ...models.images import cnn_pfllib
from ...rng import Purpose, generator


def fashion_mnist(root: str | None = None) -> Dataset:
    """Return all 70,000 images of Fashion-MNIST as training samples, of which clients hold out a part for tests."""
    data = datasets.load("fmnist", root)
    assert data.x_test is not None
    assert data.y_test is not None
    x, y = np.concatenate([data.x_train, data.x_test]), np.concatenate([data.y_train, data.y_test])
    normalize = Normalize(mean=0.5, std=0.5, scale=255.0)
    return replace(data, x_train=x, y_train=y, x_test=None, y_test=None, normalize=normalize)


@dataclass(frozen=True, kw_only=True)
class Pathological:
    """PFLlib's split by labels: successive clients hold the same `classes` classes, in parts of random size.

    Each class goes to as many clients as hold it. All but the last of them get between a tenth and the whole of an even
    share, and the last one gets the rest.

    Args:
        classes: Classes per client.
        least: Tenths of this many samples are the smallest part of a class.
    """

    classes: int = 2
    least: int = 40

    def __post_init__(self) -> None:
        check(self, classes=count, least=count)

    def split(self, labels: np.ndarray, clients: int, seed: int) -> ClientSplit:
        """Divide the samples among clients; see `Partition.split`."""
        rng, names = generator(seed, Purpose.PARTITION), np.unique(labels)
        left, parts = np.full(clients, self.classes), [list[np.ndarray]() for _ in range(clients)]
        holders_of_class = -(clients * self.classes // -len(names))
        for name in names:
            holders = np.flatnonzero(left)[:holders_of_class]
            if not len(holders):
                break  # no client is left for further classes
            pool = np.flatnonzero(labels == name)
            share = len(pool) / len(holders)
            low = max(share / 10, self.least / len(names))
            sizes = rng.integers(int(low), int(share), len(holders) - 1)
            for client, part in zip(holders, np.split(pool, np.cumsum(sizes)), strict=True):
                parts[client].append(part)
                left[client] -= 1
        sizes = np.array([sum(map(len, part)) for part in parts])
        return ClientSplit(entries=np.concatenate([v for part in parts for v in part]), sizes=sizes)


def cnn(seed: int = 0) -> nn.Module:
    """Return PFLlib's network for 28×28 images: two 5×5 convolutions and two linear layers, 582,026 parameters."""
    return cnn_pfllib(seed=seed)
