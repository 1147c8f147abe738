"""Draws from a weighted population, which can be very large."""

from __future__ import annotations

import torch
from torch import Tensor

from ..rng import draws, first_occurrences, fold

_BLOCK = 16


class Intervals:
    """Intervals of lengths `mass`, laid end to end in the given order; `locate` finds the interval of a point.

    Only every 16th edge is stored; the edges in between are recomputed when they are needed.
    A hundred million intervals therefore need 50 megabytes in addition to their lengths.
    """

    def __init__(self, mass: Tensor, order: Tensor | None = None) -> None:
        self._mass, self._order = mass, order
        blocks = -(-len(mass) // _BLOCK)
        sums = torch.empty(blocks, dtype=torch.float64)
        for start in range(0, len(mass), _BLOCK * 32768):  # in pieces, to avoid a second copy of the lengths
            part = self._lengths(torch.arange(start, min(start + _BLOCK * 32768, len(mass))))
            sums[start // _BLOCK : start // _BLOCK + -(-len(part) // _BLOCK)] = _padded(part).sum(1)
        self._edges = torch.cat([torch.zeros(1, dtype=torch.float64), sums.cumsum(0)])
        self._last = int(sums.nonzero()[-1])
        self.total = float(self._edges[-1])

    def _lengths(self, places: Tensor) -> Tensor:
        return self._mass[places if self._order is None else self._order[places].long()]

    def locate(self, u: Tensor) -> Tensor:
        """Return the interval of each point of [0, total). Intervals of length zero are never returned."""
        if u.ndim > 1:
            return self.locate(u.flatten()).view(u.shape)
        block = (torch.searchsorted(self._edges, u, right=True) - 1).clamp(0, self._last)
        places = block[:, None] * _BLOCK + torch.arange(_BLOCK)
        inside = places < len(self._mass)
        lengths = torch.where(inside, self._lengths(places.clamp(max=len(self._mass) - 1)), 0.0)
        edges = self._edges[block, None] + lengths.cumsum(1)
        within = (edges <= u[:, None]).sum(1).clamp(max=_BLOCK - 1)
        beyond = lengths.gather(1, within[:, None]).squeeze(1) <= 0  # rounding led past the block's last interval
        if bool(beyond.any()):
            within[beyond] = ((lengths[beyond] > 0) * torch.arange(_BLOCK)).amax(1)
        place = block * _BLOCK + within
        return place if self._order is None else self._order[place].long()


def _padded(part: Tensor) -> Tensor:
    extra = -len(part) % _BLOCK
    return torch.nn.functional.pad(part, (0, extra)).view(-1, _BLOCK)


def weighted_choice(key: Tensor, intervals: Intervals, p: Tensor, d: int) -> Tensor:
    """Draw d distinct clients one after another, each time ∝ p among the remaining ones.

    Drawing with replacement and skipping repetitions has this distribution. If repetitions are frequent, the missing
    clients are those with the smallest −ln(u_i)/p_i among the others (Efraimidis & Spirakis, 2006).
    """
    drawn = torch.empty(0, dtype=torch.int64)
    if 2 * d < len(p):
        for tries in (d + d // 8 + 16, 4 * d + 32):
            drawn = first_occurrences(intervals.locate(draws(key, tries) * intervals.total))[:d]
            if len(drawn) == d:
                return drawn
    rest = torch.ones(len(p), dtype=torch.bool).index_fill(0, drawn, False).nonzero().flatten()
    return torch.cat([drawn, rest[gumbel_top(fold(key, -1), p[rest].log(), d - len(drawn))]])


def gumbel_top(key: Tensor, log_weight: Tensor, d: int) -> Tensor:
    """Draw d distinct entries one after another ∝ exp(log_weight); entries of weight zero are last, in random order."""
    u = draws(key, len(log_weight))
    gumbel = -torch.log(-torch.log(u.clamp(min=2.0**-54)))
    return torch.where(log_weight.isneginf(), -1e300 + u * 1e299, log_weight + gumbel).topk(d).indices


def largest(key: Tensor, values: Tensor, m: int) -> Tensor:
    """Return the indices of the m largest values, ties in random order."""
    order = draws(key, len(values)).argsort()
    return order[values[order].argsort(descending=True, stable=True)[:m]]
