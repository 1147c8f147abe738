"""The bytes that secure aggregation adds to the messages of a phase, in a cohort of n clients without dropouts."""

from __future__ import annotations

KEYS = 64
"""Two public keys of 32 bytes: for masks and for the encryption of shares."""
SHARE = 33
"""A share of a secret of 32 bytes."""
SEALED = 2 * SHARE + 16
"""The encrypted shares of two secrets, with an authentication tag."""


def sent_up(n: int) -> int:
    """Return the bytes that a client sends: its keys, a pair of shares for each other client, and n shares at last."""
    return KEYS + (n - 1) * SEALED + n * SHARE


def sent_down(n: int) -> int:
    """Return the bytes that a client receives: all keys, and the shares that the others have for it."""
    return n * KEYS + (n - 1) * SEALED
