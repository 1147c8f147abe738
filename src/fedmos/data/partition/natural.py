"""The natural partition of data sets with owners of samples."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ...core.formatting import format_value
from ...core.validation import check, count, none
from ...rng import Purpose, generator
from .split import ClientSplit


@dataclass(frozen=True, kw_only=True)
class Natural:
    """One client per natural owner of samples: a writer, a speaking role, a user.

    If fewer clients are requested than there are owners, owners are drawn at random; otherwise they keep their order.

    Args:
        least: Omit owners with fewer samples.
        most: Maximum number of samples per client, drawn at random from the owner's.
        only: Numbers of the owners to use, e.g. (0,) for the first hospital alone; None for all.

    Raises:
        ValueError: If `most` is smaller than `least`.

    Example:
        >>> import numpy as np
        >>> dataset = fm.Dataset("six", np.zeros((6, 2)), np.zeros(6, int), owner=np.array([0, 0, 0, 1, 2, 2]))
        >>> dataset.partition(fm.partition.Natural(least=2)).sizes
        tensor([3, 2])
    """

    least: int = 1
    most: int | None = None
    only: Sequence[int] | None = None
    divides = "owner"
    sets_clients = True

    def __post_init__(self) -> None:
        check(self, least=count, most=count | none)
        if self.most is not None and self.most < self.least:
            raise ValueError(f"Natural: 'most' must be ≥ 'least' ({self.least}), got {self.most}")
        if self.only is not None and (isinstance(self.only, str) or not np.size(self.only) or not np.ndim(self.only)):
            raise ValueError(f"Natural: 'only' must be numbers of owners, got {format_value(self.only)}")

    def split(self, labels: np.ndarray, clients: int | None, seed: int) -> ClientSplit:
        """Divide the samples among clients.

        Args:
            labels: The owner of each sample, as a number.
            clients: Number of clients, or None for all owners.
            seed: Seed of the random numbers.

        Raises:
            ValueError: If there are fewer owners than clients.
        """
        rng = generator(seed, Purpose.PARTITION)
        numbers, owner, held = np.unique(labels, return_inverse=True, return_counts=True)
        owners = np.flatnonzero((held >= self.least) & self._wanted(numbers))
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

    def _wanted(self, numbers: np.ndarray) -> np.ndarray:
        """Return whether each owner is one of `only`."""
        if self.only is None:
            return np.ones(len(numbers), dtype=bool)
        unknown = [one for one in self.only if one not in numbers]
        if unknown:
            raise ValueError(f"Natural: 'only' must be numbers of owners, got {format_value(unknown[0])}")
        return np.isin(numbers, np.asarray(self.only))
