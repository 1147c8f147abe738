"""Test samples that are held out of each client's data."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch

from ..core.validation import require
from ..core.validation import seed as seed_rule
from ..rng import Purpose, generator
from .arrays import importance_of
from .client_tests import ClientTests
from .partition.split import ClientSplit, Index
from .subset import SHARE

if TYPE_CHECKING:
    from .federated import FederatedData


class TrainAndTest(NamedTuple):
    """The samples of each client for training, and those for testing."""

    train: ClientSplit
    test: ClientSplit


def hold_out(split: ClientSplit, targets: np.ndarray, share: float, seed: int) -> TrainAndTest:
    """Divide each client's samples into training and test samples, at random and in proportion to its classes.

    A client with n samples has round(share · n) test samples, but at least one and at most n − 1 if n ≥ 2, and none if
    n = 1. Every sample of a client is equally likely to be held out, and of each class a client holds out its share,
    rounded down or up. Targets that are not classes are held out without regard to their value.

    Args:
        split: The samples of each client.
        targets: The targets of the data set.
        share: The share of test samples.
        seed: Seed of the draw.

    Raises:
        ValueError: If `share` is not in (0, 1), or a sample belongs to two clients.
    """
    require("partition", "holdout", share, SHARE)
    check_disjoint(split)
    sizes = split.sizes
    tested = np.clip(np.floor(share * sizes + 0.5).astype(np.int64), 1, np.maximum(sizes - 1, 1))
    tested[sizes < 2] = 0
    rng = generator(seed, Purpose.HOLDOUT)
    owner = np.repeat(np.arange(len(split)), sizes)
    # Systematic sampling along each client's samples in the order of their classes, random within a class.
    order = np.lexsort((rng.random(len(split.entries)), _classes(targets)[split.entries], owner))
    start = (rng.random(len(split)) * sizes).astype(np.int64)
    position = np.arange(len(owner)) - split.offsets[:-1][owner]
    before = (position * tested[owner] + start[owner]) // sizes[owner]
    after = ((position + 1) * tested[owner] + start[owner]) // sizes[owner]
    held = np.zeros(len(owner), dtype=bool)
    held[order] = after > before
    return divide(split, held)


def hold_out_of(data: FederatedData, share: float, seed: int) -> FederatedData:
    """Return the federation with test samples held out of each client's data; see `FederatedData.hold_out`."""
    require("hold_out", "share", share, SHARE)
    require("hold_out", "seed", seed, seed_rule)
    if data.tests is not None:
        raise ValueError("Cannot hold out test samples because clients have some of their own already")
    entries = torch.arange(int(data.offsets[-1])) if data.index is None else data.index[: int(data.offsets[-1])]
    split = ClientSplit(entries.numpy(), data.sizes.numpy())
    train, test = hold_out(split, data.y.numpy(), share, seed)
    sizes = torch.from_numpy(train.sizes)
    by_size = bool(torch.equal(data.importance, importance_of(data.sizes)))
    index, tested = torch.from_numpy(train.entries), torch.from_numpy(test.entries)
    return replace(
        data,
        index=index,
        offsets=torch.from_numpy(train.offsets),
        importance=importance_of(sizes) if by_size else data.importance,
        tests=ClientTests(data.x, data.y, tested, torch.from_numpy(test.offsets), data.layout) if len(tested) else None,
        unseen=None if data.unseen is None else hold_out_of(data.unseen, share, seed),
    )


def divide(split: ClientSplit, held: np.ndarray) -> TrainAndTest:
    """Divide a split by whether each of its entries is held out; both parts keep the order of the entries.

    Raises:
        ValueError: If all samples of a client are held out.
    """
    owner = np.repeat(np.arange(len(split)), split.sizes)
    sizes = np.bincount(owner[held], minlength=len(split))
    none = np.flatnonzero(sizes == split.sizes)
    if len(none):
        raise ValueError(
            f"Cannot hold out test samples of client {none[0]} because no sample would be left for training; use "
            "other test samples, or leave the client out"
        )
    owners = split.owners
    return TrainAndTest(
        ClientSplit(split.entries[~held], split.sizes - sizes, owners), ClientSplit(split.entries[held], sizes, owners)
    )


def check_disjoint(split: ClientSplit) -> None:
    """Raise ValueError if a sample occurs twice, so that it could be held out and be used in training, too."""
    found, count = np.unique(split.entries, return_counts=True)
    if len(found) < len(split.entries):
        raise ValueError(
            f"Cannot hold out test samples because the partition assigns sample {found[count > 1][0]} more than once; "
            "use a partition in which every sample has one client"
        )


def _classes(targets: np.ndarray) -> Index:
    """Return the class of each sample; 0 for all if targets are not classes."""
    y = targets[:, 0] if targets.ndim == 2 and targets.shape[1] == 1 else targets
    if y.ndim == 1 and (y.dtype.kind in "iub" or bool(np.isin(y, (0, 1)).all())):
        return y.astype(np.int64)
    return np.zeros(len(y), dtype=np.int64)
