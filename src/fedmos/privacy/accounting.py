"""The ε that a run has spent, by `dp-accounting`, and the noise for a given ε."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import lru_cache
from typing import Any, NamedTuple, Protocol

from ..core.validation import Rule, count, needs, positive, require
from ..selection.selector import Selector
from .local import Local
from .matrix_factorization import MatrixFactorization, sensitivity
from .mechanism import Mechanism
from .participation import participation_of, scheduled
from .sampling import CohortSampling, sampling_of

_MOST_NOISE = 1e6
_MECHANISMS = ("Gaussian", "MatrixFactorization", "Local")


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


def accountant(privacy: Mechanism, sampling: CohortSampling, selector: Selector) -> Accountant:
    """Return the accountant of a run with this option.

    Args:
        privacy: The mechanism.
        sampling: How cohorts are drawn.
        selector: The selector, with over-selection.

    Raises:
        ValueError: If the mechanism needs a schedule of cohorts, and the selector has none.
        ImportError: If `dp-accounting` is not installed.
    """
    noise, delta = privacy.noise_multiplier, privacy.delta
    match privacy:
        case MatrixFactorization():
            return RunAccountant(sampling, noise, delta, _correlated(privacy.bands, sampling, selector))
        case Local():
            return RunAccountant(sampling, noise, delta, _at_clients(sampling, selector))
        case _:
            return RoundAccountant(sampling, noise, delta)


def _correlated(bands: int, sampling: CohortSampling, selector: Selector) -> Callable[[int], float]:
    """Return the sensitivity of correlated noise by the number of rounds."""
    schedule = scheduled(selector, sampling.clients)
    return lambda rounds: sensitivity(bands, rounds, schedule.separation, schedule.times(rounds))


def _at_clients(sampling: CohortSampling, selector: Selector) -> Callable[[int], float]:
    """Return the sensitivity of all that one client sends, by the number of rounds: 2 bounds for each of its own."""
    found = participation_of(selector, sampling.clients)
    return lambda rounds: 2 * math.sqrt(rounds if found is None else found.times(rounds))


def epsilon(
    noise_multiplier: float,
    *,
    rounds: int,
    delta: float,
    selection: Selector,
    clients: int,
    stateful: bool = False,
    mechanism: str = "Gaussian",
    bands: int = 16,
) -> float:
    """Return the ε of a run.

    Args:
        noise_multiplier: As in the mechanism.
        rounds: Number of rounds.
        delta: The δ of the guarantee.
        selection: The selector, which determines the amplification by sampling.
        clients: Number of clients in the federation.
        stateful: Whether clients keep state between rounds, as in SCAFFOLD, which `Uniform` does not amplify.
        mechanism: "Gaussian", "MatrixFactorization" or "Local".
        bands: As in `MatrixFactorization`.

    Raises:
        ValueError: If a value is out of range, or the selector needs the clients' data or does not suit the mechanism.
        ImportError: If `dp-accounting` is not installed.

    Example:
        >>> spent = fm.privacy.epsilon(1.0, rounds=500, delta=1e-5, selection=fm.Bernoulli(rate=0.02), clients=5000)
        >>> round(spent, 3)
        3.144
    """
    require("epsilon", "noise_multiplier", noise_multiplier, positive)
    _check("epsilon", rounds, delta, clients, mechanism)
    spent = _spent(mechanism, bands, delta, sampling_of(selection, clients, stateful=stateful), selection)
    return spent(noise_multiplier).epsilon(rounds)


def plan(
    epsilon: float,
    *,
    rounds: int,
    delta: float,
    selection: Selector,
    clients: int,
    stateful: bool = False,
    mechanism: str = "Gaussian",
    bands: int = 16,
) -> float:
    """Return the smallest noise multiplier with which a run stays within ε, up to 0.01 %.

    Args:
        epsilon: The ε that the run may spend.
        rounds: Number of rounds.
        delta: The δ of the guarantee.
        selection: The selector, which determines the amplification by sampling.
        clients: Number of clients in the federation.
        stateful: Whether clients keep state between rounds, as in SCAFFOLD, which `Uniform` does not amplify.
        mechanism: "Gaussian", "MatrixFactorization" or "Local".
        bands: As in `MatrixFactorization`.

    Returns:
        The `noise_multiplier` for the mechanism.

    Raises:
        ValueError: If a value is out of range, the selector needs the clients' data or does not suit the mechanism, or
            no noise is enough.
        ImportError: If `dp-accounting` is not installed.

    Example:
        >>> noise = fm.privacy.plan(4.0, rounds=500, delta=1e-5, selection=fm.Bernoulli(rate=0.02), clients=5000)
        >>> round(noise, 2)
        0.9
    """
    require("plan", "epsilon", epsilon, positive)
    _check("plan", rounds, delta, clients, mechanism)
    spent = _spent(mechanism, bands, delta, sampling_of(selection, clients, stateful=stateful), selection)

    def enough(noise: float) -> bool:
        return spent(noise).epsilon(rounds) <= epsilon

    high = 1.0
    while not enough(high):
        high *= 2
        if high > _MOST_NOISE:
            raise ValueError(f"Cannot reach ε = {epsilon:g} with any noise up to {_MOST_NOISE:g}; use a larger ε")
    low = high / 2
    while enough(low) and low > 1e-3:
        low, high = low / 2, low
    while high - low > 1e-4 * high:
        middle = (low + high) / 2
        low, high = (low, middle) if enough(middle) else (middle, high)
    return high


def _spent(
    mechanism: str, bands: int, delta: float, sampling: CohortSampling, selection: Selector
) -> Callable[[float], Accountant]:
    """Return a function from the noise multiplier to the accountant of a run."""

    def account(noise: float) -> Accountant:
        if mechanism == "Gaussian":
            return RoundAccountant(sampling, noise, delta)
        given = (1.0, noise, delta)
        local = mechanism == "Local"
        return accountant(Local(*given) if local else MatrixFactorization(*given, bands=bands), sampling, selection)

    return account


def _check(owner: str, rounds: int, delta: float, clients: int, mechanism: str) -> None:
    known = Rule(f"one of {', '.join(map(repr, _MECHANISMS))}", lambda v: v in _MECHANISMS)
    require(owner, "mechanism", mechanism, known)
    require(owner, "rounds", rounds, count)
    require(owner, "clients", clients, count)
    require(owner, "delta", delta, Rule("in (0, 1)", lambda v: positive.test(v) and v < 1))


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
