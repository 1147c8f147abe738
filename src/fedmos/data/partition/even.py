"""Partitions that ignore labels: parts of equal size, and parts of very different sizes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from ...core.validation import check, count, one_of, positive
from ...rng import Purpose, generator
from .split import ClientSplit, check_enough, even, in_proportion


@dataclass(frozen=True, kw_only=True)
class IID:
    """Random parts with sizes that differ by at most one. Every sample is assigned.

    Example:
        >>> data = fm.datasets.load("digits").partition(fm.partition.IID(), clients=5)
        >>> data.sizes
        tensor([288, 288, 288, 287, 287])
    """

    def split(self, labels: np.ndarray, clients: int, seed: int) -> ClientSplit:
        """Divide the samples among clients; see `Partition.split`."""
        check_enough("IID", len(labels), clients)
        return ClientSplit(generator(seed, Purpose.PARTITION).permutation(len(labels)), even(len(labels), clients))


@dataclass(frozen=True, kw_only=True)
class QuantitySkew:
    """Random parts of unequal sizes: all clients have the same distribution. Every sample is assigned.

    Args:
        law: "power": the client of rank r (random, from 1) has a fraction ∝ r^−skew. "lognormal": fractions are
            ∝ exp(skew · N(0, 1)).
        skew: Exponent or factor of the law; sizes differ more for larger values.
        least: Minimum number of samples per client.

    Example:
        >>> scheme = fm.partition.QuantitySkew(law="power", skew=1.0, least=10)
        >>> data = fm.datasets.load("digits").partition(scheme, clients=20)
        >>> int(data.sizes.min()) >= 10
        True
    """

    law: Literal["power", "lognormal"] = "power"
    skew: float = 1.0
    least: int = 1

    def __post_init__(self) -> None:
        check(self, law=one_of("power", "lognormal"), skew=positive, least=count)

    def split(self, labels: np.ndarray, clients: int, seed: int) -> ClientSplit:
        """Divide the samples among clients; see `Partition.split`."""
        check_enough("QuantitySkew", len(labels), clients, self.least)
        rng = generator(seed, Purpose.PARTITION)
        skew = min(self.skew, 1e300)
        if self.law == "power":
            exponent = -skew * np.log(rng.permutation(clients) + 1.0)
        else:
            exponent = skew * rng.normal(size=clients)
        exponent = np.clip(exponent, -1e300, 1e300)
        sizes = in_proportion(len(labels), np.exp(exponent - exponent.max()), self.least)
        return ClientSplit(rng.permutation(len(labels)), sizes)
