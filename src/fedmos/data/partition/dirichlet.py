"""Dirichlet partitions: by the class distribution of each client, or by the distribution of each class over clients."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from ...core.validation import check, count, non_negative, one_of, positive
from ...rng import Purpose, generator
from .split import ClientSplit, check_enough, deal, encode_labels, even, in_proportion, pools_of


@dataclass(frozen=True, kw_only=True)
class Dirichlet:
    """Clients of equal size, each with its own class distribution q_i ~ Dir(α·prior) (FedCM, GHBM).

    The samples of a client (sizes differ by at most one) are drawn from q_i without replacement; if a class is
    exhausted, they are drawn from the client's other classes. Every sample is assigned.

    Args:
        alpha: Concentration α. α = 0 is GHBM's extreme case: one class per client, with sizes as equal as possible.
        prior: "ones" for FedCM's Dir(α·1), or "data" for the class distribution of the data, as in Hsu et al. and
            GHBM; α is then the sum of all parameters.

    Example:
        >>> scheme = fm.partition.Dirichlet(alpha=0.3)
        >>> fm.datasets.load("digits").partition(scheme, clients=20)
        FederatedData(20 clients, 1438 samples)
    """

    alpha: float
    prior: Literal["ones", "data"] = "ones"

    def __post_init__(self) -> None:
        check(self, alpha=non_negative, prior=one_of("ones", "data"))

    def split(self, labels: np.ndarray, clients: int, seed: int) -> ClientSplit:
        """Divide the samples among clients; see `Partition.split`."""
        check_enough("Dirichlet", len(labels), clients)
        names, label = encode_labels(labels)
        rng = generator(seed, Purpose.PARTITION)
        pools = pools_of(label, len(names), rng.permutation(len(labels)))
        supply = np.array([len(pool) for pool in pools])
        return deal(pools, self._one_class(supply, clients) if self.alpha == 0 else self._draw(rng, supply, clients))

    def _one_class(self, supply: np.ndarray, clients: int) -> np.ndarray:
        """Return the counts for one class per client, with clients in the order of their class."""
        if clients < len(supply):
            raise ValueError(
                f"Cannot give each of {clients} clients one class because there are {len(supply)} classes to share "
                f"out; use {len(supply)} clients or more, or Shards"
            )
        holders = in_proportion(clients, supply, least=1)
        counts = np.zeros((clients, len(supply)), dtype=np.int64)
        first = 0
        for c, (n, many) in enumerate(zip(supply, holders, strict=True)):
            check_enough(f"Dirichlet: class {c}", n, many)
            counts[first : first + many, c] = even(n, many)
            first += many
        return counts

    def _draw(self, rng: np.random.Generator, supply: np.ndarray, clients: int) -> np.ndarray:
        concentration = self.alpha * (np.ones(len(supply)) if self.prior == "ones" else supply / supply.sum())
        log_q = _log_dirichlet(rng, concentration, clients)
        want = rng.permutation(even(int(supply.sum()), clients))
        counts = np.zeros((clients, len(supply)), dtype=np.int64)
        left = supply.copy()
        while want.any():  # each pass meets all demands or exhausts a class
            q = np.exp(log_q - log_q.max(1, keepdims=True))
            requested = rng.multinomial(want, q / q.sum(1, keepdims=True))
            for c in np.flatnonzero(requested.sum(0) > left):
                requested[:, c] = _random_order_served(rng, requested[:, c], left[c])
            counts += requested
            want -= requested.sum(1)
            left -= requested.sum(0)
            log_q[:, left == 0] = -np.inf
        return counts


@dataclass(frozen=True, kw_only=True)
class DirichletByClass:
    """Power-of-Choice's unbalanced split: each class is divided among the clients by proportions ~ Dir(α·1).

    Clients that have n/K samples or more receive none of the next class. The split is drawn again until every client
    has `least` samples. Every sample is assigned.

    Args:
        alpha: Concentration α.
        least: Minimum number of samples per client.
        attempts: Maximum number of draws.

    Example:
        >>> scheme = fm.partition.DirichletByClass(alpha=2.0)
        >>> fm.datasets.load("digits").partition(scheme, clients=10)
        FederatedData(10 clients, 1438 samples)
    """

    alpha: float
    least: int = 10
    attempts: int = 1000

    def __post_init__(self) -> None:
        check(self, alpha=positive, least=count, attempts=count)

    def split(self, labels: np.ndarray, clients: int, seed: int) -> ClientSplit:
        """Divide the samples among clients; see `Partition.split`.

        Raises:
            ValueError: If no attempt gives every client `least` samples.
        """
        check_enough("DirichletByClass", len(labels), clients, self.least)
        names, label = encode_labels(labels)
        rng = generator(seed, Purpose.PARTITION)
        pools = pools_of(label, len(names), rng.permutation(len(labels)))
        # The cost of an attempt grows with classes and clients; after many failures, success is improbable.
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
        """Draw the number of samples of each client and class, (clients, classes)."""
        held, share = np.zeros(clients, dtype=np.int64), sum(sizes) / clients
        concentration = np.full(clients, min(self.alpha, 1e12))
        counts = np.zeros((len(sizes), clients), dtype=np.int64)
        for size, given in zip(sizes, counts, strict=True):
            q = rng.dirichlet(concentration)
            q[held >= share] = 0
            total = q.sum()
            if total == 0:  # all clients with positive proportions have enough: this attempt fails
                return np.zeros((clients, 1), dtype=np.int64)
            q /= total
            if size < clients:  # rounding proportions would be too coarse
                given[:] = rng.multinomial(size, q)
            else:
                cuts = (q.cumsum() * size).astype(np.int64)
                cuts[q.nonzero()[0][-1] :] = size  # in spite of rounding
                given[0] = cuts[0]
                np.subtract(cuts[1:], cuts[:-1], out=given[1:])
            held += given
        return counts.T


def _log_dirichlet(rng: np.random.Generator, concentration: np.ndarray, count: int) -> np.ndarray:
    """Return logarithms of Dirichlet draws, (count, classes), up to a constant per row; accurate for tiny α."""
    shape = (count, len(concentration))
    concentration = np.clip(concentration, 1e-290, 1e15)  # avoids overflow without changing the distribution
    # Γ(α) ~ Γ(α + 1) · U^(1/α); its logarithm does not underflow.
    log_gamma = np.log(rng.gamma(concentration + 1, size=shape)) + np.log1p(-rng.random(shape)) / concentration
    return np.asarray(log_gamma - log_gamma.max(1, keepdims=True))


def _random_order_served(rng: np.random.Generator, requested: np.ndarray, left: int) -> np.ndarray:
    """Return how many samples each client receives if single requests are met in random order until none is left."""
    return rng.multivariate_hypergeometric(requested, left, method="marginals")
