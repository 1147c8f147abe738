"""Attacks on uploads."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import NormalDist

from torch import Tensor

from ..core.validation import LARGE, check, non_negative, none, positive
from ..rng import normal
from .attack import Attack

_LARGEST_QUANTILE = 0.999


@dataclass(frozen=True)
class SignFlip(Attack):
    """Sign flipping: a hostile client uploads −scale · u in place of u.

    Args:
        scale: The factor.
        share: The share of all clients that are hostile.
        clients: The hostile clients, in place of `share`.

    Raises:
        ValueError: If `scale` is not positive.

    Example:
        >>> attack = fm.attacks.SignFlip(scale=2.0, share=0.2)
        >>> attack.forge(torch.tensor([[1.0, -3.0]]), honest=torch.zeros(4, 2), key=torch.tensor([0]))
        tensor([[-2.,  6.]])
    """

    scale: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        check(self, scale=positive.up_to(LARGE))

    def forge(self, rows: Tensor, honest: Tensor, key: Tensor) -> Tensor:
        return -self.scale * rows


@dataclass(frozen=True)
class GaussianNoise(Attack):
    """Gaussian noise: a hostile client adds independent normal numbers of deviation `std` to what it uploads.

    Args:
        std: The standard deviation of a coordinate, in units of the upload.
        share: The share of all clients that are hostile.
        clients: The hostile clients, in place of `share`.

    Raises:
        ValueError: If `std` is not positive.

    Example:
        >>> attack = fm.attacks.GaussianNoise(std=0.1, share=0.2)
        >>> attack.forge(torch.zeros(2, 5), honest=torch.zeros(8, 5), key=torch.tensor([1, 2])).shape
        torch.Size([2, 5])
    """

    std: float

    def __post_init__(self) -> None:
        super().__post_init__()
        check(self, std=positive.up_to(LARGE))

    def forge(self, rows: Tensor, honest: Tensor, key: Tensor) -> Tensor:
        return rows + self.std * normal(key, rows.shape[1]).to(rows)


@dataclass(frozen=True)
class ALIE(Attack):
    """A little is enough (Baruch et al., NeurIPS 2019): all hostile clients upload μ − z σ.

    μ and σ are the mean and the standard deviation (of the population) of every coordinate over the honest clients of
    the round. The attackers see these uploads, which is possible in a simulation only.

    Args:
        z: The number of standard deviations; None for the paper's, the largest z with Φ(z) ≤ (S − H − s) / (S − H) for
            H hostile clients of S and s = ⌊S / 2 + 1⌋ − H, which is 0 unless H is large.
        share: The share of all clients that are hostile.
        clients: The hostile clients, in place of `share`.

    Raises:
        ValueError: If `z` is negative.

    Example:
        >>> attack = fm.attacks.ALIE(z=1.5, share=0.2)
        >>> attack.forge(torch.zeros(1, 1), honest=torch.tensor([[1.0], [3.0]]), key=torch.tensor([0]))
        tensor([[0.5000]])
    """

    z: float | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        check(self, z=non_negative.up_to(LARGE) | none)

    def forge(self, rows: Tensor, honest: Tensor, key: Tensor) -> Tensor:
        z = self.deviations(len(rows), len(honest)) if self.z is None else self.z
        forged = honest.mean(0) - z * honest.std(0, correction=0)
        return forged.expand_as(rows)

    @staticmethod
    def deviations(hostile: int, honest: int) -> float:
        """Return the paper's z for so many hostile and honest clients of a round."""
        supporters = (hostile + honest) // 2 + 1 - hostile
        quantile = min(_LARGEST_QUANTILE, (honest - supporters) / honest)
        return NormalDist().inv_cdf(quantile) if quantile > 0.5 else 0.0


@dataclass(frozen=True)
class InnerProduct(Attack):
    """Inner-product manipulation (Xie et al., UAI 2020): all hostile clients upload −epsilon · μ.

    μ is the mean of what the honest clients of the round upload. The attackers see these uploads, which is possible in
    a simulation only. A small `epsilon` is close to the honest uploads; a large one reverses the mean.

    Args:
        epsilon: The factor ε.
        share: The share of all clients that are hostile.
        clients: The hostile clients, in place of `share`.

    Raises:
        ValueError: If `epsilon` is not positive.

    Example:
        >>> attack = fm.attacks.InnerProduct(epsilon=0.5, share=0.2)
        >>> attack.forge(torch.zeros(1, 1), honest=torch.tensor([[1.0], [3.0]]), key=torch.tensor([0]))
        tensor([[-1.]])
    """

    epsilon: float = 0.5

    def __post_init__(self) -> None:
        super().__post_init__()
        check(self, epsilon=positive.up_to(LARGE))

    def forge(self, rows: Tensor, honest: Tensor, key: Tensor) -> Tensor:
        return (-self.epsilon * honest.mean(0)).expand_as(rows)
