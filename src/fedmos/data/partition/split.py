"""The assignment of samples to clients, the interface of partitions, and functions that they share."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Protocol, overload

import numpy as np

Index = np.ndarray
"""Positions in the data set, int64."""


class ClientSplit(Sequence[Index]):
    """The samples of every client: one index, client after client, and the offset of each client in it.

    It is a sequence of arrays, one per client, but stores only the index and the offsets.

    Args:
        entries: Positions in the data set, client after client.
        sizes: Number of samples of each client.
        owners: The natural owner of each client, if any.

    Example:
        >>> import numpy as np
        >>> split = fm.partition.ClientSplit(entries=np.array([4, 2, 0]), sizes=np.array([2, 1]))
        >>> [part.tolist() for part in split]
        [[4, 2], [0]]
    """

    def __init__(self, entries: Index, sizes: np.ndarray, owners: np.ndarray | None = None) -> None:
        self.entries = entries
        self.offsets = np.concatenate([[0], np.cumsum(sizes, dtype=np.int64)])
        self.owners = owners

    @classmethod
    def of(cls, parts: Iterable[Any]) -> ClientSplit:
        """Create a split from one array of sample numbers per client.

        Raises:
            ValueError: If a part is not a vector of integers.
        """
        arrays = [_numbers(part, i) for i, part in enumerate(_listed(parts))]
        entries = np.concatenate(arrays) if arrays else np.empty(0, np.int64)
        return cls(entries, np.array([len(a) for a in arrays], dtype=np.int64))

    @property
    def sizes(self) -> np.ndarray:
        """Number of samples of each client."""
        return np.diff(self.offsets)

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @overload
    def __getitem__(self, i: int) -> Index: ...
    @overload
    def __getitem__(self, i: slice) -> Sequence[Index]: ...
    def __getitem__(self, i: int | slice) -> Index | Sequence[Index]:
        if isinstance(i, slice):
            return [self[j] for j in range(*i.indices(len(self)))]
        if not -len(self) <= i < len(self):
            raise IndexError(i)
        i %= len(self)
        return self.entries[self.offsets[i] : self.offsets[i + 1]]


def _listed(parts: Any) -> Iterable[Any]:
    try:
        return list(parts)
    except TypeError:
        raise ValueError(f"partition: the split must be an array of samples for each client, got {parts!r}") from None


def _numbers(part: Any, client: int) -> Index:
    try:
        a = np.asarray(part)
    except ValueError:
        a = np.empty((0, 0))
    if a.ndim != 1 or (a.dtype.kind not in "iu" and a.size):
        raise ValueError(
            f"partition: the samples of client {client} must be a list of integers, got {a.dtype} of shape {a.shape}"
        )
    return a.astype(np.int64)


class Partition(Protocol):
    """The interface of partitions: any object with this method can be passed to `Dataset.partition`.

    A partition with `divides = "owner"` receives the natural owner of each sample instead of its label. A partition
    with `sets_clients = True` can be called with `clients=None`.

    Example:
        >>> class Alternate:
        ...     def split(self, labels, clients, seed):
        ...         return [range(i, len(labels), clients) for i in range(clients)]
        >>> fm.datasets.load("digits").partition(Alternate(), clients=4)
        FederatedData(4 clients, 1438 samples)
    """

    def split(self, labels: np.ndarray, clients: int, seed: int) -> Sequence[Index]:
        """Divide the samples among clients.

        Args:
            labels: The label of each sample.
            clients: Number of clients.
            seed: Seed of the random numbers.

        Returns:
            The positions of the samples of each client.
        """


def pools_of(label: np.ndarray, classes: int, order: Index) -> list[Index]:
    """Return the samples of each class 0 … classes−1 in the given order."""
    by_class = order[np.argsort(label[order], kind="stable")]
    return np.split(by_class, np.cumsum(np.bincount(label, minlength=classes))[:-1])


def deal(pools: Sequence[Index], counts: np.ndarray) -> ClientSplit:
    """Assign to client i the next counts[i, c] samples of every pool c; `counts` is (clients, pools)."""
    sizes = counts.sum(1, dtype=np.int64)
    index = np.empty(int(sizes.sum()), dtype=np.int64)
    start = np.cumsum(sizes) - sizes  # the position of each client's next sample
    for c, pool in enumerate(pools):
        own = counts[:, c].astype(np.int64)
        taken = int(own.sum())
        before = np.cumsum(own) - own
        index[np.repeat(start - before, own) + np.arange(taken)] = pool[:taken]
        start += own
    return ClientSplit(index, sizes)


def even(total: int, parts: int) -> np.ndarray:
    """Return `total` as a sum of `parts` integers that differ by at most one, larger ones first."""
    return total // parts + (np.arange(parts) < total % parts)


def in_proportion(total: int, weights: np.ndarray, least: int) -> np.ndarray:
    """Return `total` as a sum of integers ≥ `least` that are as proportional to `weights` as possible."""
    share = weights / weights.sum() * total
    short = share < least
    while short.any() and not short.all():  # raising some to the minimum leaves less for the others
        rest = ~short
        share[rest] = weights[rest] / weights[rest].sum() * (total - least * short.sum())
        fallen = rest & (share < least)
        if not fallen.any():
            break
        short |= fallen
    share = np.where(short, least, share)
    floor = np.floor(share).astype(np.int64)
    missing = int(total - floor.sum())
    largest = np.argsort(floor - share, kind="stable")[:missing]
    floor[largest] += 1
    return floor


def check_enough(caller: str, samples: int, clients: int, each: int = 1) -> None:
    """Raise ValueError if there are fewer than `each` samples per client."""
    if samples < clients * each:
        need = "one" if each == 1 else str(each)
        raise ValueError(
            f"Cannot divide {samples} samples among {clients} clients ({caller}) because each needs {need}; "
            "use fewer clients"
        )


def encode_labels(labels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the distinct labels, and the label of each sample as an index into them."""
    if labels.ndim != 1 or labels.dtype.kind not in "iub":
        raise ValueError(
            f"Cannot divide the data by class because its targets are {labels.dtype} of shape {labels.shape}, not one "
            "class number per sample; use IID, QuantitySkew or Natural"
        )
    names, label = np.unique(labels, return_inverse=True)
    return names, label
