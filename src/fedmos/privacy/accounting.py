"""The ε of a run, and the noise for a given ε."""

from __future__ import annotations

from typing import Literal, NamedTuple

from ..aggregation.secure import Secure
from ..core.validation import LARGE, Rule, count, non_negative, one_of, positive, require
from ..selection.selector import Selector
from .accountants import Accountant, accountant
from .discrete import DiscreteGaussian, TooLittleNoise
from .distributed import distributed_sums
from .gaussian import Gaussian
from .local import Local
from .matrix_factorization import MatrixFactorization
from .participation import cohort_sizes
from .sampling import sampling_of
from .sums import Group, PrivateSums

_MOST_NOISE = 1e6
_MECHANISMS = ("Gaussian", "MatrixFactorization", "Local", "DiscreteGaussian")


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
    parameters: int = 10**6,
    secure: Secure | None = None,
    accountant: Literal["rdp", "pld"] = "rdp",
) -> float:
    """Return the ε of a run.

    Args:
        noise_multiplier: As in the mechanism; with 0, ε is infinite.
        rounds: Number of rounds.
        delta: The δ of the guarantee.
        selection: The selector, which determines the amplification by sampling.
        clients: Number of clients in the federation.
        stateful: Whether clients keep state between rounds, as in SCAFFOLD, which `Uniform` does not amplify.
        mechanism: "Gaussian", "MatrixFactorization", "Local" or "DiscreteGaussian".
        bands: As in `MatrixFactorization`.
        parameters: The number of parameters of the model, for `DiscreteGaussian`.
        secure: The option `aggregation` of the run, for `DiscreteGaussian` (default: `Secure()`).
        accountant: As in `Gaussian`: "rdp" or "pld".

    Raises:
        ValueError: If a value is out of range, or the selector needs the clients' data or does not suit the mechanism.
        ImportError: If `dp-accounting` is not installed.

    Example:
        >>> spent = fm.privacy.epsilon(1.0, rounds=500, delta=1e-5, selection=fm.Bernoulli(rate=0.02), clients=5000)
        >>> round(spent, 3)
        3.144
        >>> how = {"rounds": 500, "delta": 1e-5, "selection": fm.Bernoulli(rate=0.02), "clients": 5000}
        >>> round(fm.privacy.epsilon(1.0, accountant="pld", **how), 3)
        2.773
    """
    require("epsilon", "noise_multiplier", noise_multiplier, non_negative.up_to(LARGE))
    _check("epsilon", rounds, delta, clients, mechanism, accountant)
    secure = secure or Secure()
    run = _RunWithoutNoise(mechanism, delta, selection, clients, stateful, bands, parameters, secure, accountant)
    return run.account(noise_multiplier).epsilon(rounds)


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
    parameters: int = 10**6,
    secure: Secure | None = None,
    accountant: Literal["rdp", "pld"] = "rdp",
) -> float:
    """Return the smallest noise multiplier with which a run stays within ε, up to 0.01 %.

    Args:
        epsilon: The ε that the run may spend.
        rounds: Number of rounds.
        delta: The δ of the guarantee.
        selection: The selector, which determines the amplification by sampling.
        clients: Number of clients in the federation.
        stateful: Whether clients keep state between rounds, as in SCAFFOLD, which `Uniform` does not amplify.
        mechanism: "Gaussian", "MatrixFactorization", "Local" or "DiscreteGaussian".
        bands: As in `MatrixFactorization`.
        parameters: The number of parameters of the model, for `DiscreteGaussian`.
        secure: The option `aggregation` of the run, for `DiscreteGaussian` (default: `Secure()`).
        accountant: As in `Gaussian`: "rdp" or "pld".

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
        >>> how = {"rounds": 500, "delta": 1e-5, "selection": fm.Bernoulli(rate=0.02), "clients": 5000}
        >>> round(fm.privacy.plan(4.0, accountant="pld", **how), 2)
        0.85
    """
    require("plan", "epsilon", epsilon, positive)
    _check("plan", rounds, delta, clients, mechanism, accountant)
    secure = secure or Secure()
    run = _RunWithoutNoise(mechanism, delta, selection, clients, stateful, bands, parameters, secure, accountant)
    run.account(_MOST_NOISE)  # refuses what no noise helps
    return _least_noise(run, epsilon, rounds)


def _least_noise(run: _RunWithoutNoise, epsilon: float, rounds: int) -> float:
    """Return the smallest noise multiplier with which a run stays within ε, up to 0.01 %."""

    def enough(noise: float) -> bool:
        try:
            return run.account(noise).epsilon(rounds) <= epsilon
        except TooLittleNoise:
            return False

    high, step = 1.0, 2.0
    if run.accountant == "pld":  # takes long for little noise, and asks for little less than "rdp"
        high, step = _least_noise(run._replace(accountant="rdp"), epsilon, rounds), 1.25
    while not enough(high):
        high *= 2
        if high > _MOST_NOISE:
            raise ValueError(f"Cannot reach ε = {epsilon:g} with any noise up to {_MOST_NOISE:g}; use a larger ε")
    low = high / step
    while enough(low) and low > 1e-3:
        low, high = low / step, low
    while high - low > 1e-4 * high:
        middle = (low + high) / 2
        low, high = (low, middle) if enough(middle) else (middle, high)
    return high


class _RunWithoutNoise(NamedTuple):
    """The run to account for, without its noise multiplier."""

    mechanism: str
    delta: float
    selection: Selector
    clients: int
    stateful: bool
    bands: int
    parameters: int
    secure: Secure
    accountant: Literal["rdp", "pld"]

    def account(self, noise: float) -> Accountant:
        """Return the accountant of the run with this noise multiplier."""
        sampling, given = sampling_of(self.selection, self.clients, stateful=self.stateful), (1.0, noise, self.delta)
        match self.mechanism:
            case "MatrixFactorization":
                return accountant(MatrixFactorization(*given, bands=self.bands), sampling, self.selection)
            case "Local":
                return accountant(Local(*given), sampling, self.selection)
            case "DiscreteGaussian":
                return accountant(DiscreteGaussian(*given), sampling, self.selection, self._loss(noise))
            case _:
                return accountant(Gaussian(*given, accountant=self.accountant), sampling, self.selection)

    def _loss(self, noise: float) -> float:
        """Return the ρ of a round with distributed noise, where clients upload one vector of the model's size."""
        sizes = cohort_sizes(self.selection, self.clients)
        sums = PrivateSums((Group("train", ("delta",), 1.0),), noise, sizes.most, self.clients, None)
        least = self.secure.needed(sizes.least)
        made = distributed_sums(sums, [self.parameters], bits=self.secure.bits, clients=sizes.most, least=least)
        return made.loss


def _check(owner: str, rounds: int, delta: float, clients: int, mechanism: str, accountant: str) -> None:
    known = Rule(f"one of {', '.join(map(repr, _MECHANISMS))}", lambda v: v in _MECHANISMS)
    require(owner, "mechanism", mechanism, known)
    require(owner, "accountant", accountant, one_of("rdp", "pld"))
    if accountant != "rdp" and mechanism != "Gaussian":
        raise ValueError(f"{owner}: 'accountant' must be left out with mechanism {mechanism!r}, got {accountant!r}")
    require(owner, "rounds", rounds, count)
    require(owner, "clients", clients, count)
    require(owner, "delta", delta, Rule("in (0, 1)", lambda v: positive.test(v) and v < 1))
