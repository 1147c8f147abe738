"""Counter-based random numbers: every number is a hash of the place where it is used.

There is no generator to advance, save or share. A *stream* is a 64-bit key made from
(seed, round, client, purpose); number j of a stream is a hash of the key and j. The numbers are
therefore the same in every process, for any order of clients, on CPU and GPU, and a checkpoint
needs to store only the round.

The hash is the output function of SplitMix64 (Steele, Lea & Flood, OOPSLA 2014), written in
int64 tensor operations, which wrap around on overflow as unsigned arithmetic does.
"""

from __future__ import annotations

import math
from enum import IntEnum
from functools import lru_cache

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor


class Purpose(IntEnum):
    """The purpose of a stream. The values determine every random number: never change them."""

    BATCH = 1
    FIRST_BATCH = 2
    DROPOUT = 3
    AUGMENT = 4
    SELECT = 5
    AVAILABILITY = 6
    PARTITION = 7
    SPLIT = 8
    PROBE = 9
    DIAGNOSTICS = 10
    ALGORITHM = 11
    ATTACK = 12
    HOLDOUT = 13
    UNSEEN = 14
    EVALUATION = 15
    LOST = 16


def signed(value: int) -> int:
    """Return the int64 with the same 64 bits as `value`."""
    return (int(value) + 2**63) % 2**64 - 2**63


_GAMMA, _MIX_1, _MIX_2 = 0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB
"""The constants of SplitMix64."""


def _shift(z: Tensor, bits: int) -> Tensor:
    """Logical right shift (`>>` on int64 repeats the sign bit)."""
    return (z >> bits) & ((1 << (64 - bits)) - 1)


def fold(key: Tensor, data: Tensor | int) -> Tensor:
    """Return a new key (int64, broadcast over both arguments) from a key and a number."""
    z = key + signed(_GAMMA) * (data + 1) if isinstance(data, Tensor) else key + signed(_GAMMA * (data + 1))
    z = (z ^ _shift(z, 30)) * signed(_MIX_1)
    z = (z ^ _shift(z, 27)) * signed(_MIX_2)
    return z ^ _shift(z, 31)


def _fold_int(key: int, data: int) -> int:
    """`fold` for integers, of NumPy too: the same bits, without tensors."""
    z = (int(key) + _GAMMA * (int(data) + 1)) % 2**64
    z = (z ^ (z >> 30)) * _MIX_1 % 2**64
    z = (z ^ (z >> 27)) * _MIX_2 % 2**64
    return z ^ (z >> 31)


def salt(number: int) -> int:
    """Return a constant for `key ^ salt(number)`: another stream of the same place, in one operation; 0 for 0."""
    return signed(_fold_int(0, number)) if number else 0


def stream(
    seed: int | Tensor,
    round: int | Tensor,
    client: Tensor | int,
    purpose: Purpose,
    device: torch.device | str = "cpu",
) -> Tensor:
    """Return the key of a stream, or one key per entry of `client`.

    Args:
        seed: The seed of the run, or an int64 tensor of seeds on `device`.
        round: The round, or an int64 tensor of rounds on `device`.
        client: The client, or an int64 tensor of clients.
        purpose: What the numbers are used for.
        device: The device of the key.
    """
    key = fold(seed, int(purpose)) if isinstance(seed, Tensor) else _fold_int(seed, int(purpose))
    for part in (round, client):
        if isinstance(key, int) and not isinstance(part, Tensor):
            key = _fold_int(key, part)
            continue
        if isinstance(key, int):
            key = torch.full((), signed(key), device=device)
        key = _fold_ids(key, part.to(device)) if isinstance(part, Tensor) else fold(key, part)
    return torch.full((), signed(key), device=device) if isinstance(key, int) else key


def _fold_ids(key: Tensor, ids: Tensor) -> Tensor:
    """`fold` with the same bits, for few numbers in NumPy, which is faster."""
    if ids.device.type != "cpu" or ids.ndim == 0 or ids.numel() > _SMALL:
        return fold(key, ids)
    z = key.numpy().view(np.uint64) + np.uint64(_GAMMA) * (ids.numpy().astype(np.uint64) + np.uint64(1))
    return torch.from_numpy(_numpy_mix(z).view(np.int64))


def streams(seed: int, rounds: range, client: int, purpose: Purpose) -> Tensor:
    """Return the keys of one client's streams in several rounds."""
    start = _fold_int(seed, int(purpose))
    return torch.tensor([_key(start, t, client) for t in rounds])


