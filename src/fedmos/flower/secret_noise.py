"""Random numbers that follow from a secret of a client and from a request.

The secret comes from the operating system when it is first needed, and stays on the client's disk. A request that is
repeated gets the same numbers, so nobody can average noise away; whoever does not have the secret cannot compute them.
"""

from __future__ import annotations

import hashlib
import os
import secrets
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..storage.files import create_file
from .client_errors import ClientError, ClientErrorCode
from .request_journal import Question

_BYTES = 32
"""The length of a secret."""
_AT_ONCE = 2**20
"""Numbers that are drawn together, to bound the memory."""


class ClientSecret:
    """The secret of a client.

    Args:
        path: Its file; it is created when it is first needed.
    """

    def __init__(self, path: Path) -> None:
        self._path = path

    def seed(self, *parts: object) -> bytes:
        """Return a seed that only the client can compute."""
        return self._key() + repr(parts).encode()

    def _key(self) -> bytes:
        if not self._path.exists():  # of several processes of the client, the first one decides
            create_file(self._path, secrets.token_bytes(_BYTES), f".{os.getpid()}", 0o600)
        key = self._path.read_bytes()
        if len(key) != _BYTES:
            raise ClientError(
                ClientErrorCode.STATE,
                f"Cannot draw noise because {self._path} is damaged: it has {len(key)} bytes instead of {_BYTES}; "
                "restore it from a backup",
            )
        return key


class SecretClientNoise:
    """The noise of a client under local or distributed privacy; see `fedmos.privacy.client_noise.ClientNoise`.

    Args:
        secret: The secret of the client.
    """

    def __init__(self, secret: ClientSecret) -> None:
        self._secret = secret
        self.asked: Question | None = None
        """The request that is answered."""

    def normal(self, key: Tensor, phase: str, upload: str, count: int) -> Tensor:
        return _rows(secret_normal(count, self._seed(phase, upload)), key)

    def words(self, key: Tensor, phase: str, upload: str, count: int) -> Tensor:
        return _rows(secret_words(count, self._seed(phase, upload)), key)

    def _seed(self, phase: str, upload: str) -> bytes:
        assert self.asked is not None
        return self._secret.seed("privacy", self.asked, phase, upload)


def secret_normal(count: int, seed: bytes) -> Tensor:
    """Return standard normal numbers, float64, (count,), that nobody can compute without the seed."""
    parts = []
    for uniform in _drawn(count, seed, pairs=True):
        pair = (uniform.reshape(2, -1) >> np.uint64(11)).astype(np.float64)
        radius = np.sqrt(-2 * np.log((pair[0] + 1) * 2.0**-53))
        angle = pair[1] * (2 * np.pi * 2.0**-53)
        parts.append(torch.from_numpy(np.concatenate([radius * np.cos(angle), radius * np.sin(angle)])))
    return torch.cat(parts)[:count] if parts else torch.empty(0, dtype=torch.float64)


def secret_words(count: int, seed: bytes) -> Tensor:
    """Return uniform 64-bit numbers, int64, (count,), that nobody can compute without the seed."""
    parts = [torch.from_numpy(words.view(np.int64)) for words in _drawn(count, seed)]
    return torch.cat(parts) if parts else torch.empty(0, dtype=torch.int64)


def _drawn(count: int, seed: bytes, pairs: bool = False) -> Iterator[NDArray[np.uint64]]:
    """Return uniform 64-bit numbers in parts, all but the last one of the same length."""
    for start in range(0, count, _AT_ONCE):
        n = min(_AT_ONCE, count - start)
        n += n % 2 if pairs else 0
        drawn = hashlib.shake_256(seed + start.to_bytes(8, "little")).digest(8 * n)
        yield np.frombuffer(drawn, "<u8").astype(np.uint64)


def _rows(numbers: Tensor, key: Tensor) -> Tensor:
    """Return the same numbers for each row of `key`: the client, and copies of it that fill a program."""
    return numbers.to(key.device).expand(*key.shape, len(numbers))
