"""Partitions with a few classes per client."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from ...core.validation import Rule, check, count, none, one_of
from ...rng import Purpose, generator
from .split import ClientSplit, check_enough, deal, encode_labels, even, pools_of

_ONE_BY_ONE = 20_000
"""Up to this number of clients, classes are drawn client by client, otherwise in blocks of clients."""


Pair = tuple[int, int]


def _is_pair(v: object) -> bool:
    return isinstance(v, Sequence) and not isinstance(v, str) and len(v) == 2 and all(count.test(b) for b in v)


def _is_size(v: object) -> bool:
    if not isinstance(v, Sequence) or isinstance(v, str):
        return count.test(v)
    if _is_pair(v):
        return bool(v[0] <= v[1])
    return len(v) > 0 and all(map(_is_pair, v))


@dataclass(frozen=True, kw_only=True)
class ByClass:
    """Each client has samples of `classes` random classes; no sample is assigned twice.

    Args:
        classes: Number of classes per client.
        size: Number of samples per client: one number; a range (low, high), drawn uniformly (FedMoS's MNIST split is
            `ByClass(classes=2, size=(10, 50))`); or pairs (clients, samples per client), in random order. None assigns
            all samples, with each class divided equally among the clients that have it (classes without a client are
            not used).
        share: Divide a client's samples among its classes at random ("random", at least one each) or as evenly as
            possible ("even").

    Example:
        >>> scheme = fm.partition.ByClass(classes=2, size=(10, 50))
        >>> data = fm.datasets.load("digits").partition(scheme, clients=20)
        >>> data.describe().labels.per_client
        2.0
    """

    classes: int
    size: int | Pair | tuple[Pair, ...] | None = None
    share: Literal["random", "even"] = "random"

    def __post_init__(self) -> None:
        check(
            self,
            classes=count,
            size=Rule("an integer ≥ 1, a range (low, high), pairs (clients, samples)", _is_size) | none,
            share=one_of("random", "even"),
        )
        if isinstance(self.size, Sequence):
            parts: Sequence[Any] = self.size
            size = tuple(tuple(map(int, part)) if isinstance(part, Sequence) else int(part) for part in parts)
            object.__setattr__(self, "size", size)
        if self.size is not None and min(low for _, low, _ in self._groups(1)) < self.classes:
            raise ValueError(f"ByClass: 'size' must be ≥ 'classes' ({self.classes}), got {self.size!r}")

    def _groups(self, clients: int) -> list[tuple[int, int, int]]:
        """Return groups (number of clients, minimum samples, maximum samples)."""
        match self.size:
            case (int() as low, int() as high):
                return [(clients, low, high)]
            case tuple() as groups:
                return [(holders, samples, samples) for holders, samples in groups]
            case size:
                return [(clients, size or 0, size or 0)]

    def _sizes(self, rng: np.random.Generator, clients: int) -> np.ndarray:
        """Draw the number of samples of each client."""
        groups = self._groups(clients)
        if (given := sum(holders for holders, _, _ in groups)) != clients:
            raise ValueError(f"ByClass: 'size' must be of all {clients} clients, got pairs for {given}")
        sizes = np.concatenate([rng.integers(low, high + 1, holders) for holders, low, high in groups])
        return sizes if len(groups) == 1 else rng.permutation(sizes)

    def split(self, labels: np.ndarray, clients: int, seed: int) -> ClientSplit:
        """Divide the samples among clients; see `Partition.split`."""
        rng = generator(seed, Purpose.PARTITION)
        names, label = encode_labels(labels)
        check_enough("ByClass", len(labels), clients)
        if self.classes > len(names):
            raise ValueError(f"ByClass: 'classes' must be ≤ the data's {len(names)} classes, got {self.classes}")
        pools = pools_of(label, len(names), rng.permutation(len(labels)))
        supply = np.array([len(pool) for pool in pools])
        return deal(
            pools,
            self._everything(rng, names, supply, clients) if self.size is None else self._sized(rng, supply, clients),
        )

    # Both methods return the number of samples of each client and class, (clients, classes).

    def _everything(self, rng: np.random.Generator, names: np.ndarray, supply: np.ndarray, clients: int) -> np.ndarray:
        wants = np.zeros((clients, len(supply)), dtype=np.int64)
        held = self._holders(rng, len(supply), clients)
        for c, column in enumerate(held.T):
            holders = np.flatnonzero(column)
            check_enough(f"ByClass: class {names[c]}", supply[c], len(holders))
            wants[holders, c] = (
                np.diff(np.linspace(0, supply[c], len(holders) + 1).astype(np.int64)) if len(holders) else 0
            )
        return wants

    def _sized(self, rng: np.random.Generator, supply: np.ndarray, clients: int) -> np.ndarray:
        sizes = self._sizes(rng, clients)
        if sizes.sum() > supply.sum():
            raise ValueError(
                f"Cannot give {clients} clients {sizes.sum()} samples because there are {supply.sum()}; use fewer "
                "clients or a smaller 'size'"
            )
        wants = np.zeros((clients, len(supply)), dtype=np.int64)
        left = supply.copy()
        waiting = np.arange(clients)
        if clients > _ONE_BY_ONE:
            waiting = self._in_blocks(rng, sizes, wants, left)
        for i in waiting:
            # For the last clients some classes are nearly exhausted: try an even division if a random one does not fit.
            for share in dict.fromkeys((self.share, "even")):
                parts = _compose(rng, int(sizes[i]), self.classes, share)
                chosen = _choose_classes(rng, left, parts)
                if chosen is not None:
                    break
            else:
                raise ValueError(
                    f"Cannot give client {i} of {clients} {sizes[i]} samples of {self.classes} classes because only "
                    f"{left.sum()} of {supply.sum()} samples are left; use fewer clients or a smaller 'size'"
                )
            wants[i, chosen] = parts
            left[chosen] -= parts
        return wants

    def _in_blocks(
        self, rng: np.random.Generator, sizes: np.ndarray, wants: np.ndarray, left: np.ndarray
    ) -> np.ndarray:
        """Serve clients in blocks, each from the supply at the start of the block; return the clients left unserved."""
        waiting = []
        for block in np.array_split(np.arange(len(sizes)), _ONE_BY_ONE):
            parts = _compose_many(rng, sizes[block], self.classes, self.share)
            # The largest log(weight) + Gumbel noise are a weighted draw without replacement.
            with np.errstate(divide="ignore"):
                rank = np.log(left) + rng.gumbel(size=(len(block), len(left)))
            chosen = np.argsort(-rank, axis=1)[:, : self.classes]
            requested = np.zeros((len(block), len(left)), dtype=np.int64)
            np.put_along_axis(requested, chosen, parts, axis=1)
            fits = (np.cumsum(requested, axis=0) <= left).all(1)
            wants[block[fits]] = requested[fits]
            left -= requested[fits].sum(0)
            waiting.append(block[~fits])
        return np.concatenate(waiting)

    def _holders(self, rng: np.random.Generator, n_classes: int, clients: int) -> np.ndarray:
        """Draw which client has which class, (clients, classes), with as many clients per class as equally possible.

        Each client takes the classes that were taken least so far, ties at random.
        """
        held = np.zeros((clients, n_classes), dtype=bool)
        taken = np.zeros(n_classes)
        for i in range(clients):
            chosen = np.lexsort((rng.random(n_classes), taken))[: self.classes]
            held[i, chosen] = True
            taken[chosen] += 1
        return held


@dataclass(frozen=True, kw_only=True)
class Shards:
    """FedAvg's split (McMahan et al., 2017): sort by label, cut into equal shards, assign shards at random.

    Every sample is assigned; shards differ by at most one sample.

    Args:
        per_client: Number of shards per client.

    Example:
        >>> fm.datasets.load("digits").partition(fm.partition.Shards(per_client=2), clients=20)
        FederatedData(20 clients, 1438 samples)
    """

    per_client: int = 2

    def __post_init__(self) -> None:
        check(self, per_client=count)

    def split(self, labels: np.ndarray, clients: int, seed: int) -> ClientSplit:
        """Divide the samples among clients; see `Partition.split`."""
        names, label = encode_labels(labels)
        check_enough(f"Shards: {self.per_client} each", len(labels), clients, self.per_client)
        rng = generator(seed, Purpose.PARTITION)
        by_label = np.concatenate(pools_of(label, len(names), rng.permutation(len(labels))))
        sizes = even(len(labels), clients * self.per_client)
        starts = np.cumsum(sizes) - sizes
        dealt = rng.permutation(len(sizes)).reshape(clients, self.per_client)
        lengths = sizes[dealt.reshape(-1)]
        ends = np.cumsum(lengths)
        index = by_label[np.repeat(starts[dealt.reshape(-1)] - (ends - lengths), lengths) + np.arange(len(labels))]
        return ClientSplit(index, sizes[dealt].sum(1))


def _choose_classes(rng: np.random.Generator, left: np.ndarray, parts: np.ndarray) -> np.ndarray | None:
    """Draw a different class for each part (largest first), with probability ∝ its supply if that suffices, or None."""
    left = left.copy()
    chosen = []
    for part in parts:
        weight = np.where(left >= part, left, 0)
        if not weight.any():
            return None
        chosen.append(rng.choice(len(left), p=weight / weight.sum()))
        left[chosen[-1]] = 0
    return np.array(chosen)


def _compose(rng: np.random.Generator, n: int, parts: int, share: str) -> np.ndarray:
    """Return n as a sum of `parts` numbers ≥ 1, in descending order."""
    if share == "even":
        return even(n, parts)
    cuts = np.sort(rng.choice(n - 1, parts - 1, replace=False)) + 1
    return np.sort(np.diff(np.concatenate([[0], cuts, [n]])))[::-1]


def _compose_many(rng: np.random.Generator, sizes: np.ndarray, parts: int, share: str) -> np.ndarray:
    """Return each size as a sum of numbers ≥ 1, (len(sizes), parts): uniformly distributed, or as even as possible."""
    if share == "even":
        return sizes[:, None] // parts + (np.arange(parts) < sizes[:, None] % parts)
    # The parts−1 cuts are a random subset of the size−1 places between samples: those with the smallest random keys.
    places = np.arange(1, int(sizes.max()))
    rank = np.where(places < sizes[:, None], rng.random((len(sizes), len(places))), np.inf)
    cuts = np.sort(places[np.argsort(rank, axis=1)[:, : parts - 1]], axis=1)
    edges = np.concatenate([np.zeros((len(sizes), 1), np.int64), cuts, sizes[:, None]], axis=1)
    return np.diff(edges, axis=1)
