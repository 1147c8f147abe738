"""The accountants of the mechanisms: the ε that a run has spent, by `dp-accounting`."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import lru_cache
from typing import Any, NamedTuple, Protocol

from ..core.validation import needs
from ..selection.selector import Selector
from .discrete import DiscreteGaussian, TooLittleNoise
from .gaussian import Gaussian
from .local import Local
from .loss_distributions import SampledGaussian, sampled_gaussian
from .matrix_factorization import MatrixFactorization, sensitivity
from .mechanism import Mechanism
from .participation import participation_of, scheduled
from .sampling import CohortSampling

_LEAST_DELTA = 1e-10
"""The least δ of privacy loss distributions: that of their Fourier transforms' rounding errors is far smaller."""
_LEAST_NOISE = 0.01
"""The least noise multiplier of privacy loss distributions."""


class Accountant(Protocol):
    """Computes ε after any number of rounds of a run."""

    sampling: CohortSampling
    delta: float

    def epsilon(self, rounds: int) -> float:
        """Return ε after so many rounds."""


class _Spent(NamedTuple):
    """The Rényi divergences of one round."""

    orders: Any
    rdp: Any

    def epsilon(self, rounds: int, delta: float) -> float:
        """Return ε after so many rounds."""
        with _quiet():
            return float(_dp().rdp.compute_epsilon(self.orders, rounds * self.rdp, delta)[0])


class RoundAccountant:
    """Composes the rounds of a run with independent noise.

    Args:
        sampling: How cohorts are drawn.
        noise_multiplier: The standard deviation of the noise over the bound of a client's contribution.
        delta: The δ of the guarantee.

    Raises:
        ImportError: If `dp-accounting` is not installed.
    """

    def __init__(self, sampling: CohortSampling, noise_multiplier: float, delta: float) -> None:
        self.sampling, self.delta = sampling, delta
        self._round = None if noise_multiplier == 0 else self._one_round(noise_multiplier)

    def epsilon(self, rounds: int) -> float:
        """Return ε after so many rounds."""
        if rounds == 0:
            return 0.0
        return math.inf if self._round is None else self._round.epsilon(rounds, self.delta)

    def _one_round(self, noise_multiplier: float) -> _Spent | SampledGaussian:
        """Return what a round spends."""
        return _one_round(self.sampling.event, noise_multiplier)


class LossAccountant(RoundAccountant):
    """Composes the privacy loss distributions of rounds with Poisson sampling; see `RoundAccountant`."""

    def _one_round(self, noise_multiplier: float) -> SampledGaussian:
        return sampled_gaussian(self.sampling.size / self.sampling.clients, noise_multiplier)


class RunAccountant:
    """Accounts for a run that is one Gaussian mechanism as a whole, by its exact (ε, δ).

    Args:
        sampling: How cohorts are drawn.
        noise_multiplier: The standard deviation of the noise over the bound of a client's contribution to a round.
        delta: The δ of the guarantee.
        sensitivity: Returns by how many such bounds neighbouring inputs of so many rounds can differ.
    """

    def __init__(
        self,
        sampling: CohortSampling,
        noise_multiplier: float,
        delta: float,
        sensitivity: Callable[[int], float],
    ) -> None:
        self.sampling, self.delta = sampling, delta
        self._noise_multiplier, self._sensitivity = noise_multiplier, sensitivity

    def epsilon(self, rounds: int) -> float:
        """Return ε after so many rounds."""
        if rounds == 0:
            return 0.0
        return _exact_epsilon(self._noise_multiplier / self._sensitivity(rounds), self.delta)


class ConcentratedAccountant:
    """Composes the rounds of a client under zero-concentrated privacy.

    Args:
        sampling: How cohorts are drawn.
        loss: The ρ that a round costs a client that takes part in it.
        delta: The δ of the guarantee.
        times: Returns how often a client can take part in so many rounds.
    """

    def __init__(self, sampling: CohortSampling, loss: float, delta: float, times: Callable[[int], int]) -> None:
        self.sampling, self.delta = sampling, delta
        self._loss, self._times = loss, times

    def epsilon(self, rounds: int) -> float:
        """Return ε after so many rounds."""
        if rounds == 0:
            return 0.0
        return math.inf if math.isinf(self._loss) else _concentrated(self._loss * self._times(rounds), self.delta)


