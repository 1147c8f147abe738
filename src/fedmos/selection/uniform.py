"""Uniform selection."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from ..core.validation import check, count, one_of
from ..rng import Purpose, choose, choose_one
from .selector import Selector, View, equal, proportional


@dataclass(frozen=True, kw_only=True)
class Uniform(Selector):
    """m of N clients, uniformly without replacement (UCS; FedMoS eq. (28)).

    Args:
        m: Number of clients per round.
        weights: "unbiased" for (N/m) p_i, which sum to one only in expectation; "cohort" for p_i/Σ_S p; "mean" for
            1/m.

    Example:
        >>> selector = fm.Uniform(m=3, weights="cohort")
        >>> result = fm.run(model, data, fm.FedAvg(lr=0.1), selector, rounds=2, local_steps=2, batch_size=8)
    """

    prefetchable = True

    m: int
    weights: Literal["unbiased", "cohort", "mean"] = "unbiased"

    def __post_init__(self) -> None:
        check(self, m=count, weights=one_of("unbiased", "cohort", "mean"))

    def select(self, view: View) -> tuple[Tensor, Tensor]:
        ids, weights = self._draw(view, view.key[None])
        return ids[0], weights[0]

    def select_ahead(self, view: View, rounds: range) -> tuple[Tensor, Tensor]:
        return self._draw(view, view.keys(rounds))

    def select_one(self, view: View) -> tuple[int, float]:
        """Return the client and the weight of `select` with m = 1, bit for bit, without tensors: for `buffer`."""
        client = choose_one(view.seed, view.round, view.number, Purpose.SELECT, view.N)
        return client, float(view.p[client]) * view.N if self.weights == "unbiased" else 1.0

    def _draw(self, view: View, keys: Tensor) -> tuple[Tensor, Tensor]:
        m = min(self.m, view.N)
        ids = choose(keys, view.N, m)
        match self.weights:
            case "unbiased":
                return ids, view.p[ids] * (view.N / m)
            case "cohort":
                return ids, torch.stack([proportional(view.p, row) for row in ids])
            case _:
                return ids, equal(m).expand_as(ids)
