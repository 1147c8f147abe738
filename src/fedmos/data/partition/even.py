"""Splits that do not look at labels: equal parts, and parts of very different size."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from ...core.validation import check, count, one_of, positive
from ...rng import Purpose, generator
from .split import ClientSplit, enough, even, in_proportion


@dataclass(frozen=True, kw_only=True)
class IID:
    """Shuffle, then cut into `clients` parts whose sizes differ by one at most. Every sample is given to someone."""

    def split(self, labels: np.ndarray, clients: int, seed: int) -> ClientSplit:
        enough("IID", len(labels), clients)
        return ClientSplit(generator(seed, Purpose.PARTITION).permutation(len(labels)), even(len(labels), clients))


@dataclass(frozen=True, kw_only=True)
class QuantitySkew:
    """Shuffle, then cut into parts of unequal size: everyone sees the same distribution, some see far more of it.

    `law="power"`: the client of rank r (1 the largest, ranks at random) gets a share ∝ r^−skew.
    `law="lognormal"`: shares ∝ exp(skew · N(0, 1)). Everyone gets `least` samples or more; every sample is given
    to someone.
    """

    law: Literal["power", "lognormal"] = "power"
    skew: float = 1.0
    least: int = 1

    def __post_init__(self) -> None:
        check(self, law=one_of("power", "lognormal"), skew=positive, least=count)

    def split(self, labels: np.ndarray, clients: int, seed: int) -> ClientSplit:
        enough("QuantitySkew", len(labels), clients, self.least)
        rng = generator(seed, Purpose.PARTITION)
        skew = min(self.skew, 1e300)
        if self.law == "power":
            exponent = -skew * np.log(rng.permutation(clients) + 1.0)
        else:
            exponent = skew * rng.normal(size=clients)
        exponent = np.clip(exponent, -1e300, 1e300)
        sizes = in_proportion(len(labels), np.exp(exponent - exponent.max()), self.least)
        return ClientSplit(rng.permutation(len(labels)), sizes)
