"""The split that the data came with."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ...core.validation import check, count, none
from ...rng import Purpose, generator
from .split import ClientSplit


@dataclass(frozen=True, kw_only=True)
class Natural:
    """One client per natural owner of samples: a writer, a speaking role, a user.

    Owners with fewer than `least` samples are left out; of those with more than `most`, so many samples are drawn at
    random. Asked for fewer clients than there are owners, draws owners at random; else they keep their order.
    """

    least: int = 1
    most: int | None = None
    divides = "owner"
    sets_clients = True

    def __post_init__(self) -> None:
        check(self, least=count, most=count | none)
        if self.most is not None and self.most < self.least:
            raise ValueError(f"Natural: 'most' must be ≥ 'least' ({self.least}), got {self.most}")

    def split(self, labels: np.ndarray, clients: int | None, seed: int) -> ClientSplit:
        """`labels` are the owners, as numbers; `clients=None` takes them all."""
        rng = generator(seed, Purpose.PARTITION)
        numbers, owner, held = np.unique(labels, return_inverse=True, return_counts=True)
        owners = np.flatnonzero(held >= self.least)
        if clients is not None and clients > len(owners):
            raise ValueError(
                f"Cannot make {clients} clients because {len(owners)} of {len(held)} owners have "
                f"{self.least} samples or more; use fewer clients or a smaller 'least'"
            )
        if clients is not None and clients < len(owners):
            owners = np.sort(rng.choice(owners, clients, replace=False))
        if not len(owners):
            raise ValueError(f"Cannot make clients because no owner has {self.least} samples; use a smaller 'least'")
        by_owner = np.argsort(owner, kind="stable")
        if self.most is not None:
            shuffled = rng.permutation(len(labels))
            by_owner = shuffled[np.argsort(owner[shuffled], kind="stable")]
        sizes = held[owners] if self.most is None else held[owners].clip(max=self.most)
        starts = (np.cumsum(held) - held)[owners]
        before = np.cumsum(sizes) - sizes
        index = by_owner[np.repeat(starts - before, sizes) + np.arange(int(sizes.sum()))]
        return ClientSplit(index, sizes, numbers[owners])
