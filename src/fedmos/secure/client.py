"""The client's part of secure aggregation: keys, shares, the masked upload, and what unmasks the sum.

The parts of a session are functions of its secrets and of what the server sends, so a repeated request gets the same
reply. The caller stores what each part was given the first time, and refuses other values later: two replies to
different requests could reveal an upload.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from . import keys, masks, shamir
from .sizes import KEYS, SEALED, SECRET, SHARE


class Secrets(NamedTuple):
    """The secrets of one session. They are never used in another."""

    mask: bytes
    """The private key of the masks that two clients share."""
    seal: bytes
    """The private key of the encryption of shares."""
    own: bytes
    """The seed of the client's own mask."""
    polynomials: bytes
    """The seed of the polynomials whose values are the shares."""

    @classmethod
    def new(cls) -> Secrets:
        """Return new secrets from the operating system's generator."""
        return cls(*(os.urandom(SECRET) for _ in cls._fields))


class Member(NamedTuple):
    """The public keys of a client in a session."""

    mask: bytes
    seal: bytes
    commitment: bytes

    @classmethod
    def parse(cls, data: bytes) -> Member:
        """Read the keys that a client sent."""
        if len(data) != KEYS:
            raise ValueError(f"The keys of a client must have {KEYS} bytes, got {len(data)}")
        return cls(*(data[k : k + SECRET] for k in range(0, KEYS, SECRET)))


class ClientSession(NamedTuple):
    """One client in one session."""

    secrets: Secrets
    context: str
    """Run, round and number of the session, which is of one phase."""
    client: int
    threshold: int
    """The number of shares that give a secret."""

    def keys(self) -> bytes:
        """Return what other clients and the server must know: part 1."""
        return b"".join(
            (
                keys.public_key(self.secrets.mask),
                keys.public_key(self.secrets.seal),
                keys.commitment(self.secrets.own, self.context),
            )
        )

    def shares(self, members: Mapping[int, Member]) -> bytes:
        """Return the encrypted shares of this client's secrets for all other members, in their order: part 2."""
        self._check(list(members), members)
        if b"".join(members[self.client]) != self.keys():
            raise ValueError("Cannot share secrets because the server names other keys of this client")
        if len({member.mask for member in members.values()}) < len(members):
            raise ValueError("Cannot share secrets because two clients have the same key")
        pairs = self._split(len(members))
        return b"".join(
            keys.seal(pairs[place], self.secrets.seal, members[i].seal, self.context, self.client, i)
            for place, i in enumerate(members)
            if i != self.client
        )

    def masked(
        self,
        members: Mapping[int, Member],
        sharing: Sequence[int],
        values: Mapping[str, masks.Integers],
        layout: masks.Layout,
    ) -> dict[str, bytes]:
        """Return the upload with the masks of all members that sent shares: part 3."""
        self._check(sharing, members)
        sums = {name: np.array(v, dtype=np.int64).reshape(-1) for name, v in values.items()}
        masks.add_mask(sums, layout, keys.own_mask_seed(self.secrets.own, self.context, self.client), 1)
        for i in sharing:
            if i != self.client:
                seed = keys.mask_seed(self.secrets.mask, members[i].mask, self.context, self.client, i)
                masks.add_mask(sums, layout, seed, 1 if self.client < i else -1)
        return {name: masks.to_bytes(sums[name], vector) for name, vector in layout.items()}

    def unmask(
        self, members: Mapping[int, Member], sharing: Sequence[int], sealed: bytes, uploaded: Sequence[int]
    ) -> bytes:
        """Return a share for each member that sent shares: part 4.

        It is a share of the seed of the own mask for a member that uploaded, and of the private key of masks for one
        that did not. For no member both.

        Args:
            members: All members of the session.
            sharing: Those that sent shares.
            sealed: What they sent for this client.
            uploaded: Those of them that uploaded.
        """
        self._check(uploaded, dict.fromkeys(sharing))
        others = [i for i in sharing if i != self.client]
        if len(sealed) != len(others) * SEALED:
            raise ValueError(f"The shares of {len(others)} clients must have {len(others) * SEALED} bytes")
        pairs = {self.client: self._split(len(members))[list(members).index(self.client)]}
        for k, i in enumerate(others):
            part = sealed[k * SEALED : (k + 1) * SEALED]
            pairs[i] = keys.unseal(part, self.secrets.seal, members[i].seal, self.context, i, self.client)
        return b"".join(pairs[i][:SHARE] if i in uploaded else pairs[i][SHARE:] for i in sharing)

    def _split(self, count: int) -> list[bytes]:
        """Return the shares of both secrets for each place."""
        given = ((self.secrets.own, b"own"), (self.secrets.mask, b"mask"))
        parts = [shamir.split(v, self.threshold, count, self.secrets.polynomials + use) for v, use in given]
        return [own + mask for own, mask in zip(*parts, strict=True)]

    def _check(self, chosen: Sequence[int], known: Mapping[int, object]) -> None:
        """Refuse members that are unknown, too few, or do not include this client."""
        if list(chosen) != sorted(set(chosen)) or not set(chosen) <= set(known):
            raise ValueError("The clients of a request must be members of the session, in ascending order")
        if self.client not in chosen:
            raise ValueError("Cannot take part because the server has left this client out")
        if len(chosen) < self.threshold:
            raise ValueError(f"Cannot take part with {len(chosen)} clients because {self.threshold} are needed")
