"""Federations of some of the clients of another one."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ..core.validation import Rule, number, require
from ..core.validation import seed as seed_rule
from ..rng import Purpose, choose, stream
from .arrays import chosen_clients, importance_of
from .client_tests import slice_entries

if TYPE_CHECKING:
    from .federated import FederatedData

SHARE = Rule("a number > 0 and < 1", lambda v: number.test(v) and 0 < v < 1)


def subset(data: FederatedData, ids: Iterable[int | str]) -> FederatedData:
    """Return the federation of these clients; see `FederatedData.subset`."""
    chosen = torch.tensor(chosen_clients(ids, len(data), data.names))
    p = data.importance[chosen]
    if float(p.sum()) == 0:
        raise ValueError("Cannot take a subset because all of its clients have the importance 0; use other clients")
    entries, offsets = slice_entries(data.offsets, chosen)
    return replace(
        data,
        index=entries if data.index is None else data.index[entries],
        offsets=offsets,
        importance=importance_of(data.sizes[chosen], p),
        tests=None if data.tests is None else data.tests.subset(chosen),
        names=None if data.names is None else [data.names[i] for i in chosen],
    )


def split_clients(data: FederatedData, share: float, seed: int) -> tuple[FederatedData, FederatedData]:
    """Return the federation of most clients, and that of those set aside; see `FederatedData.split_clients`."""
    if data.unseen is not None:
        raise ValueError("Cannot set clients aside because some are already; use the federation before that")
    aside = _set_aside(len(data), share, seed)
    unseen = subset(data, aside.nonzero().flatten())
    return replace(subset(data, (~aside).nonzero().flatten()), unseen=unseen), unseen


def _set_aside(clients: int, share: float, seed: int) -> Tensor:
    """Return which clients are set aside, (clients,), bool."""
    require("split_clients", "share", share, SHARE)
    require("split_clients", "seed", seed, seed_rule)
    if clients < 2:
        raise ValueError("Cannot set clients aside because there is one only; use a federation of several")
    count = min(max(1, int(share * clients + 0.5)), clients - 1)
    aside = torch.zeros(clients, dtype=torch.bool)
    aside[choose(stream(seed, 0, 0, Purpose.UNSEEN), clients, count)] = True
    return aside
