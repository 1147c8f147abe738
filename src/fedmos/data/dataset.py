"""A data set: samples for training and testing, before they are divided among clients."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import torch

from ..core.formatting import format_value
from ..core.validation import check, count, require
from ..core.validation import seed as seed_rule
from ..rng import Purpose, generator
from .arrays import importance_of
from .augment import augment_rule
from .client_tests import ClientTests
from .federated import FederatedData
from .holdout import check_disjoint, divide, hold_out
from .normalize import Normalize, normalize_rule
from .partition import Natural
from .partition.flower import FromFlower, is_flower
from .partition.split import ClientSplit, Partition

if TYPE_CHECKING:
    from .augment import Augment
    from .importers.encoding import Encoding


@dataclass(frozen=True, eq=False, repr=False)
class Dataset:
    """Training and test samples. Images are (n, channels, height, width) and stored as uint8.

    Example:
        >>> import numpy as np
        >>> dataset = fm.Dataset("zeros", np.zeros((100, 5), np.float32), np.arange(100) % 2)
        >>> dataset
        Dataset(zeros: 100 training and 0 test samples)
        >>> dataset.partition(fm.partition.IID(), clients=4)
        FederatedData(4 clients, 100 samples)
    """

    name: str
    """The name of the data set."""
    x_train: np.ndarray
    """Training inputs."""
    y_train: np.ndarray
    """Training targets."""
    x_test: np.ndarray | None = None
    """Test inputs."""
    y_test: np.ndarray | None = None
    """Test targets."""
    normalize: Normalize | None = None
    """The normalisation of inputs."""
    augment: Augment | None = None
    """The augmentation of training images."""
    owner: np.ndarray | None = None
    """The natural owner of each training sample, as a number, if samples have owners."""
    owners: Sequence[str] | None = None
    """The names of the owners."""
    labels: Sequence[str] | None = None
    """The names of the classes."""
    encoding: Encoding | None = None
    """How the columns of a table became the inputs."""
    held_out: np.ndarray | None = None
    """Whether each training sample is a test sample of its client instead, bool; None if none is."""
    test_owner: np.ndarray | None = None
    """The owner of each test sample, as a number, if the owners of the training samples have these, too."""

    def __post_init__(self) -> None:
        check(self, normalize=normalize_rule, augment=augment_rule)
        if self.normalize is not None:
            object.__setattr__(self, "normalize", self.normalize.resolved(self.x_train))

    def __repr__(self) -> str:
        tests = 0 if self.y_test is None else len(self.y_test)
        return f"Dataset({self.name}: {len(self.y_train)} training and {tests} test samples)"

    @property
    def classes(self) -> int:
        """Number of classes, if targets are class numbers."""
        if self.labels is not None:
            return len(self.labels)
        return int(self.y_train.max()) + 1

    def declare(self, normalize: Normalize | None = None, augment: Augment | None = None) -> Dataset:
        """Return the data set with another normalisation or augmentation.

        Args:
            normalize: The normalisation (default: unchanged).
            augment: The augmentation (default: unchanged).

        Raises:
            ValueError: If `normalize` does not fit the number of channels.

        Example:
            >>> digits = fm.datasets.load("digits").declare(normalize=fm.Normalize(0.5, 0.5, scale=16))
        """
        require("declare", "normalize", normalize, normalize_rule)
        require("declare", "augment", augment, augment_rule)
        if normalize is not None and not normalize.fits(self.x_train):
            raise ValueError(
                f"declare: 'normalize' must have one number or one for each channel of {self.name}, got {normalize}"
            )
        return replace(self, normalize=normalize or self.normalize, augment=augment or self.augment)

    def fewer_tests(self, n: int, seed: int = 0) -> Dataset:
        """Return the data set with a random subset of the test samples, for faster evaluation.

        Args:
            n: Number of test samples to keep.
            seed: Seed of the draw.

        Example:
            >>> fm.datasets.load("digits").fewer_tests(100)
            Dataset(digits: 1438 training and 100 test samples)
        """
        require("fewer_tests", "n", n, count)
        require("fewer_tests", "seed", seed, seed_rule)
        if self.y_test is None or self.x_test is None or len(self.y_test) <= n:
            return self
        chosen = np.sort(generator(seed, Purpose.SPLIT).choice(len(self.y_test), n, replace=False))
        owner = None if self.test_owner is None else self.test_owner[chosen]
        x, y = np.asarray(self.x_test[chosen]), np.asarray(self.y_test[chosen])
        return replace(self, x_test=x, y_test=y, test_owner=owner)

    def partition(
        self, scheme: Partition, clients: int | None = None, seed: int = 0, holdout: float | None = None
    ) -> FederatedData:
        """Divide the training samples among clients; the test samples stay with the server.

        If test samples have owners and samples are divided by owner, those of a client's owner are its own test
        samples, too, unless a share of its training samples is (`holdout`).

        Args:
            scheme: A partition of `fm.partition`, a Flower Datasets partitioner, or any object with a method `split`
                like that of `fm.partition.Partition`.
            clients: Number of clients. Optional for schemes that define it themselves (Natural, Fixed, Flower's).
            seed: Seed of the partition.
            holdout: The share of each client's samples that become its own test samples, which are never used in
                training: drawn in proportion to its classes, at least one of two or more samples.

        Returns:
            A `FederatedData`.

        Raises:
            ValueError: If an argument is invalid or the scheme cannot divide the samples.

        Example:
            >>> digits = fm.datasets.load("digits")
            >>> digits.partition(fm.partition.Dirichlet(alpha=0.5), clients=20, seed=1)
            FederatedData(20 clients, 1438 samples)
            >>> data = digits.partition(fm.partition.IID(), clients=20, holdout=0.2)
            >>> data, data.tests
            (FederatedData(20 clients, 1158 samples), ClientTests(20 clients, 280 samples))
        """
        split, tested = self._held_out(self._split(scheme, clients, seed), holdout, int(seed))
        names = None
        if split.owners is not None and self.owners is not None:
            names = [self.owners[i] for i in split.owners]
        x, y = _tensor(self.x_train), _tensor(self.y_train)
        test = None if self.x_test is None or self.y_test is None else (_tensor(self.x_test), _tensor(self.y_test))
        tests = None
        if tested is not None:
            tests = ClientTests(x, y, torch.from_numpy(tested.entries), torch.from_numpy(tested.offsets))
        elif test is not None and self.test_owner is not None and split.owners is not None:
            of_owners = ClientSplit.of(np.flatnonzero(self.test_owner == owner) for owner in split.owners)
            tests = ClientTests(*test, torch.from_numpy(of_owners.entries), torch.from_numpy(of_owners.offsets))
        return FederatedData(
            x=x,
            y=y,
            index=torch.from_numpy(split.entries),
            offsets=torch.from_numpy(split.offsets),
            importance=importance_of(torch.from_numpy(split.sizes)),
            test=test,
            tests=tests,
            normalize=self.normalize,
            augment=self.augment,
            names=names,
            labels=self.labels,
            encoding=self.encoding,
        )

    def _held_out(self, split: ClientSplit, holdout: float | None, seed: int) -> tuple[ClientSplit, ClientSplit | None]:
        """Return the training and the test samples of each client; None for the latter if there are none."""
        if self.held_out is not None:
            if holdout is not None:
                raise ValueError(
                    f"partition: 'holdout' must be None because {self.name} says which samples are test samples, got "
                    f"{format_value(holdout)}"
                )
            check_disjoint(split)
            return divide(split, self.held_out[split.entries])
        if holdout is None:
            return split, None
        train, test = hold_out(split, self.y_train, holdout, seed)
        return train, test if len(test.entries) else None

    def _split(self, scheme: Partition, clients: int | None, seed: int) -> ClientSplit:
        """Apply the scheme to the labels or owners of the training samples, and validate the result."""
        scheme = FromFlower(scheme) if is_flower(scheme) else scheme
        if isinstance(scheme, type | str | bytes | torch.Tensor) or not hasattr(scheme, "split"):
            raise ValueError(f"partition: 'scheme' must be a partition such as IID(), got {format_value(scheme)}")
        by_owner = getattr(scheme, "divides", "label") == "owner"
        if clients is not None or not getattr(scheme, "sets_clients", False):
            require("partition", "clients", clients, count)
        require("partition", "seed", seed, seed_rule)
        if by_owner and self.owner is None:
            raise ValueError(f"Cannot divide {self.name} by owner because its samples have none; use another partition")
        # A user's partition could write to its argument.
        column = (self.owner if by_owner else self.y_train).view()  # type: ignore[union-attr]
        column.flags.writeable = False
        parts = scheme.split(column, None if clients is None else int(clients), int(seed))  # type: ignore[arg-type]
        split = parts if isinstance(parts, ClientSplit) else ClientSplit.of(parts)
        _check(split, clients, len(self.y_train))
        return split

    def federate(
        self,
        caller: str,
        scheme: Partition | None,
        clients: int | None,
        seed: int,
        holdout: float | None = None,
    ) -> FederatedData:
        """Divide by a scheme, or by the owners of the samples if it is None.

        Args:
            caller: The name of the public function, for errors.
            scheme: A partition, or None.
            clients: Number of clients.
            seed: Seed of the partition.
            holdout: The share of each client's samples that become its own test samples.
        """
        if scheme is None and self.owner is None:
            raise ValueError(f"{caller}: 'partition' must be given because the samples have no owners")
        return self.partition(Natural() if scheme is None else scheme, clients, seed, holdout)


def _tensor(a: np.ndarray) -> torch.Tensor:
    """Return the array as a tensor without a copy. The array can be read-only: samples are never written."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
        return torch.from_numpy(a)


def _check(split: ClientSplit, clients: int | None, samples: int) -> None:
    """Raise ValueError if the split has the wrong number of clients, an empty one, or samples that do not exist."""
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
