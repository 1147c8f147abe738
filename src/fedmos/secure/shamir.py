"""Shamir's secret sharing of 32 bytes over a prime field: any `threshold` of the shares give the secret, fewer nothing.

The share of place x is f(x) for a random polynomial f of degree threshold − 1 with f(0) = secret.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence

from .sizes import SECRET, SHARE

PRIME = 2**256 + 297
"""The smallest prime above 2^256."""
_DRAW = 48
"""Bytes from which a coefficient is drawn; its distribution differs from the uniform one by 2^-128."""


def split(secret: bytes, threshold: int, count: int, seed: bytes) -> list[bytes]:
    """Return the shares of the places 1 to `count`.

    Args:
        secret: 32 bytes.
        threshold: The number of shares that give the secret.
        count: The number of shares.
        seed: 32 random bytes that determine the polynomial. They serve one secret only.

    Example:
        >>> import os
        >>> secret = os.urandom(32)
        >>> shares = split(secret, 2, 3, os.urandom(32))
        >>> combine({1: shares[0], 3: shares[2]}, 2) == secret
        True
    """
    if len(secret) != SECRET or not 1 <= threshold <= count:
        raise ValueError(f"Cannot split {len(secret)} bytes into {count} shares of which {threshold} suffice")
    stream = hashlib.shake_256(b"fedmos shamir" + seed).digest(_DRAW * (threshold - 1))
    drawn = [stream[k : k + _DRAW] for k in range(0, len(stream), _DRAW)]
    coefficients = [int.from_bytes(v, "big") for v in (secret, *drawn)]
    return [_evaluate(coefficients, x).to_bytes(SHARE, "big") for x in range(1, count + 1)]


def combine(shares: Mapping[int, bytes], threshold: int) -> bytes:
    """Return the secret from shares by place.

    Raises:
        ValueError: If there are fewer than `threshold`, or they are not the shares of a secret.
    """
    if len(shares) < threshold:
        raise ValueError(f"Cannot combine {len(shares)} shares because {threshold} are needed")
    places = sorted(shares)[:threshold]
    total = sum(factor * int.from_bytes(shares[x], "big") for x, factor in zip(places, at_zero(places), strict=True))
    if total % PRIME >= 2**256:
        raise ValueError("Cannot combine the shares because they are not those of one secret")
    return (total % PRIME).to_bytes(SECRET, "big")


def at_zero(places: Sequence[int]) -> list[int]:
    """Return the factors of Lagrange's interpolation at 0: f(0) = Σ factor · f(place) modulo the prime."""
    factors = []
    for x in places:
        above = below = 1
        for other in places:
            if other != x:
                above, below = above * other % PRIME, below * (other - x) % PRIME
        factors.append(above * pow(below, -1, PRIME) % PRIME)
    return factors


def _evaluate(coefficients: Sequence[int], x: int) -> int:
    """Return the value of the polynomial, by Horner's rule."""
    value = 0
    for coefficient in reversed(coefficients):
        value = (value * x + coefficient) % PRIME
    return value
