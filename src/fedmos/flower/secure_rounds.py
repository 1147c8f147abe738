"""Secure aggregation at the server of a deployment: the requests of a session, and the sum that it decodes."""

from __future__ import annotations

import logging
import secrets
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from ..aggregation.ring import Ring
from ..algorithm import Vectors
from ..engine.secure_sums import SecureSums
from ..secure import masks, sizes
from ..secure.server import ServerSession, TooFewClients
from . import wire

_log = logging.getLogger("fedmos")


class SecureRequest(NamedTuple):
    """What one client is sent in a session, and the bytes that its reply must have."""

    header: Mapping[str, Any]
    vectors: Vectors
    expected: Mapping[str, int]


Exchange = Callable[[str, Mapping[int, SecureRequest]], dict[int, Vectors]]
"""Sends requests of a kind; returns the replies of those clients that answer."""


class SecureRound:
    """One session with a cohort.

    Args:
        sums: The sums of the phase.
        run: The run's id.
        t: The round.
        exchange: Sends requests and returns replies.
    """

    def __init__(self, sums: SecureSums, run: str, t: int, exchange: Exchange) -> None:
        self.session = secrets.token_hex(16)
        self._sums, self._context, self._exchange = sums, f"{run}/{t}/{self.session}", exchange
        self._layout = {key: masks.ring_vector(shape, sums.bits[key]) for key, shape in sums.shapes.items()}

    def header(self, factors: Mapping[str, Tensor], place: int) -> dict[str, Any]:
        """Return the additional fields of the request that begins the session.

        Args:
            factors: By vector, the factors of the clients of the cohort.
            place: The place of the client in the cohort.
        """
        return {
            "session": self.session,
            "steps": [self._sums.quantizers[key].step for key in self._sums.vectors],
            "factors": [float(factors[key][place]) for key in self._sums.vectors],
        }

    def total(self, keys: Mapping[int, Vectors], threshold: int, needed: int) -> tuple[list[int], Vectors] | None:
        """Return the clients that uploaded and the sums of their integers; None if too few stay to decode it.

        Args:
            keys: The replies of the clients that trained.
            threshold: The number of clients whose shares give a secret.
            needed: The number of uploads without which the sum is not decoded.
        """
        try:
            session = ServerSession(
                {i: _bytes(v["keys"]) for i, v in keys.items()},
                context=self._context,
                layout=self._layout,
                threshold=threshold,
                needed=needed,
            )
            found = self._unmasked(session)
        except (TooFewClients, ValueError) as error:
            _log.warning("Secure aggregation of a round is abandoned: %s", error)
            return None
        shapes, bits = self._sums.shapes, self._sums.bits
        integers = {key: Ring(bits[key]).signed(torch.from_numpy(v)) for key, v in found.items()}
        return session.uploaded, {key: v.view(shapes[key]) for key, v in integers.items()}

    def _unmasked(self, session: ServerSession) -> dict[str, masks.Integers]:
        """Play the session."""
        n = len(session.members)
        header, public = self._header(session.members), {"keys": _tensor(session.keys)}
        request = SecureRequest(header, public, {"sealed": (n - 1) * sizes.SEALED})
        replies = self._exchange(wire.SHARES, dict.fromkeys(session.members, request))
        session.add_shares({i: _bytes(v["sealed"]) for i, v in replies.items()})
        header, lengths = self._header(session.sharing), {key: v.nbytes for key, v in self._layout.items()}
        uploads = self._exchange(
            wire.MASKED,
            {i: SecureRequest(header, {"sealed": _tensor(session.sealed_for(i))}, lengths) for i in session.sharing},
        )
        session.add_uploads({i: {key: _bytes(v[key]) for key in lengths} for i, v in uploads.items()})
        request = SecureRequest(self._header(session.uploaded), {}, {"shares": len(session.sharing) * sizes.SHARE})
        shares = self._exchange(wire.UNMASK, dict.fromkeys(session.uploaded, request))
        return session.unmask({i: _bytes(v["shares"]) for i, v in shares.items()})

    def _header(self, clients: Any) -> dict[str, Any]:
        return {"session": self.session, "members": ",".join(map(str, clients))}


def _tensor(data: bytes) -> Tensor:
    return torch.from_numpy(np.frombuffer(data, dtype=np.uint8).copy())


def _bytes(v: Tensor) -> bytes:
    data: bytes = v.numpy().tobytes()
    return data
