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
from .discrete import DiscreteGaussian
from .local import Local
from .matrix_factorization import MatrixFactorization, sensitivity
from .mechanism import Mechanism
from .participation import participation_of, scheduled
from .sampling import CohortSampling


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
        self._round = None if noise_multiplier == 0 else _one_round(sampling.event, noise_multiplier)

    def epsilon(self, rounds: int) -> float:
        """Return ε after so many rounds."""
        if rounds == 0:
            return 0.0
        if self._round is None:
            return math.inf
        with _quiet():
            found = _dp().rdp.compute_epsilon(self._round.orders, rounds * self._round.rdp, self.delta)
        return float(found[0])


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
        ValueError: If the mechanism needs a schedule of cohorts, and the selector has none.
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
        case _:
            return RoundAccountant(sampling, noise, delta)


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
