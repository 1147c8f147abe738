"""Who gets which samples, and what every partition is made of."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Protocol, overload

import numpy as np

Index = np.ndarray
"""int64 positions in the data set."""


class ClientSplit(Sequence[Index]):
    """The samples of every client: one index, client after client, and where each client's part of it begins.

    Reads as a sequence of arrays, one per client; a million clients cost no more than the index itself.
    """

    def __init__(self, entries: Index, sizes: np.ndarray, owners: np.ndarray | None = None) -> None:
        self.entries = entries
        self.offsets = np.concatenate([[0], np.cumsum(sizes, dtype=np.int64)])
        self.owners = owners
        """Which natural owner each client is, if any."""

    @classmethod
    def of(cls, parts: Iterable[Any]) -> ClientSplit:
        """From an array of sample numbers per client."""
        arrays = [_numbers(part, i) for i, part in enumerate(_listed(parts))]
        entries = np.concatenate(arrays) if arrays else np.empty(0, np.int64)
        return cls(entries, np.array([len(a) for a in arrays], dtype=np.int64))

    @property
    def sizes(self) -> np.ndarray:
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
    """Anything with this method is a partition.

    One with `divides = "owner"` is given every sample's natural owner instead of its label, one with
    `sets_clients = True` may be called with `clients=None`.
    """

    def split(self, labels: np.ndarray, clients: int, seed: int) -> Sequence[Index]:
        """The samples of each client, given every sample's label."""


def pools_of(label: np.ndarray, classes: int, order: Index) -> list[Index]:
    """The samples of each class 0 … classes−1, in the order given."""
    by_class = order[np.argsort(label[order], kind="stable")]
    return np.split(by_class, np.cumsum(np.bincount(label, minlength=classes))[:-1])


def deal(pools: Sequence[Index], counts: np.ndarray) -> ClientSplit:
    """Give client i the next counts[i, c] samples of every pool c; `counts` is (clients, pools)."""
    sizes = counts.sum(1, dtype=np.int64)
    index = np.empty(int(sizes.sum()), dtype=np.int64)
    start = np.cumsum(sizes) - sizes  # where the client's next sample goes
    for c, pool in enumerate(pools):
        own = counts[:, c].astype(np.int64)
        taken = int(own.sum())
        before = np.cumsum(own) - own
        index[np.repeat(start - before, own) + np.arange(taken)] = pool[:taken]
        start += own
    return ClientSplit(index, sizes)


def even(total: int, parts: int) -> np.ndarray:
    """`total` as a sum of `parts` integers that differ by one at most, larger ones first."""
    return total // parts + (np.arange(parts) < total % parts)


def in_proportion(total: int, weights: np.ndarray, least: int) -> np.ndarray:
    """`total` as a sum of integers ≥ `least`, beyond that as close to proportional to `weights` as integers can be."""
    share = weights / weights.sum() * total
    short = share < least
    while short.any() and not short.all():  # those raised to the least leave less for the others
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


def enough(caller: str, samples: int, clients: int, each: int = 1) -> None:
    """Refuse to divide fewer samples than the clients need."""
    if samples < clients * each:
        need = "one" if each == 1 else str(each)
        raise ValueError(
            f"Cannot divide {samples} samples among {clients} clients ({caller}) because each needs {need}; "
            "use fewer clients"
        )


def coded(labels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The distinct labels, and every sample's as a number among them."""
    if labels.ndim != 1 or labels.dtype.kind not in "iub":
        raise ValueError(
            f"Cannot divide the data by class because its targets are {labels.dtype} of shape {labels.shape}, not one "
            "class number per sample; use IID, QuantitySkew or Natural"
        )
    names, label = np.unique(labels, return_inverse=True)
    return names, label
