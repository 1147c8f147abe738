"""A given split."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from .split import ClientSplit


@dataclass(frozen=True)
class Fixed:
    """A partition from a given array of sample numbers for each client.

    Args:
        parts: The sample numbers of each client.

    Example:
        >>> fm.datasets.load("digits").partition(fm.partition.Fixed([[0, 1, 2], [3, 4]]))
        FederatedData(2 clients, 5 samples)
    """

    parts: Sequence[Any]
    sets_clients = True

    def split(self, labels: np.ndarray, clients: int | None, seed: int) -> ClientSplit:
        """Return the given parts; the arguments have no effect."""
        return self.parts if isinstance(self.parts, ClientSplit) else ClientSplit.of(self.parts)
