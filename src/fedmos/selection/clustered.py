"""Clustered sampling."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from ..core.validation import check, count, one_of
from .acs import bins_of, by_importance, one_per_bin
from .draws import Intervals
from .selector import Selector, View, equal
from .similarity import angles_between, ward_tree

_ROUNDING = 1e-9
"""Masses are compared up to this much."""


@dataclass(frozen=True, kw_only=True)
class Clustered(Selector):
    """Clustered sampling (Fraboni et al., ICML 2021): one client from each of m distributions. Unbiased.

    Client i is in the distributions with m p_i in all, and each has a total of one, so that the expected weight of a
    client is p_i, and its variance at most MD's. The weight of a client is (times drawn)/m.

    By size (Algorithm 1), clients fill the distributions in the order of their importance, as in `ACS`. By similarity
    (Algorithm 2), clients are grouped by the angles between their last updates, with Ward linkage. The tree is cut into
    the fewest groups that fit into a distribution; the m largest groups become distributions, and the clients of the
    others fill their free space. Similar clients are then rarely drawn together.

    Args:
        m: Number of draws per round.
        by: "size" or "similarity".

    Deviations:
        A client with m p_i ≥ 1 gets ⌊m p_i⌋ distributions of its own; the rest of its mass is grouped like other
        clients. Clients without an update have one direction, at a right angle to all others; in the authors' code,
        they are at distance zero from all others. The groups are computed anew in every round.

    Example:
        >>> selector = fm.Clustered(m=3, by="similarity")
        >>> result = fm.run(model, data, fm.FedAvg(lr=0.1), selector, rounds=2, local_steps=2, batch_size=8)
    """

    selects_singly = False

    m: int
    by: Literal["size", "similarity"] = "size"

    def __post_init__(self) -> None:
        check(self, m=count, by=one_of("size", "similarity"))

    @property
    def updates(self) -> bool:
        return self.by == "similarity"

    def select(self, view: View) -> tuple[Tensor, Tensor]:
        if self.by == "size":
            intervals = view.once("by p, sorted", lambda: Intervals(view.p, by_importance(view.p)))
            return one_per_bin(view.key, intervals, self.m), equal(self.m)
        parts = similar_together(view.p, view.updates, self.m)
        return parts.client[one_per_bin(view.key, Intervals(parts.mass), self.m)], equal(self.m)

    def bins(self, p: Tensor, updates: Mapping[int, Tensor] | None = None) -> Tensor:
        """Return the probabilities r_{i,k}, (N, m), of drawing client i from distribution k.

        Args:
            p: Importances of the clients, with sum one.
            updates: The last update of each client that has one; needed by similarity.
        """
        p = torch.as_tensor(p, dtype=torch.float64)
        if self.by == "size":
            return bins_of(p, by_importance(p), self.m)
        client, mass = similar_together(p, updates or {}, self.m)
        k = (mass.cumsum(0) - mass / 2).long().clamp(max=self.m - 1)
        return torch.zeros(len(p), self.m, dtype=torch.float64).index_put((client, k), mass, accumulate=True)


class Parts(NamedTuple):
    """Parts of clients, laid end to end: distribution k is the interval [k, k + 1)."""

    client: Tensor
    mass: Tensor


def similar_together(p: Tensor, updates: Mapping[int, Tensor], m: int) -> Parts:
    """Return the distributions of Algorithm 2."""
    mass = (m * p).tolist()
    whole = [math.floor(v + _ROUNDING) for v in mass]
    rest = [v - n if v - n > _ROUNDING else 0.0 for v, n in zip(mass, whole, strict=True)]
    bins = [[(i, 1.0)] for i, n in enumerate(whole) for _ in range(n)]
    shared = [i for i, v in enumerate(rest) if v > 0]
    groups = _cut(_tree(shared, updates), shared, rest) if len(bins) < m else []
    bins += _fill(groups, rest, m - len(bins))
    parts = [part for found in bins for part in found]
    return Parts(torch.tensor([i for i, _ in parts]), torch.tensor([v for _, v in parts], dtype=torch.float64))


def _tree(clients: list[int], updates: Mapping[int, Tensor]) -> list[tuple[int, int]]:
    """Return the merges of clients, as positions in the list; the result of merge k is number len(clients) + k."""
    known = [place for place, i in enumerate(clients) if i in updates]
    distances = np.full((len(clients), len(clients)), math.pi / 2)
    unknown = [place for place, i in enumerate(clients) if i not in updates]
    distances[np.ix_(unknown, unknown)] = 0.0
    if known:
        distances[np.ix_(known, known)] = angles_between(torch.stack([updates[clients[place]] for place in known]))
    if len(clients) < 2:
        return []
    return [(int(a), int(b)) for a, b in ward_tree(distances)[:, :2]]


def _cut(merges: list[tuple[int, int]], clients: list[int], mass: list[float]) -> list[list[int]]:
    """Return the largest groups of the tree with a total mass of at most one, by descending mass."""
    members = [[i] for i in clients]
    for a, b in merges:
        members.append(members[a] + members[b])
    total = [math.fsum(mass[i] for i in group) for group in members]
    groups, open_nodes = [], [len(members) - 1]
    while open_nodes:
        node = open_nodes.pop()
        if node < len(clients) or total[node] <= 1 + _ROUNDING:
            groups.append(node)
        else:
            open_nodes += merges[node - len(clients)]
    groups.sort(key=lambda node: (-total[node], min(members[node])))
    return [sorted(members[node]) for node in groups]


def _fill(groups: list[list[int]], mass: list[float], m: int) -> list[list[tuple[int, float]]]:
    """Make the first m groups distributions, and fill their free space with the clients of the others."""
    bins = [[(i, mass[i]) for i in group] for group in groups[:m]]
    free = [1 - math.fsum(v for _, v in found) for found in bins]
    k = 0
    for i in (i for group in groups[m:] for i in group):
        left = mass[i]
        while left > 0 and k < m:
            part = left if k == m - 1 else min(left, max(free[k], 0.0))
            if part > 0:
                bins[k].append((i, part))
            left, free[k] = left - part, free[k] - part
            if left > 0:
                k += 1
    return bins
