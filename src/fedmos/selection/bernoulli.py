"""Independent participation."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from ..rng import draws, fold
from ..validate import check, share
from .selector import Selector, View, equal


@dataclass(frozen=True, kw_only=True)
class Bernoulli(Selector):
    """Each client on its own with probability `rate`, drawn again if nobody comes (FedCM); weights 1/|S|."""

    foreseeable = True

    rate: float

    def __post_init__(self) -> None:
        check(self, rate=share)

    def select(self, view: View) -> tuple[Tensor, Tensor]:
        attempt = 0
        while True:
            ids = (draws(fold(view.key, attempt), view.N) < self.rate).nonzero().flatten()
            if len(ids):
                return ids, equal(len(ids))
            attempt += 1
