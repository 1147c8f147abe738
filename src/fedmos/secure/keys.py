"""Keys of one session: agreement by X25519, derivation by HKDF-SHA256, encryption by ChaCha20-Poly1305.

Every derived key has one purpose: its derivation contains the context (run, round, session) and the clients.
"""

from __future__ import annotations

import hashlib

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from .sizes import SECRET

_NONCE = bytes(12)
"""Keys of `seal` encrypt one message each."""


def public_key(private: bytes) -> bytes:
    """Return the public key of a private key."""
    return X25519PrivateKey.from_private_bytes(private).public_key().public_bytes_raw()


def mask_seed(private: bytes, public: bytes, context: str, one: int, other: int) -> bytes:
    """Return the seed of the mask that two clients share."""
    low, high = sorted((one, other))
    return _derived(_agreed(private, public), f"mask/{context}/{low}/{high}")


def own_mask_seed(secret: bytes, context: str, client: int) -> bytes:
    """Return the seed of the mask of a client alone."""
    return _derived(secret, f"own/{context}/{client}")


def commitment(secret: bytes, context: str) -> bytes:
    """Return a hash by which a secret is recognised."""
    return hashlib.sha256(f"fedmos/commitment/{context}/".encode() + secret).digest()


def seal(plain: bytes, private: bytes, public: bytes, context: str, sender: int, receiver: int) -> bytes:
    """Encrypt what one client sends another through the server, once."""
    key = _derived(_agreed(private, public), f"seal/{context}/{sender}/{receiver}")
    return ChaCha20Poly1305(key).encrypt(_NONCE, plain, None)


def unseal(sealed: bytes, private: bytes, public: bytes, context: str, sender: int, receiver: int) -> bytes:
    """Decrypt what another client sent.

    Raises:
        ValueError: If it was changed, or is for another client or session.
    """
    key = _derived(_agreed(private, public), f"seal/{context}/{sender}/{receiver}")
    try:
        return ChaCha20Poly1305(key).decrypt(_NONCE, sealed, None)
    except InvalidTag:
        raise ValueError(f"Cannot decrypt the shares of client {sender} because they were changed") from None


def _agreed(private: bytes, public: bytes) -> bytes:
    return X25519PrivateKey.from_private_bytes(private).exchange(X25519PublicKey.from_public_bytes(public))


def _derived(secret: bytes, purpose: str) -> bytes:
    return HKDF(hashes.SHA256(), SECRET, None, f"fedmos/{purpose}".encode()).derive(secret)
