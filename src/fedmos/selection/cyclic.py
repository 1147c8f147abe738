"""Cyclic participation."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ..core.validation import check, count
from ..rng import Purpose, choose, stream
from .selector import Selector, View, proportional


@dataclass(frozen=True, kw_only=True)
class Cyclic(Selector):
    """One seeded order of the clients cut into consecutive groups of m, one group per round (GHBM, Section 4.4).

    The last group can be smaller. The weights are p_i/Σ_S p. Unavailable clients of a group are skipped.

    Args:
        m: Number of clients per group.

    Example:
        >>> result = fm.run(model, data, fm.GHBM(lr=0.1), fm.Cyclic(m=5), rounds=2, local_steps=2, batch_size=8)
        >>> sorted(result.history[0].cohort + result.history[1].cohort)
        [0, 1, 2, 3, 4, 5, 6, 7, 8, 9]
    """

    prefetchable = True

    selects_singly = False

    m: int

    def __post_init__(self) -> None:
        check(self, m=count)

    def select(self, view: View) -> tuple[Tensor, Tensor]:
        N = view.federation or view.N
        order = choose(stream(view.seed, 0, 1, Purpose.SELECT), N, N)
        turn = view.round % -(-N // self.m)
        group = order[turn * self.m : (turn + 1) * self.m]
        if view.ids is not None:
            group = torch.isin(view.ids, group).nonzero().flatten()
        return group, proportional(view.p, group)
