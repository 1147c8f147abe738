"""Privacy loss distributions of rounds with Poisson sampling: their composition over rounds, and its ε.

The losses of one round are those of `dp-accounting`, rounded up to a grid by its method ("Connect the Dots", Doroshenko
et al., 2022). Their sum over rounds is a convolution, which is computed as a power of the Fourier transform. It is the
same computation as in `dp_accounting.pld.PLDAccountant`, which takes ten times as long because it transforms the losses
of a round again for each number of rounds: too long for an ε after every round.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..core.validation import needs

INTERVAL = 1e-4
"""The distance of losses on the grid, as in dp-accounting."""
FINEST_NOISE = 0.3
"""With less noise the grid is coarser, so that the losses of a round, which grow as z⁻², have no more grid points."""
_TRUNCATED = 1e-15
"""The probability of losses outside the range that is computed, which count as infinite; as in dp-accounting."""
_ORDERS = 20
_VANISHING = -45.0
"""The logarithm below which a term of a Fourier transform is left out."""
_MOST_EXPONENT = 700.0
"""Of larger numbers, the exponential overflows."""


class SampledGaussian:
    """The losses of a round in which each client takes part with a probability, and sums get Gaussian noise.

    Args:
        rate: The probability, less than 1.
        noise_multiplier: The standard deviation of the noise over the bound of a client's contribution.
    """

    def __init__(self, rate: float, noise_multiplier: float) -> None:
        mechanisms = needs("dp_accounting.pld.privacy_loss_mechanism", "fedmos[privacy]", "account for privacy")
        interval = INTERVAL * max(1.0, (FINEST_NOISE / noise_multiplier) ** 2)
        relations = mechanisms.AdjacencyType
        self._directions = [
            _Losses(
                mechanisms.GaussianPrivacyLoss(noise_multiplier, sampling_prob=rate, adjacency_type=relation), interval
            )
            for relation in (relations.REMOVE, relations.ADD)
        ]
        self._found: dict[tuple[int, float], float] = {}

    def epsilon(self, rounds: int, delta: float) -> float:
        """Return ε after so many rounds, which depends on nothing else."""
        if (rounds, delta) not in self._found:
            self._found[rounds, delta] = max(losses.epsilon(rounds, delta) for losses in self._directions)
        return self._found[rounds, delta]


class _Losses:
    """The distribution of the loss of a round on a grid, for a client that is added or for one that is removed.

    Args:
        mechanism: dp-accounting's `AdditiveNoisePrivacyLoss`.
        interval: The distance of losses on the grid.
    """

    def __init__(self, mechanism: Any, interval: float) -> None:
        bounds = mechanism.connect_dots_bounds()
        self._interval = interval
        self._lowest = math.floor(bounds.epsilon_lower / interval)
        grid = interval * np.arange(self._lowest, math.ceil(bounds.epsilon_upper / interval) + 1)
        deltas = np.minimum.accumulate(mechanism.get_delta_for_epsilon(grid))
        self._infinite = float(deltas[-1])
        self._probabilities = _connect_dots(deltas, interval)
        points = len(grid)
        orders = np.arange(1, _ORDERS + 1) / points
        self._orders = np.concatenate((-orders, orders))
        with np.errstate(under="ignore"):
            moments = [self._probabilities @ np.exp(order * np.arange(points)) for order in self._orders]
        self._log_moments = np.log(moments)
        self._spectrum: tuple[int, NDArray[np.complex128]] = 0, np.empty(0, np.complex128)

    def epsilon(self, rounds: int, delta: float) -> float:
        """Return the smallest ε for which the loss of so many rounds is (ε, δ)-differentially private."""
        infinite = _TRUNCATED - math.expm1(rounds * math.log1p(-self._infinite))
        if infinite > delta:
            return math.inf
        first, probabilities = self._composed(rounds)
        skipped = max(0, -first)  # losses below 0
        losses = self._interval * np.arange(first + skipped, first + len(probabilities))[::-1]
        probabilities = probabilities[skipped:][::-1]
        # δ(ε) is the largest Σ p − e^ε Σ p e^(−loss) of the losses from some loss on, so that ε is the largest
        # log((Σ p − δ)/Σ p e^(−loss)).
        above = infinite + np.cumsum(probabilities)
        start = int(np.searchsorted(above, delta, side="right"))
        if start == len(above):
            return 0.0
        exponents = np.minimum(losses[start] - losses, _MOST_EXPONENT)
        below = np.cumsum(probabilities * np.exp(exponents))
        return max(0.0, float(losses[start] + np.log(((above[start:] - delta) / below[start:]).max())))

    def _composed(self, rounds: int) -> tuple[int, NDArray[np.float64]]:
        """Return the distribution of the sum of the losses of so many rounds, from its first point of the grid on."""
        # Chernoff bounds of the range outside which the probability is _TRUNCATED
        bounds = (rounds * self._log_moments - math.log(_TRUNCATED / 2)) / self._orders
        points = len(self._probabilities)
        low = max(0, math.floor(bounds[:_ORDERS].max()))
        high = min(rounds * (points - 1), math.ceil(bounds[_ORDERS:].min()))
        length = _length(max(high - low + 1, points))
        if length != self._spectrum[0]:
            self._spectrum = length, np.log(np.fft.rfft(self._probabilities, length))
        exponents = rounds * self._spectrum[1]
        power = np.exp(exponents, out=np.zeros_like(exponents), where=exponents.real > _VANISHING)
        probabilities = np.roll(np.fft.irfft(power, length), -low)[: high - low + 1]
        return rounds * self._lowest + low, probabilities


def _connect_dots(deltas: NDArray[np.float64], interval: float) -> NDArray[np.float64]:
    """Return the probabilities of the losses on a grid with these δ at its points, and no smaller ones between."""
    steps = np.diff(deltas)
    found: NDArray[np.float64] = np.zeros_like(deltas)
    found[0] = 1 - deltas[0] + steps[0] / math.expm1(interval)
    found[1:-1] = (steps[1:] - steps[:-1] * math.exp(interval)) / math.expm1(interval)
    found[-1] = steps[-1] / math.expm1(-interval)
    return np.maximum(found, 0.0)


def _length(least: int) -> int:
    """Return a length for Fourier transforms: one of eight between two powers of 2, so that rounds share it."""
    unit: int = 2 ** max(0, (least - 1).bit_length() - 4)
    return -(-least // unit) * unit


@lru_cache(maxsize=8)
def sampled_gaussian(rate: float, noise_multiplier: float) -> SampledGaussian:
    """Return the losses of a round, which the accountants of a run share."""
    return SampledGaussian(rate, noise_multiplier)