def accountant(
    privacy: Mechanism, sampling: CohortSampling, selector: Selector, loss: float | None = None
) -> Accountant:
    """Return the accountant of a run with this option.

    Args:
        privacy: The mechanism.
        sampling: How cohorts are drawn.
        selector: The selector, with over-selection.
        loss: The ρ of a round, where the mechanism is `DiscreteGaussian`.

    Raises:
        ValueError: If the mechanism needs a schedule of cohorts, and the selector has none, or if the option
            `accountant` suits neither the selector nor the numbers.
        ImportError: If `dp-accounting` is not installed.
    """
    noise, delta = privacy.noise_multiplier, privacy.delta
    match privacy:
        case MatrixFactorization():
            return RunAccountant(sampling, noise, delta, _correlated(privacy.bands, sampling, selector))
        case Local():
            times = _times(sampling, selector)
            return RunAccountant(sampling, noise, delta, lambda rounds: 2 * math.sqrt(times(rounds)))
        case DiscreteGaussian():
            assert loss is not None
            return ConcentratedAccountant(sampling, loss, delta, _times(sampling, selector))
        case Gaussian(accountant="pld"):
            check_accountant(privacy, sampling, selector)
            if sampling.law == "poisson" and sampling.size < sampling.clients:
                return LossAccountant(sampling, noise, delta)
            most = 1 if sampling.adjacency == "add or remove" else 2
            return RunAccountant(sampling, noise, delta, lambda rounds: most * math.sqrt(rounds))
        case _:
            return RoundAccountant(sampling, noise, delta)


def check_accountant(privacy: Mechanism, sampling: CohortSampling, selector: Selector) -> None:
    """Refuse privacy loss distributions where they are not known, or where their numbers are too large or too small."""
    if not isinstance(privacy, Gaussian) or privacy.accountant == "rdp":
        return
    if sampling.law == "fixed":
        raise ValueError(
            f"Cannot use accountant='pld' with {type(selector).__name__} because dp-accounting has no privacy loss "
            "distributions for cohorts of a fixed size; use accountant='rdp', or fm.Bernoulli(rate=…)"
        )
    if privacy.delta < _LEAST_DELTA:
        raise ValueError(
            f"Cannot use accountant='pld' with 'delta' = {privacy.delta:g} because probabilities below "
            f"{_LEAST_DELTA:g} are not computed exactly enough; use accountant='rdp'"
        )
    if 0 < privacy.noise_multiplier < _LEAST_NOISE:
        raise TooLittleNoise(
            f"Cannot use accountant='pld' with 'noise_multiplier' = {privacy.noise_multiplier:g} because a round "
            f"would spend an ε of thousands; use accountant='rdp', or at least {_LEAST_NOISE:g}"
        )


def _correlated(bands: int, sampling: CohortSampling, selector: Selector) -> Callable[[int], float]:
    """Return the sensitivity of correlated noise by the number of rounds."""
    schedule = scheduled(selector, sampling.clients)
    return lambda rounds: sensitivity(bands, rounds, schedule.separation, schedule.times(rounds))


def _times(sampling: CohortSampling, selector: Selector) -> Callable[[int], int]:
    """Return how often a client can take part in so many rounds."""
    found = participation_of(selector, sampling.clients)
    return lambda rounds: rounds if found is None else found.times(rounds)


@lru_cache(maxsize=64)
def _one_round(event: tuple[Any, ...], noise_multiplier: float) -> _Spent:
    """Return the Rényi divergences of a round whose sampling is described by `event`; see `CohortSampling.event`."""
    dp = _dp()
    law, *numbers, sensitivity = event
    gaussian = dp.GaussianDpEvent(noise_multiplier / sensitivity)
    relation = dp.NeighboringRelation.ADD_OR_REMOVE_ONE
    if law == "poisson":
        composed = dp.PoissonSampledDpEvent(numbers[0], gaussian)
    elif law == "fixed":
        composed, relation = dp.SampledWithoutReplacementDpEvent(*numbers, gaussian), dp.NeighboringRelation.REPLACE_ONE
    else:
        composed = gaussian
    found = dp.rdp.RdpAccountant(neighboring_relation=relation)
    with _quiet():
        found.compose(composed)
    return _Spent(found.orders, found.rdp)


@lru_cache(maxsize=1024)
def _exact_epsilon(noise_multiplier: float, delta: float) -> float:
    """Return the ε of one Gaussian mechanism of sensitivity 1."""
    return float(_dp().get_epsilon_gaussian(noise_multiplier, delta))


@lru_cache(maxsize=1024)
def _concentrated(loss: float, delta: float) -> float:
    """Return the ε of zero-concentrated privacy with this ρ."""
    dp = _dp()
    found = dp.rdp.RdpAccountant()
    with _quiet():
        return float(found.compose(dp.ZCDpEvent(loss)).get_epsilon(delta))


def _dp() -> Any:
    needs("dp_accounting.rdp", "fedmos[privacy]", "account for privacy")
    return needs("dp_accounting", "fedmos[privacy]", "account for privacy")


@contextmanager
def _quiet() -> Iterator[None]:
    """Suppress warnings about orders that dp-accounting leaves out, which makes ε larger at most."""
    log = logging.getLogger("absl")
    before = log.disabled
    log.disabled = True
    try:
        yield
    finally:
        log.disabled = before
