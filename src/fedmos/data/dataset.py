"""A data set: samples for training and testing, ready to be divided among clients."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import torch

from ..core.formatting import format_value
from ..core.validation import count, require
from ..core.validation import seed as seed_rule
from ..rng import Purpose, generator
from .arrays import importance_of
from .federated import FederatedData
from .normalize import Normalize
from .partition import Natural
from .partition.flower import FromFlower, is_flower
from .partition.split import ClientSplit, Partition

if TYPE_CHECKING:
    from .augment import Augment


@dataclass(frozen=True, eq=False, repr=False)
class Dataset:
    """Training and test samples. Images are (n, channels, height, width), uint8 until they are used."""

    name: str
    x_train: np.ndarray
    y_train: np.ndarray
    x_test: np.ndarray | None = None
    y_test: np.ndarray | None = None
    normalize: Normalize | None = None
    augment: Augment | None = None
    owner: np.ndarray | None = None
    """Where samples come from somebody: for each training sample, whose it is, as a number."""
    owners: Sequence[str] | None = None
    """The owners' names."""
    labels: Sequence[str] | None = None
    """The classes' names."""

    def __repr__(self) -> str:
        tests = 0 if self.y_test is None else len(self.y_test)
        return f"Dataset({self.name}: {len(self.y_train)} training and {tests} test samples)"

    @property
    def classes(self) -> int:
        """How many classes there are, if targets are class numbers."""
        if self.labels is not None:
            return len(self.labels)
        return int(self.y_train.max()) + 1

    def declare(self, normalize: Normalize | None = None, augment: Augment | None = None) -> Dataset:
        """The same samples with another normalisation or augmentation; what is not given stays."""
        if normalize is not None and not normalize.fits(self.x_train):
            raise ValueError(
                f"declare: 'normalize' must have one number or one for each channel of {self.name}, got {normalize}"
            )
        return replace(self, normalize=normalize or self.normalize, augment=augment or self.augment)

    def fewer_tests(self, n: int, seed: int = 0) -> Dataset:
        """The same data set with so many test samples, drawn at random, where evaluating on all would take too long."""
        require("fewer_tests", "n", n, count)
        if self.y_test is None or self.x_test is None or len(self.y_test) <= n:
            return self
        chosen = np.sort(generator(seed, Purpose.SPLIT).choice(len(self.y_test), n, replace=False))
        return replace(self, x_test=np.asarray(self.x_test[chosen]), y_test=np.asarray(self.y_test[chosen]))

    def partition(self, scheme: Partition, clients: int | None = None, seed: int = 0) -> FederatedData:
        """Divide the training samples among `clients` clients; the test samples stay with the server.

        `scheme` is one of `fm.partition`, a Flower Datasets partitioner, or any object with such a `split` method.
        Only those that bring a number of clients of their own (Natural, Flower's) can do without `clients`.
        """
        scheme = FromFlower(scheme) if is_flower(scheme) else scheme
        if isinstance(scheme, type | str) or not hasattr(scheme, "split"):
            raise ValueError(f"partition: 'scheme' must be a partition such as IID(), got {format_value(scheme)}")
        by_owner = getattr(scheme, "divides", "label") == "owner"
        if clients is not None or not getattr(scheme, "sets_clients", False):
            require("partition", "clients", clients, count)
        require("partition", "seed", seed, seed_rule)
        if by_owner and self.owner is None:
            raise ValueError(f"Cannot divide {self.name} by owner because its samples have none; use another partition")
        # A partition of somebody else's may write into what it is given.
        column = (self.owner if by_owner else self.y_train).view()  # type: ignore[union-attr]
        column.flags.writeable = False
        parts = scheme.split(column, None if clients is None else int(clients), int(seed))  # type: ignore[arg-type]
        split = parts if isinstance(parts, ClientSplit) else ClientSplit.of(parts)
        _check(split, clients, len(self.y_train))
        sizes = torch.from_numpy(split.sizes)
        names = None
        if split.owners is not None and self.owners is not None:
            names = [self.owners[i] for i in split.owners]
        return FederatedData(
            x=_tensor(self.x_train),
            y=_tensor(self.y_train),
            index=torch.from_numpy(split.entries),
            offsets=torch.from_numpy(split.offsets),
            importance=importance_of(sizes),
            test=None if self.x_test is None or self.y_test is None else (_tensor(self.x_test), _tensor(self.y_test)),
            normalize=self.normalize,
            augment=self.augment,
            names=names,
            labels=self.labels,
        )

    def federate(self, who: str, scheme: Partition | None, clients: int | None, seed: int) -> FederatedData:
        """The federation of the samples' owners, or divided by a scheme if one is given."""
        if scheme is None and self.owner is None:
            raise ValueError(f"{who}: 'partition' must be given where samples do not say whose they are")
        return self.partition(Natural() if scheme is None else scheme, clients, seed)


def _tensor(a: np.ndarray) -> torch.Tensor:
    """The array as a tensor, without a copy. Arrays may be read-only: nothing here writes to samples."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
        return torch.from_numpy(a)


def _check(split: ClientSplit, clients: int | None, samples: int) -> None:
    if clients is not None and len(split) != clients:
        raise ValueError(f"partition: 'scheme' must give {clients} parts, got {len(split)}")
    if not len(split):
        raise ValueError("partition: 'scheme' must give at least one part, got none")
    empty = np.flatnonzero(split.sizes == 0)
    if len(empty):
        raise ValueError(f"partition: 'scheme' must give every client a sample, got none for client {empty[0]}")
    low, high = int(split.entries.min()), int(split.entries.max())
    if low < 0 or high >= samples:
        raise ValueError(
            f"partition: 'scheme' must give samples from 0 to {samples - 1}, got {low if low < 0 else high}"
        )