def _key(start: int, round: int, client: int) -> int:
    return signed(_fold_int(_fold_int(start, round), client))


def number(seed: int, round: int, client: int, purpose: Purpose) -> float:
    """Return `uniform` of a stream's key as a Python number."""
    return _unit(_fold_int(_fold_int(_fold_int(seed, purpose), round), client))


def _unit(key: int) -> float:
    """`uniform` for a Python integer."""
    return (key >> 11) * 2.0**-53


def uniform(key: Tensor) -> Tensor:
    """Return float64 numbers in [0, 1), one per key."""
    return _shift(key, 11).to(torch.float64) * 2.0**-53


def draws(key: Tensor, count: int, start: int = 0) -> Tensor:
    """Return the uniform numbers `start` … `start + count − 1` of a stream, as a new last axis of `key`."""
    if key.device.type == "cpu" and (key.numel() == 1 or key.numel() * count <= _SMALL):
        return torch.from_numpy(_numpy_draws(key.numpy()[..., None].view(np.uint64), start, count))
    return uniform(fold(key.unsqueeze(-1), torch.arange(start, start + count, device=key.device)))


def at_least(key: Tensor, count: int, p: float) -> Tensor:
    """Return `draws(key, count) >= p`, bit for bit, in fewer operations."""
    kept = torch.empty((*key.shape, count), dtype=torch.bool, device=key.device)
    # In units of 2⁻⁶⁴, shifted by 2⁶³, because tensors compare signed numbers. All these operations are exact.
    bound = (math.ceil(p * 2.0**53) << 11) - 2**63
    if bound >= 2**63 or not kept.numel():
        return kept.zero_()
    steps = signed(_GAMMA) * torch.arange(1, count + 1, device=key.device)
    rows, columns, height = kept.view(-1, count), count, key.numel()
    if key.device.type == "cpu":  # in parts that fit into the cache
        columns = min(count, _PART)
        height = _PART // columns
    for some, mask in zip(key.reshape(-1, 1).split(height), rows.split(height), strict=True):
        for more, out in zip(steps.split(columns), mask.split(columns, 1), strict=True):
            z = _mix_(some + more)
            torch.ge(z.bitwise_xor_(-(2**63)), bound, out=out)
    return kept


def words(key: Tensor, count: int) -> Tensor:
    """Return `count` uniform 64-bit numbers of a stream as int64, as a new last axis of `key`.

    Number j is `fold(key, j)`, bit for bit, in fewer operations.

    Args:
        key: The keys of the streams.
        count: How many numbers per key.
    """
    if key.device.type == "cpu" and 0 < key.numel() * count <= _SMALL:  # NumPy gives empty tensors other strides
        z = _numpy_mix(_cached_counter(0, count) + key.numpy()[..., None].view(np.uint64))
        return torch.from_numpy(z.view(np.int64))
    steps = signed(_GAMMA) * torch.arange(1, count + 1, device=key.device)
    found = torch.empty((*key.shape, count), dtype=torch.int64, device=key.device)
    if key.device.type != "cpu" or found.numel() <= _PART:
        return _mix_(torch.add(key.unsqueeze(-1), steps, out=found))
    columns = min(count, _PART)  # parts that fit into the cache
    height = _PART // columns
    for some, rows in zip(key.reshape(-1, 1).split(height), found.view(-1, count).split(height), strict=True):
        for more, out in zip(steps.split(columns), rows.split(columns, 1), strict=True):
            _mix_(torch.add(some, more, out=out))
    return found


def _mix_(z: Tensor) -> Tensor:
    """Apply the output function of SplitMix64 in place."""
    other = torch.empty_like(z)
    for bits, factor in ((30, _MIX_1), (27, _MIX_2), (31, 0)):
        torch.bitwise_right_shift(z, bits, out=other)
        z.bitwise_xor_(other.bitwise_and_((1 << (64 - bits)) - 1))
        if factor:
            z.mul_(signed(factor))
    return z


def normal(key: Tensor, count: int) -> Tensor:
    """Return the first `count` standard normal numbers of a stream, float64, as a new last axis of `key`.

    The numbers are those of the Box-Muller transform of pairs of uniform numbers. CPU and GPU agree up to rounding.

    Args:
        key: The keys of the streams, for example `c.key` in a method of an algorithm.
        count: How many numbers per key.

    Example:
        >>> from fedmos import rng
        >>> key = rng.stream(0, 0, torch.arange(3), rng.Purpose.ALGORITHM)
        >>> rng.normal(key, 5).shape
        torch.Size([3, 5])
    """
    u = draws(key, 2 * count).unflatten(-1, (count, 2))
    numbers: Tensor = (-2 * (1 - u[..., 0]).log()).sqrt() * (2 * math.pi * u[..., 1]).cos()
    return numbers


