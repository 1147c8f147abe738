"""The bytes that secure aggregation adds to the messages of a phase, in a cohort of n clients without dropouts."""

from __future__ import annotations

SECRET = 32
"""A private key, or a seed."""
KEYS = 3 * SECRET
"""Two public keys, for masks and for the encryption of shares, and the hash of the seed of a client's own mask."""
SHARE = SECRET + 1
"""A share of a secret."""
SEALED = 2 * SHARE + 16
"""The encrypted shares of two secrets, with an authentication tag."""


def sent_up(n: int) -> int:
    """Return the bytes that a client sends: its keys, a pair of shares for each other client, and n shares at last."""
    return KEYS + (n - 1) * SEALED + n * SHARE


def sent_down(n: int) -> int:
    """Return the bytes that a client receives: all keys, and the shares that the others have for it."""
    return n * KEYS + (n - 1) * SEALED
