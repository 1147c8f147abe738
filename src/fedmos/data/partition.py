"""Ways to divide a data set among clients. A partition says who gets which samples; nothing is copied."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

import numpy as np

from ..rng import Purpose, generator
from ..validate import Rule, check, count, none, one_of, positive

Index = np.ndarray
"""int64 positions in the data set."""


class Partition(Protocol):
    """Anything with this method is a partition."""

    def split(self, labels: np.ndarray, clients: int, seed: int) -> list[Index]:
        """The samples of each client, given every sample's label."""


@dataclass(frozen=True, kw_only=True)
class IID:
    """Shuffle, then cut into `clients` parts whose sizes differ by one at most."""

    def split(self, labels: np.ndarray, clients: int, seed: int) -> list[Index]:
        _enough("IID", len(labels), clients)
        return np.array_split(generator(seed, Purpose.PARTITION).permutation(len(labels)), clients)


def _is_size(v: object) -> bool:
    if isinstance(v, Sequence) and not isinstance(v, str) and len(v) == 2:
        return all(count.test(b) for b in v) and v[0] <= v[1]
    return count.test(v)


@dataclass(frozen=True, kw_only=True)
class ByClass:
    """Each client gets samples of `classes` classes, chosen at random; no sample is given twice.

    `size` is the number of samples per client: a number, or a range (low, high) drawn from uniformly
    (FedMoS's MNIST split is `ByClass(classes=2, size=(10, 50))`); None shares out everything, each
    class in equal parts among the clients that hold it. A client's samples are divided among its
    classes at random (`share="random"`, at least one each) or as evenly as possible (`"even"`).
    """

    classes: int
    size: int | tuple[int, int] | None = None
    share: Literal["random", "even"] = "random"

    def __post_init__(self) -> None:
        check(
            self,
            classes=count,
            size=Rule("an integer ≥ 1, a range (low, high)", _is_size) | none,
            share=one_of("random", "even"),
        )
        if isinstance(self.size, Sequence):
            object.__setattr__(self, "size", tuple(self.size))
        low = self.size[0] if isinstance(self.size, tuple) else self.size
        if low is not None and low < self.classes:
            raise ValueError(f"ByClass: 'size' must be ≥ 'classes' ({self.classes}), got {self.size!r}")

    def split(self, labels: np.ndarray, clients: int, seed: int) -> list[Index]:
        rng = generator(seed, Purpose.PARTITION)
        names, label = np.unique(labels, return_inverse=True)
        if self.classes > len(names):
            raise ValueError(f"ByClass: 'classes' must be ≤ the data's {len(names)} classes, got {self.classes}")
        order = rng.permutation(len(labels))
        pools = [order[label[order] == c] for c in range(len(names))]
        wants = self._demand(rng, np.array([len(pool) for pool in pools]), clients)
        ends = np.cumsum(wants, axis=0)
        return [
            np.concatenate([pools[c][ends[i, c] - wants[i, c] : ends[i, c]] for c in np.flatnonzero(wants[i])])
            for i in range(clients)
        ]

    def _demand(self, rng: np.random.Generator, supply: np.ndarray, clients: int) -> np.ndarray:
        """(clients, classes): how many samples of each class each client gets."""
        wants = np.zeros((clients, len(supply)), dtype=np.int64)
        if self.size is None:
            holders = self._holders(rng, len(supply), clients)
            for c, who in enumerate(holders):
                _enough(f"ByClass: class {c}", supply[c], len(who))
                wants[who, c] = np.diff(np.linspace(0, supply[c], len(who) + 1).astype(np.int64)) if len(who) else 0
            return wants
        low, high = self.size if isinstance(self.size, tuple) else (self.size, self.size)
        sizes = rng.integers(low, high + 1, clients)
        left = supply.copy()
        for i, n in enumerate(sizes):
            # Late clients find some classes nearly used up; where a random division does not fit, an even one may.
            for share in dict.fromkeys((self.share, "even")):
                parts = _compose(rng, int(n), self.classes, share)
                chosen = _choose_classes(rng, left, parts)
                if chosen is not None:
                    break
            else:
                raise ValueError(
                    f"Cannot give client {i} of {clients} {n} samples of {self.classes} classes because only "
                    f"{left.sum()} of {supply.sum()} samples are left; use fewer clients or a smaller 'size'"
                )
            wants[i, chosen] = parts
            left[chosen] -= parts
        return wants

    def _holders(self, rng: np.random.Generator, n_classes: int, clients: int) -> list[np.ndarray]:
        """For each class the clients that hold it, as equally many as possible: each client takes the classes
        that were taken least so far, ties at random."""
        held = np.zeros((clients, n_classes), dtype=bool)
        taken = np.zeros(n_classes)
        for i in range(clients):
            chosen = np.lexsort((rng.random(n_classes), taken))[: self.classes]
            held[i, chosen] = True
            taken[chosen] += 1
        return [np.flatnonzero(column) for column in held.T]