def _numpy_draws(key: NDArray[np.uint64], start: int, count: int) -> NDArray[np.float64]:
    """`draws` with the same numbers in NumPy, which is faster for small arrays."""
    z = _numpy_mix((_cached_counter if count <= _SMALL else _counter)(start, count) + key)
    numbers: NDArray[np.float64] = (z >> np.uint64(11)).astype(np.float64) * 2.0**-53
    return numbers


def _numpy_mix(z: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Apply the output function of SplitMix64 in place."""
    for bits, factor in _MIXING:
        z ^= z >> bits
        z *= factor
    z ^= z >> np.uint64(31)
    return z


def _counter(start: int, count: int) -> NDArray[np.uint64]:
    """Return the offsets that are added to a key for each draw."""
    return np.arange(start + 1, start + count + 1, dtype=np.uint64) * np.uint64(_GAMMA)


_cached_counter = lru_cache(maxsize=256)(_counter)
_SMALL = 4096
_PART = 32768
_MIXING = ((np.uint64(30), np.uint64(_MIX_1)), (np.uint64(27), np.uint64(_MIX_2)))


def permute(key: Tensor, size: Tensor, width: int, keep: int | None = None) -> Tensor:
    """Return a random permutation of 0 … size−1 for every key, as rows of `width` entries.

    Args:
        key: The keys of the streams.
        size: Lengths of the permutations; broadcasts against `key`. Entries of a row beyond its size are arbitrary.
        width: Number of columns.
        keep: Return only the first `keep` columns.
    """
    position = torch.arange(width, device=key.device)
    rank = words(key, width).bitwise_right_shift_(1).bitwise_and_(2**63 - 1)
    rank = torch.where(position < size.unsqueeze(-1), rank, torch.iinfo(torch.int64).max)
    if keep is not None and 0 < keep < width and rank.device.type == "cpu":
        return _least(rank.numpy(), keep)
    return rank.argsort(dim=-1, stable=True)[..., :keep]


def _least(rank: NDArray[np.int64], keep: int) -> Tensor:
    """Return the places of the least entries of each row, in order; three times as fast as `topk`."""
    some = np.argpartition(rank, keep - 1, axis=-1)[..., :keep]
    order = np.take_along_axis(rank, some, -1).argsort(-1)
    return torch.from_numpy(np.take_along_axis(some, order, -1))


def choose(key: Tensor, n: int, m: int) -> Tensor:
    """Draw m distinct numbers of 0 … n−1; every ordered subset is equally likely.

    The numbers are a new last axis of `key`. The cost is O(m) unless m is a large fraction of n.
    """
    if 4 * m >= n:
        return permute(key, torch.tensor(n), n, m)
    if m == 1:
        return (draws(key, 1) * n).to(torch.int64)
    # Draw with replacement and keep first occurrences: m is less than n/4, so a few times m draws suffice.
    count = 2 * m + 16
    while True:
        drawn = (draws(key, count) * n).to(torch.int64).reshape(-1, count).tolist()
        values = [list(dict.fromkeys(row))[:m] for row in drawn]
        if all(len(row) == m for row in values):
            return torch.from_numpy(np.array(values, dtype=np.int64)).view(*key.shape, m)
        count *= 2


def choose_one(seed: int, round: int, client: int, purpose: Purpose, n: int) -> int:
    """Return `choose(stream(seed, round, client, purpose), n, 1)` as a Python number, several times as fast."""
    if n <= 4:
        return int(choose(stream(seed, round, client, purpose), n, 1))
    key = _fold_int(_fold_int(_fold_int(seed, purpose), round), client)
    return int(_unit(_fold_int(key, 0)) * n)


def first_occurrences(values: Tensor) -> Tensor:
    """Return the distinct values in the order of their first occurrence."""
    return torch.tensor(list(dict.fromkeys(values.tolist())), dtype=values.dtype, device=values.device)


def generator(seed: int, purpose: Purpose) -> np.random.Generator:
    """Return a NumPy generator for set-up work such as partitions; rounds use streams instead."""
    key = int(stream(seed, 0, 0, purpose))
    return np.random.Generator(np.random.Philox(key=key % 2**64))
