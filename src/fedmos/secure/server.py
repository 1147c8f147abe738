"""The server's part of secure aggregation: it passes keys and shares on, adds masked uploads, and unmasks the sum."""

from __future__ import annotations

from collections.abc import Mapping

from . import keys, masks, shamir
from .client import Member
from .sizes import SEALED, SHARE


class TooFewClients(Exception):
    """Fewer clients are left than the session needs; the sum cannot be, and must not be, decoded."""

    def __init__(self, left: int, needed: int, part: str) -> None:
        super().__init__(f"{left} clients {part}, and {needed} are needed")


class ServerSession:
    """One session, from the keys of its members to their sum. The parts are called in the order below."""

    def __init__(
        self, sent_keys: Mapping[int, bytes], *, context: str, layout: masks.Layout, threshold: int, needed: int
    ) -> None:
        """Begin with the keys that clients sent.

        Args:
            sent_keys: By client.
            context: Run, round and number of the session, which is of one phase.
            layout: The vectors of an upload.
            threshold: The number of shares that give a secret.
            needed: The number of uploads without which the sum is not decoded.

        Raises:
            TooFewClients: In this and all other parts.
        """
        self.members = {i: Member.parse(sent_keys[i]) for i in sorted(sent_keys)}
        self.threshold, self._needed = threshold, max(threshold, needed)
        self._context, self._layout = context, layout
        self._require(len(self.members), "sent keys")
        self._sealed: dict[int, dict[int, bytes]] = {}
        """By sender and receiver."""
        self.uploaded: list[int] = []
        self._sums = masks.zeros(layout)

    @property
    def keys(self) -> bytes:
        """The keys of all members in their order, for each of them."""
        return b"".join(b"".join(member) for member in self.members.values())

    def add_shares(self, received: Mapping[int, bytes]) -> None:
        """Take the encrypted shares that members send for each other."""
        for sender in sorted(received):
            others = [i for i in self.members if i != sender]
            data = received[sender]
            self._sealed[sender] = {i: data[k * SEALED : (k + 1) * SEALED] for k, i in enumerate(others)}
        self._require(len(self._sealed), "sent shares")

    @property
    def sharing(self) -> list[int]:
        """The members that sent shares, whose masks the uploads have."""
        return list(self._sealed)

    def sealed_for(self, client: int) -> bytes:
        """Return the shares that the others sent for a client, in the order of `sharing`."""
        return b"".join(self._sealed[sender][client] for sender in self.sharing if sender != client)

    def add_uploads(self, received: Mapping[int, Mapping[str, bytes]]) -> None:
        """Add masked uploads."""
        for client in sorted(received):
            masks.add_bytes(self._sums, self._layout, received[client])
            self.uploaded.append(client)
        self._require(len(self.uploaded), "uploaded")

    def unmask(self, received: Mapping[int, bytes]) -> dict[str, masks.Integers]:
        """Return the sums of the uploads, from the shares that members sent at last.

        Raises:
            ValueError: If the shares are not those of the members' secrets.
        """
        if len(received) < self.threshold:
            raise TooFewClients(len(received), self.threshold, "sent the shares that unmask the sum")
        places = {i: place for place, i in enumerate(self.members, start=1)}
        for k, client in enumerate(self.sharing):
            shares = {places[i]: v[k * SHARE : (k + 1) * SHARE] for i, v in received.items()}
            secret = shamir.combine(shares, self.threshold)
            if client in self.uploaded:
                self._remove_own_mask(client, secret)
            else:
                self._remove_shared_masks(client, secret)
        return self._sums

    def _remove_own_mask(self, client: int, secret: bytes) -> None:
        if keys.commitment(secret, self._context) != self.members[client].commitment:
            raise ValueError(f"Cannot unmask the sum because shares of client {client} are wrong")
        masks.add_mask(self._sums, self._layout, keys.own_mask_seed(secret, self._context, client), -1)

    def _remove_shared_masks(self, gone: int, private: bytes) -> None:
        """Remove the masks that those who uploaded share with a client that did not."""
        if keys.public_key(private) != self.members[gone].mask:
            raise ValueError(f"Cannot unmask the sum because shares of client {gone} are wrong")
        for i in self.uploaded:
            seed = keys.mask_seed(private, self.members[i].mask, self._context, i, gone)
            masks.add_mask(self._sums, self._layout, seed, -1 if i < gone else 1)

    def _require(self, left: int, part: str) -> None:
        if left < self._needed:
            raise TooFewClients(left, self._needed, part)
