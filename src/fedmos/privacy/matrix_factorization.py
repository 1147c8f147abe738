"""Noise that is correlated over rounds, by a factorisation of the matrix of prefix sums."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..algorithm import Field
from ..core.declared_fields import name_and_shape
from ..core.validation import check, count
from .mechanism import Mechanism


@dataclass(frozen=True)
class MatrixFactorization(Mechanism):
    """Noise that is correlated over rounds (DP-FTRL), for runs whose cohorts follow a schedule.

    A model after t rounds is, more or less, the sum of all updates so far, and independent noise adds up in it. Here
    the noise of a round cancels a part of that of the rounds before. With C the lower triangular Toeplitz matrix of
    coefficients 1, 1/2, 3/8, …, cut off after `bands` of them (the square root of the matrix of prefix sums; Kalinin
    and Lampert, NeurIPS 2024), the noise of round t is row t of C⁻¹ Z, with Z independent and of standard deviation
    `noise_multiplier` · `clip`. All rounds together are one Gaussian mechanism. The sensitivity of C follows from the
    selector: how often a client takes part at most, and after how many rounds again. Cohorts must therefore follow a
    schedule (`Cyclic`, `FixedCohorts`, `Full`); no amplification by sampling is assumed. See docs/privacy.md.

    Args:
        clip: As in `Gaussian`.
        noise_multiplier: The standard deviation of Z over `clip`. 0 adds no noise; ε is then infinite.
        delta: As in `Gaussian`.
        budget: As in `Gaussian`.
        bands: The number of coefficients. The server stores bands − 1 vectors for each upload. With 1, noise is
            independent, as in `Gaussian`. Useful are about as many as there are rounds between two rounds of a client.

    Raises:
        ValueError: If a value is out of range.

    Example:
        >>> result = fm.run(
        ...     model, data, fm.FedAvg(lr=0.1), fm.Cyclic(m=2), rounds=5, local_steps=2, batch_size=8,
        ...     privacy=fm.privacy.MatrixFactorization(clip=1.0, noise_multiplier=2.0, delta=1e-3, bands=5),
        ... )
        >>> round(result.history[-1].epsilon, 2)
        1.77
    """

    bands: int = 16

    def __post_init__(self) -> None:
        super().__post_init__()
        check(self, bands=count)


@lru_cache(maxsize=64)
def coefficients(bands: int) -> tuple[float, ...]:
    """Return the coefficients of C: those of (1 − x)^(−1/2), binom(2j, j)/4^j."""
    found = [1.0]
    for j in range(1, bands):
        found.append(found[-1] * (2 * j - 1) / (2 * j))
    return tuple(found)


@lru_cache(maxsize=1024)
def sensitivity(bands: int, rounds: int, separation: int, times: int) -> float:
    """Return the most by which a client changes C X in norm, relative to the bound of its contribution to a round.

    Since the coefficients are not negative and do not increase, this is reached by a client that takes part in the
    rounds 0, k, 2k, … (Kalinin and Lampert, NeurIPS 2024, Theorem 2).

    Args:
        bands: The number of coefficients of C.
        rounds: The number of rounds.
        separation: The least number of rounds k from one participation of a client to its next one.
        times: The largest number of participations of a client.
    """
    present: NDArray[np.float64] = np.zeros(rounds)
    present[: times * separation : separation] = 1
    moved = np.convolve(present, coefficients(min(bands, rounds)))[:rounds]
    return float(np.linalg.norm(moved))


def next_noise(before: Tensor, fresh: Tensor) -> Tensor:
    """Return row t of W = C⁻¹ Z: w_t = z_t − Σ_j c_j w_(t−j).

    Args:
        before: The rows w_(t−1), w_(t−2), …, one fewer than C has bands; zeros before the first round.
        fresh: z_t.
    """
    c = torch.tensor(coefficients(len(before) + 1)[1:], dtype=before.dtype, device=before.device)
    fresh = fresh.view(before.shape[1:]).to(before)
    return fresh - (c.view(-1, *[1] * fresh.ndim) * before).sum(0)


def stored_shapes(owner: str, declared: Sequence[Field], rows: int) -> dict[str, tuple[Any, ...]]:
    """Return the shapes of the stored noise on the sums of uploads.

    Args:
        owner: The name of the algorithm.
        declared: The uploads of a phase.
        rows: The number of rows to store.

    Raises:
        ValueError: If an upload has a length that is not declared.
    """
    found = {}
    for name, shape in map(name_and_shape, declared):
        if shape == "layers":
            raise ValueError(
                f"Cannot use MatrixFactorization with {owner} because its upload {name!r} has a number for each layer; "
                "declare its length, or use fm.privacy.Gaussian"
            )
        found[name] = (rows, *shape)
    return found
