"""Integer noise of clients under secure aggregation, and what it guarantees for their sum."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Tensor

from .. import rng
from .mechanism import Mechanism

_MOST_SCALE = 2**12
"""The largest standard deviation of a client's noise in units of the grid: the table of the sampler has nine times as
many entries."""
_MOST_UNITS = 2**23
"""The largest integer of a client, which float32 represents exactly."""
_TAIL = 9.0
"""Standard deviations beyond which noise has a probability below 2^-53 together, the resolution of uniform numbers."""
_SLACK = 4.0
"""√(2 log 1/β), where rounding exceeds its bound on the norm with a probability β of less than 4e-4."""


@dataclass(frozen=True)
class DiscreteGaussian(Mechanism):
    """Distributed privacy: each client adds a share of the noise, as integers, and the server sees only the sum.

    Needs `aggregation=fm.aggregation.Secure(…)`. A client clips its uploads to `clip`, rounds them at random to a grid,
    and adds discrete Gaussian noise (Kairouz, Liu and Steinke, ICML 2021). Its share is such that the noise of a sum
    has standard deviation `noise_multiplier` · `clip` if as many clients as possible drop out: with fewer than the
    `threshold` of `Secure`, the round is abandoned. The server, which must not be trusted with uploads, knows who takes
    part, so no amplification by sampling is assumed. See docs/privacy.md.

    Args:
        clip: As in `Gaussian`.
        noise_multiplier: The standard deviation of the noise on a sum over `clip`, where only the threshold of clients
            is left. 0 adds no noise; ε is then infinite.
        delta: As in `Gaussian`.
        budget: As in `Gaussian`. ε is that of a client that takes part as often as the selector permits.

    Raises:
        ValueError: If a value is out of range.

    Example:
        >>> result = fm.run(
        ...     model, data, fm.FedAvg(lr=0.1), fm.Cyclic(m=5), rounds=2, local_steps=2, batch_size=8,
        ...     aggregation=fm.aggregation.Secure(),
        ...     privacy=fm.privacy.DiscreteGaussian(clip=1.0, noise_multiplier=4.0, delta=1e-3),
        ... )
        >>> round(result.history[-1].epsilon, 2)
        0.69
    """


class TooLittleNoise(ValueError):
    """The noise of a client is smaller than the unit of the integers."""


class Grid(NamedTuple):
    """The integers of a group of uploads."""

    step: float
    """The size of a unit, a power of two."""
    scale: float
    """The standard deviation of a client's noise, in units."""
    largest: float
    """The largest norm of a client's integers before noise, in units: that of the bound, after rounding."""
    size: int
    """How many integers there are."""

    @classmethod
    def of(cls, clip: float, noise: float, size: int, *, bits: int, clients: int, least: int) -> Grid:
        """Return the finest grid on which no sum overflows, but for a probability below 1e-18 per number.

        Args:
            clip: The bound of the norm of the uploads.
            noise: The standard deviation of the noise on a sum of `least` clients.
            size: How many numbers are uploaded.
            bits: The bits of the ring.
            clients: The largest cohort.
            least: The least number of clients whose uploads are summed.

        Raises:
            TooLittleNoise: If the noise of a client has less than one unit.
        """
        own = noise / math.sqrt(least)
        # Rounding adds at most a unit per client, and much less than the noise, if there is some.
        units = 2 ** (bits - 1) - 1 - (0 if own else clients)
        needed = max(
            (clients * clip + _TAIL * own * math.sqrt(clients)) / max(1, units),
            (clip + _TAIL * own) / _MOST_UNITS,
            own / _MOST_SCALE,
        )
        step = 2.0 ** math.ceil(math.log2(needed))
        if 0 < own < step:
            raise TooLittleNoise(
                f"Cannot add noise of {own:.3g} in units of {step:.3g}, the finest that {bits} bits permit for "
                f"{clients} clients; use a larger 'bits' of fm.aggregation.Secure, or a larger 'noise_multiplier'"
            )
        bound = clip / step
        rounded = math.sqrt(bound**2 + size / 4 + _SLACK * (bound + math.sqrt(size) / 2))
        return cls(step, own / step, min(bound + math.sqrt(size), rounded), size)


def concentrated_loss(grids: Sequence[Grid], clients: int, least: int) -> float:
    """Return the ρ of zero-concentrated privacy of one round for a client, by Theorem 1 of Kairouz et al., ICML 2021.

    The sum of discrete Gaussians is not one itself; `divergence` bounds the difference.

    Args:
        grids: The grids of the groups of uploads.
        clients: The largest cohort.
        least: The least number of clients whose uploads are summed.
    """
    total = 0.0
    for _, scale, largest, size in grids:
        if scale == 0:
            return math.inf
        exponents = (-2 * (math.pi * scale) ** 2 * k / (k + 1) for k in range(1, clients))
        divergence = 10 * sum(map(math.exp, exponents))
        sensitivity = largest / (math.sqrt(least) * scale)
        total += min(sensitivity**2 + divergence * size / 2, (sensitivity + divergence * math.sqrt(size)) ** 2)
    return total / 2


def discrete_gaussian(words: Tensor, scale: float) -> Tensor:
    """Return an integer k for each word, with probability proportional to exp(−k²/(2 scale²)), int64.

    Inversion uses 53 bits of a word: probabilities are exact up to 2^-53.

    Args:
        words: Uniform random 64-bit numbers.
        scale: The scale, up to 4096.
    """
    table = _table(scale).to(words.device)
    size = torch.searchsorted(table, rng.uniform(words), right=True)
    return torch.where((words & 1) == 0, size, -size)


@lru_cache(maxsize=32)
def _table(scale: float) -> Tensor:
    """Return the probabilities that the absolute value is at most 0, 1, 2, …"""
    k = torch.arange(math.ceil(_TAIL * scale) + 2, dtype=torch.float64)
    weights = torch.exp(-(k**2) / (2 * scale**2))
    weights[1:] *= 2
    table = weights.cumsum(0)
    return (table / table[-1])[:-1]  # numbers above the last entry have the largest absolute value


def rounded(v: Tensor, key: Tensor) -> Tensor:
    """Return each number rounded up or down at random, with the number as its mean.

    Args:
        v: Rows of numbers, (…, n).
        key: A key for each row, (…).
    """
    down = v.floor()
    return down + (rng.draws(key, v.shape[-1]) < v - down)
