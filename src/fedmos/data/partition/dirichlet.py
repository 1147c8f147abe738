"""Splits by Dirichlet draws: of each client's class distribution, or of each class's distribution over clients."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from ...core.validation import check, count, non_negative, one_of, positive
from ...rng import Purpose, generator
from .split import ClientSplit, coded, deal, enough, even, in_proportion, pools_of


@dataclass(frozen=True, kw_only=True)
class Dirichlet:
    """Balanced clients, each with a class distribution q_i ~ Dir(α·prior) of its own (FedCM, GHBM).

    Clients get equally many samples (sizes differ by one at most), drawn from q_i without replacement; what a used-up
    class cannot give is drawn from the client's other classes. `prior="ones"` is FedCM's Dir(α·1); `prior="data"`
    is Hsu et al.'s and GHBM's, where the prior is the class distribution of the data, so that α is the
    sum of all parameters. α = 0 is GHBM's extreme: one class per client, and sizes as equal as that allows.
    Every sample is given to someone.
    """

    alpha: float
    prior: Literal["ones", "data"] = "ones"

    def __post_init__(self) -> None:
        check(self, alpha=non_negative, prior=one_of("ones", "data"))

    def split(self, labels: np.ndarray, clients: int, seed: int) -> ClientSplit:
        enough("Dirichlet", len(labels), clients)
        names, label = coded(labels)
        rng = generator(seed, Purpose.PARTITION)
        pools = pools_of(label, len(names), rng.permutation(len(labels)))
        supply = np.array([len(pool) for pool in pools])
        return deal(pools, self._one_class(supply, clients) if self.alpha == 0 else self._draw(rng, supply, clients))

    def _one_class(self, supply: np.ndarray, clients: int) -> np.ndarray:
        """Clients in the order of their class, as if the sorted data were cut into shards."""
        if clients < len(supply):
            raise ValueError(
                f"Cannot give each of {clients} clients one class because there are {len(supply)} classes to share "
                f"out; use {len(supply)} clients or more, or Shards"
            )
        holders = in_proportion(clients, supply, least=1)
        counts = np.zeros((clients, len(supply)), dtype=np.int64)
        first = 0
        for c, (n, many) in enumerate(zip(supply, holders, strict=True)):
            enough(f"Dirichlet: class {c}", n, many)
            counts[first : first + many, c] = even(n, many)
            first += many
        return counts

    def _draw(self, rng: np.random.Generator, supply: np.ndarray, clients: int) -> np.ndarray:
        concentration = self.alpha * (np.ones(len(supply)) if self.prior == "ones" else supply / supply.sum())
        log_q = _log_dirichlet(rng, concentration, clients)
        want = rng.permutation(even(int(supply.sum()), clients))
        counts = np.zeros((clients, len(supply)), dtype=np.int64)
        left = supply.copy()
        while want.any():  # each pass serves everyone or uses up a class
            q = np.exp(log_q - log_q.max(1, keepdims=True))
            asked = rng.multinomial(want, q / q.sum(1, keepdims=True))
            for c in np.flatnonzero(asked.sum(0) > left):
                asked[:, c] = _first_served(rng, asked[:, c], left[c])
            counts += asked
            want -= asked.sum(1)
            left -= asked.sum(0)
            log_q[:, left == 0] = -np.inf
        return counts


@dataclass(frozen=True, kw_only=True)
class DirichletByClass:
    """Power-of-Choice's unbalanced split: each class is shared out by proportions ~ Dir(α·1) over the clients.

    Clients that hold n/K samples or more get none of the next class; the whole is drawn again until everyone
    has `least` samples, at most `attempts` times. Every sample is given to someone.
    """

    alpha: float
    least: int = 10
    attempts: int = 1000

    def __post_init__(self) -> None:
        check(self, alpha=positive, least=count, attempts=count)

    def split(self, labels: np.ndarray, clients: int, seed: int) -> ClientSplit:
        enough("DirichletByClass", len(labels), clients, self.least)
        names, label = coded(labels)
        rng = generator(seed, Purpose.PARTITION)
        pools = pools_of(label, len(names), rng.permutation(len(labels)))
        # An attempt costs time by classes and by clients; what fails so often fails always.
        attempts = min(self.attempts, max(10, min(20_000 // len(names), 500_000 // clients)))
        for _ in range(attempts):
            counts = self._counts(rng, [len(pool) for pool in pools], clients)
            if counts.sum(1).min() >= self.least:
                return deal(pools, counts)
        raise ValueError(
            f"Cannot give {clients} clients {self.least} samples each in {attempts} attempts because α = "
            f"{self.alpha:g} is so skewed; use a larger 'alpha', fewer clients or a smaller 'least'"
        )

    def _counts(self, rng: np.random.Generator, sizes: list[int], clients: int) -> np.ndarray:
        """(clients, classes): how many samples of each class each client gets."""
        held, share = np.zeros(clients, dtype=np.int64), sum(sizes) / clients
        concentration = np.full(clients, min(self.alpha, 1e12))
        counts = np.zeros((len(sizes), clients), dtype=np.int64)
        for size, given in zip(sizes, counts, strict=True):
            q = rng.dirichlet(concentration)
            q[held >= share] = 0
            total = q.sum()
            if total == 0:  # all that the draw favours have enough: another attempt
                return np.zeros((clients, 1), dtype=np.int64)
            q /= total
            if size < clients:  # rounding would decide alone
                given[:] = rng.multinomial(size, q)
            else:
                cuts = (q.cumsum() * size).astype(np.int64)
                cuts[q.nonzero()[0][-1] :] = size  # rounding's last sample
                given[0] = cuts[0]
                np.subtract(cuts[1:], cuts[:-1], out=given[1:])
            held += given
        return counts.T


def _log_dirichlet(rng: np.random.Generator, concentration: np.ndarray, count: int) -> np.ndarray:
    """(count, classes): logarithms, up to a constant per row, of Dirichlet draws; sound for the smallest α."""
    shape = (count, len(concentration))
    concentration = np.clip(concentration, 1e-290, 1e15)  # beyond that nothing changes, but overflows
    # Γ(α) ~ Γ(α + 1) · U^(1/α), whose logarithm does not underflow.
    log_gamma = np.log(rng.gamma(concentration + 1, size=shape)) + np.log1p(-rng.random(shape)) / concentration
    return np.asarray(log_gamma - log_gamma.max(1, keepdims=True))


def _first_served(rng: np.random.Generator, asked: np.ndarray, left: int) -> np.ndarray:
    """What each gets if everyone's requests, one sample at a time in random order, are met until none is left."""
    return rng.multivariate_hypergeometric(asked, left, method="marginals")
