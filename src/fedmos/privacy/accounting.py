"""The ε that a run has spent, by `dp-accounting`, and the noise for a given ε."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from typing import Any, NamedTuple

from ..core.validation import Rule, count, needs, positive, require
from ..selection.selector import Selector
from .gaussian import Gaussian
from .sampling import CohortSampling, sampling_of

_MOST_NOISE = 1e6


class _Spent(NamedTuple):
    """The Rényi divergences of one round."""

    orders: Any
    rdp: Any


class Accountant:
    """Computes ε after any number of rounds of a run.

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


def accountant(privacy: Gaussian, sampling: CohortSampling) -> Accountant:
    """Return the accountant of a run with this option and sampling."""
    return Accountant(sampling, privacy.noise_multiplier, privacy.delta)


def epsilon(
    noise_multiplier: float, *, rounds: int, delta: float, selection: Selector, clients: int, stateful: bool = False
) -> float:
    """Return the ε of a run.

    Args:
        noise_multiplier: As in `Gaussian`.
        rounds: Number of rounds.
        delta: The δ of the guarantee.
        selection: The selector, which determines the amplification by sampling.
        clients: Number of clients in the federation.
        stateful: Whether clients keep state between rounds, as in SCAFFOLD, which `Uniform` does not amplify.

    Raises:
        ValueError: If a value is out of range, or the selector needs the clients' data.
        ImportError: If `dp-accounting` is not installed.

    Example:
        >>> spent = fm.privacy.epsilon(1.0, rounds=500, delta=1e-5, selection=fm.Bernoulli(rate=0.02), clients=5000)
        >>> round(spent, 3)
        3.144
    """
    require("epsilon", "noise_multiplier", noise_multiplier, positive)
    _check("epsilon", rounds, delta, clients)
    return Accountant(sampling_of(selection, clients, stateful=stateful), noise_multiplier, delta).epsilon(rounds)


def plan(
    epsilon: float, *, rounds: int, delta: float, selection: Selector, clients: int, stateful: bool = False
) -> float:
    """Return the smallest noise multiplier with which a run stays within ε, up to 0.01 %.

    Args:
        epsilon: The ε that the run may spend.
        rounds: Number of rounds.
        delta: The δ of the guarantee.
        selection: The selector, which determines the amplification by sampling.
        clients: Number of clients in the federation.
        stateful: Whether clients keep state between rounds, as in SCAFFOLD, which `Uniform` does not amplify.

    Returns:
        The `noise_multiplier` for `Gaussian`.

    Raises:
        ValueError: If a value is out of range, the selector needs the clients' data, or no noise is enough.
        ImportError: If `dp-accounting` is not installed.

    Example:
        >>> noise = fm.privacy.plan(4.0, rounds=500, delta=1e-5, selection=fm.Bernoulli(rate=0.02), clients=5000)
        >>> round(noise, 2)
        0.9
    """
    require("plan", "epsilon", epsilon, positive)
    _check("plan", rounds, delta, clients)
    sampling = sampling_of(selection, clients, stateful=stateful)

    def enough(noise: float) -> bool:
        return Accountant(sampling, noise, delta).epsilon(rounds) <= epsilon

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


def _check(owner: str, rounds: int, delta: float, clients: int) -> None:
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
