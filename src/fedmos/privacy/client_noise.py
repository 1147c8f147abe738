"""The noise that clients add: reproducible from the run's seed, or secret in deployments."""

from __future__ import annotations

from typing import Any, ClassVar, Protocol

from torch import Tensor

from .. import rng
from ..algorithm import Algorithm
from ..core.composition import recast, subclass
from .noise import noise_key


class ClientNoise(Protocol):
    """Where the noise of clients comes from."""

    def normal(self, key: Tensor, phase: str, upload: str, count: int) -> Tensor:
        """Return standard normal numbers for an upload, float64, as a new last axis of the clients' streams `key`."""

    def words(self, key: Tensor, phase: str, upload: str, count: int) -> Tensor:
        """Return uniform 64-bit numbers for an upload, int64, as a new last axis of the clients' streams `key`."""


class SeededClientNoise:
    """Noise from the random streams of a run, which anyone who knows the seed can compute: for simulations."""

    def normal(self, key: Tensor, phase: str, upload: str, count: int) -> Tensor:
        return rng.normal(noise_key(key, phase, upload), count)

    def words(self, key: Tensor, phase: str, upload: str, count: int) -> Tensor:
        return rng.words(noise_key(key, phase, upload), count)


class NoisyAtClients(Algorithm):
    """An algorithm whose clients add noise."""

    _privacy_client_noise: ClassVar[ClientNoise] = SeededClientNoise()


def has_client_noise(algorithm: Algorithm) -> bool:
    """Return whether clients add the noise of a private algorithm."""
    return isinstance(algorithm, NoisyAtClients)


def with_client_noise(algorithm: Algorithm, noise: ClientNoise) -> Algorithm:
    """Return an algorithm whose clients take their noise from elsewhere than from the run's seed."""
    attributes: dict[str, Any] = {"_privacy_client_noise": noise}
    return recast(algorithm, subclass(type(algorithm), _OtherClientNoise, **attributes))


class _OtherClientNoise(NoisyAtClients):
    """An algorithm with a source of noise of its own; see `with_client_noise`."""