@dataclass(frozen=True, kw_only=True)
class DirichletByClass:
    """Power-of-Choice's unbalanced split: each class is shared out by proportions ~ Dir(α·1) over the clients.

    Clients that hold n/K samples or more get none of the next class; the whole is drawn again until everyone
    has `least` samples, at most `attempts` times. Every sample is given to someone.
    """

    alpha: float
    least: int = 10
    attempts: int = 1000

    def __post_init__(self) -> None:
        check(self, alpha=positive, least=count, attempts=count)

    def split(self, labels: np.ndarray, clients: int, seed: int) -> list[Index]:
        n = len(labels)
        if n < clients * self.least:
            raise ValueError(
                f"Cannot give {clients} clients {self.least} samples each because there are {n}; use fewer clients"
            )
        rng = generator(seed, Purpose.PARTITION)
        label = np.unique(labels, return_inverse=True)[1]
        order = np.argsort(label[shuffled := rng.permutation(n)], kind="stable")
        pools = np.split(shuffled[order], np.cumsum(np.bincount(label))[:-1])
        for _ in range(self.attempts):
            ends = self._shares(rng, [len(pool) for pool in pools], clients)
            sizes = sum(np.diff(cuts, prepend=0) for cuts in ends)
            if np.min(sizes) >= self.least:
                parts = [np.split(pool, cuts[:-1]) for pool, cuts in zip(pools, ends, strict=True)]
                return [np.concatenate(own) for own in zip(*parts, strict=True)]
        raise ValueError(
            f"Cannot give {clients} clients {self.least} samples each in {self.attempts} attempts because α = "
            f"{self.alpha:g} is so skewed; use a larger 'alpha', fewer clients or a smaller 'least'"
        )

    def _shares(self, rng: np.random.Generator, sizes: list[int], clients: int) -> list[np.ndarray]:
        """For each class where the clients' shares of it end."""
        held = np.zeros(clients)
        ends = []
        for size in sizes:
            q = rng.dirichlet(np.full(clients, self.alpha)) * (held < sum(sizes) / clients)
            total = q.sum()
            cuts = (np.cumsum(q / total) * size).astype(np.int64) if total > 0 else np.zeros(clients, np.int64)
            cuts[-1] = size  # rounding's last sample
            held += np.diff(cuts, prepend=0)
            ends.append(cuts)
        return ends


def _choose_classes(rng: np.random.Generator, left: np.ndarray, parts: np.ndarray) -> np.ndarray | None:
    """A different class for each part (largest first) that has enough left, more likely the more it has."""
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
    """n as a sum of `parts` numbers ≥ 1, in descending order."""
    if share == "even":
        return np.array([n // parts + (j < n % parts) for j in range(parts)])
    cuts = np.sort(rng.choice(n - 1, parts - 1, replace=False)) + 1
    return np.sort(np.diff(np.concatenate([[0], cuts, [n]])))[::-1]


def _enough(who: str, samples: int, clients: int) -> None:
    if samples < clients:
        raise ValueError(
            f"Cannot divide {samples} samples among {clients} clients ({who}) because each needs one; use fewer clients"
        )
