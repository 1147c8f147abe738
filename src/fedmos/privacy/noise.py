"""The noise on sums of uploads: reproducible from the run's seed, or from the operating system in deployments."""

from __future__ import annotations

import hashlib
import math
import secrets
from collections.abc import Callable
from typing import NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

from .. import rng
from ..algorithm import Context

_AT_ONCE = 2**20
"""Numbers that are drawn together, to bound the memory."""


class Noise(Protocol):
    """Where the noise on sums comes from, and whether noisy sums are stored."""

    def normal(self, count: int, ctx: Context, phase: str, upload: str) -> Tensor:
        """Return standard normal numbers for the sum of an upload in a round, float64, (count,)."""

    def once(self, compute: Callable[[], Tensor], ctx: Context, phase: str, upload: str) -> Tensor:
        """Return what `compute` returns for an upload; in a round that is repeated, what it returned at first."""


class SeededNoise:
    """Noise from the random streams of a run, which anyone who knows the seed can compute: for simulations."""

    def normal(self, count: int, ctx: Context, phase: str, upload: str) -> Tensor:
        return rng.normal(noise_key(ctx.key, phase, upload), count)

    def once(self, compute: Callable[[], Tensor], ctx: Context, phase: str, upload: str) -> Tensor:
        return compute()


class SystemNoise:
    """Noise from the entropy of the operating system, different in every call: for deployments, which store sums."""

    def normal(self, count: int, ctx: Context, phase: str, upload: str) -> Tensor:
        return system_normal(count)

    def once(self, compute: Callable[[], Tensor], ctx: Context, phase: str, upload: str) -> Tensor:
        return compute()


def add_noise(noise: Noise, total: Tensor, std: Tensor | float, ctx: Context, phase: str, upload: str) -> Tensor:
    """Return a sum of uploads with noise.

    Args:
        noise: Where the noise comes from.
        total: The sum of the uploads.
        std: The standard deviation of the noise.
        ctx: The server's context of the round.
        phase: The phase of the upload.
        upload: The name of the upload.
    """

    def noisy() -> Tensor:
        numbers = noise.normal(total.numel(), ctx, phase, upload).to(total.device)
        return total + (std * numbers.view(total.shape)).to(total)

    return noise.once(noisy, ctx, phase, upload).to(total.device)


class SecretStreams(NamedTuple):
    """The random numbers of a private deployment, which cannot be computed from the run's seed."""

    noise: Noise
    cohort_seed: Callable[[int], int]
    """Returns the seed of a round's cohort."""


def noise_key(key: Tensor, phase: str, upload: str) -> Tensor:
    """Return the stream of the noise on a sum.

    Args:
        key: The server's stream in this round.
        phase: The phase of the upload.
        upload: The name of the upload.
    """
    number = int.from_bytes(hashlib.sha256(f"privacy/{phase}/{upload}".encode()).digest()[:7], "little")
    return rng.fold(key, number)


def system_normal(count: int) -> Tensor:
    """Return standard normal numbers from the entropy of the operating system, float64, (count,), on the CPU.

    The numbers are those of the Box-Muller transform. No key can reproduce them.

    Args:
        count: How many numbers.
    """
    found = np.empty(count)
    for start in range(0, count, _AT_ONCE):
        part = found[start : start + _AT_ONCE]
        words = np.frombuffer(secrets.token_bytes(16 * len(part)), dtype=np.uint64).reshape(2, -1)
        u, v = (words >> np.uint64(11)).astype(np.float64) * 2.0**-53
        part[:] = np.sqrt(-2 * np.log1p(-u)) * np.cos(2 * math.pi * v)
    return torch.from_numpy(found)
