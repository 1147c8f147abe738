"""Secure aggregation at a client of a deployment: the answers to the requests of a session."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from flwr.app import RecordDict
from torch import Tensor

from ..algorithm import Algorithm, Vectors
from ..core.formatting import format_value
from ..engine.declaration import Declaration
from ..engine.job import Phase
from ..engine.secure_sums import SecureRule, SecureSums, summed_vectors
from ..privacy.distributed import distributed_noise
from ..secure import masks, sizes
from ..secure.client import ClientSession, Member, Secrets
from . import wire
from .client_folder import RUN_ID, ClientFolder
from .client_guard import ClientGuard
from .request_journal import Question
from .session_folder import SessionFolder

_MAX_MEMBERS = 10_000


class DistributedPart(NamedTuple):
    """What a client insists on where the noise of a sum is made of the clients' noise."""

    least: int
    """The least number of clients whose uploads are summed."""
    admit_release: Callable[[Mapping[str, Any], str], None]
    """Refuses to reveal a second sum of a phase of a round; see `ClientGuard.admit_release`."""


def distributed_part(algorithm: Algorithm, guard: ClientGuard) -> DistributedPart | None:
    """Return what a client insists on with this algorithm; None without distributed noise."""
    noise = distributed_noise(algorithm)
    return None if noise is None else DistributedPart(noise.least, guard.admit_release)


class SecureClient:
    """Answers the requests of secure aggregation.

    Args:
        rule: How the sums of the client's algorithm become sums of integers, by the client's own configuration.
        client: The client's number.
        folder: The client's folder in the run.
        distributed: What the client insists on under distributed privacy; None without it.
    """

    def __init__(
        self, rule: SecureRule, client: int, folder: ClientFolder, distributed: DistributedPart | None = None
    ) -> None:
        self._rule, self._client, self._folder, self._distributed = rule, client, folder, distributed

    def keys(
        self, header: Mapping[str, Any], declaration: Declaration, phase: Phase, uploads: Vectors, asked: Question
    ) -> Vectors:
        """Begin a session after local training: keep the integers of the uploads, and return the public keys.

        The masks of a session hide one upload only, so its integers are never replaced.

        Raises:
            wire.RefusedError: If the session has begun with a different request, or has ended.
        """
        sums = _sums(header, declaration, phase)
        if self._distributed is not None:
            self._check_equal_parts(header, sums)
        session = self._session(header)
        session.begin()
        told = {"asked": list(asked), "steps": list(header["steps"]), "factors": list(header["factors"])}
        session.decide("request", told)
        if session.has("answer"):
            raise wire.RefusedError("its session has ended")
        if not session.has("secrets"):
            self._keep(header, sums, phase, uploads)
        return {"keys": _tensor(self._client_session(header, threshold=1).keys())}

    def _keep(self, header: Mapping[str, Any], sums: SecureSums, phase: Phase, uploads: Vectors) -> None:
        """Store the integers of the uploads, and new secrets that hide them."""
        factors = {
            key: torch.tensor([f], dtype=torch.float64) for key, f in zip(sums.vectors, header["factors"], strict=True)
        }
        integers = sums.encode({name: v[None] for name, v in uploads.items()}, factors)
        layout = {key: [math.prod(shape), sums.bits[key]] for key, shape in sums.shapes.items()}
        self._folder.save_upload(header["round"], {key: integers[key].reshape(-1).cpu() for key in layout})
        new = {name: v.hex() for name, v in Secrets.new()._asdict().items()}
        self._session(header).first("secrets", new | {"layout": layout, "phase": phase})

    def answer(self, kind: str, header: Mapping[str, Any], content: RecordDict) -> Vectors:
        """Answer a later request of a session.

        Raises:
            wire.RefusedError: If it is not one that the protocol allows.
        """
        chosen = _numbers(header["members"])
        try:
            if kind == wire.SHARES:
                return {"sealed": _tensor(self._shares(header, chosen, content))}
            if kind == wire.MASKED:
                return {name: _tensor(v) for name, v in self._masked(header, chosen, content).items()}
            return {"shares": _tensor(self._unmask(header, chosen, content))}
        except wire.RefusedError:
            raise
        except ValueError as error:
            raise wire.RefusedError(str(error)) from None

    def _shares(self, header: Mapping[str, Any], chosen: Sequence[int], content: RecordDict) -> bytes:
        data = _bytes(content, "keys", len(chosen) * sizes.KEYS)
        self._session(header).decide("members", {"ids": list(chosen), "keys": data.hex()})
        members = self._members(header)
        return self._client_session(header, self._threshold(members)).shares(members)

    def _masked(self, header: Mapping[str, Any], chosen: Sequence[int], content: RecordDict) -> dict[str, bytes]:
        sealed = _bytes(content, "sealed", (len(chosen) - 1) * sizes.SEALED)
        session, members = self._session(header), self._members(header)
        session.decide("sharing", {"ids": list(chosen), "sealed": sealed.hex()})
        layout = {key: masks.RingVector(*pair) for key, pair in session.read("secrets")["layout"].items()}
        like = {key: torch.empty(vector.size, dtype=torch.int64) for key, vector in layout.items()}
        values = {key: v.numpy() for key, v in self._folder.load_upload(header["round"], like).items()}
        return self._client_session(header, self._threshold(members)).masked(members, chosen, values, layout)

    def _unmask(self, header: Mapping[str, Any], chosen: Sequence[int], content: RecordDict) -> bytes:
        wire.vectors_in(content, {}, torch.uint8)
        session = self._session(header)
        session.decide("uploaded", {"ids": list(chosen)})
        if not session.has("answer"):
            self._check_release(header, session, len(chosen))
            members, sharing = self._members(header), session.read("sharing")
            client = self._client_session(header, self._threshold(members))
            answer = client.unmask(members, sharing["ids"], bytes.fromhex(sharing["sealed"]), chosen)
            session.first("answer", {"shares": answer.hex()})
            session.remove("secrets")
            self._folder.drop_upload()
        return bytes.fromhex(session.read("answer")["shares"])

    def _check_equal_parts(self, header: Mapping[str, Any], sums: SecureSums) -> None:
        """Refuse weights that would single out a client, and other units than those of the noise."""
        steps = dict(self._rule.steps)
        expected = [steps[vector.upload] for vector in sums.vectors.values()]
        if list(header["factors"]) != [1.0] * len(expected) or list(header["steps"]) != expected:
            raise wire.RefusedError("with distributed noise, all clients have the factor 1 and the units of the noise")

    def _check_release(self, header: Mapping[str, Any], session: SessionFolder, uploads: int) -> None:
        """Refuse to reveal a sum with too little noise, or a second sum of the same upload."""
        if self._distributed is None:
            return
        if uploads < self._distributed.least:
            raise wire.RefusedError(
                f"the sum is over {uploads} clients, and the noise is that of {self._distributed.least} at least"
            )
        self._distributed.admit_release(header, session.read("secrets")["phase"])

    def _session(self, header: Mapping[str, Any]) -> SessionFolder:
        if not RUN_ID.fullmatch(header["session"]):
            raise wire.RefusedError(f"there is no session {format_value(header['session'])}")
        return SessionFolder(self._folder.path, header["session"])

    def _client_session(self, header: Mapping[str, Any], threshold: int) -> ClientSession:
        stored = self._session(header).read("secrets")
        secrets = Secrets(*(bytes.fromhex(stored[name]) for name in Secrets._fields))
        return ClientSession(secrets, context(header), self._client, threshold)

    def _members(self, header: Mapping[str, Any]) -> dict[int, Member]:
        stored = self._session(header).read("members")
        data = bytes.fromhex(stored["keys"])
        return {i: Member.parse(data[k * sizes.KEYS : (k + 1) * sizes.KEYS]) for k, i in enumerate(stored["ids"])}

    def _threshold(self, members: Mapping[int, Member]) -> int:
        return self._rule.option.needed(len(members))


def context(header: Mapping[str, Any]) -> str:
    """Return what the keys of a session are derived with."""
    return f"{header['run']}/{header['round']}/{header['session']}"


def _sums(header: Mapping[str, Any], declaration: Declaration, phase: Phase) -> SecureSums:
    """Return the sums of a phase with the steps that the server chose."""
    keys = list(summed_vectors(declaration, phase))
    for field in ("steps", "factors"):
        values = header[field]
        if len(values) != len(keys) or not all(type(v) is float and math.isfinite(v) for v in values):
            raise wire.RefusedError(f"'{field}' in its header must be {len(keys)} numbers, got {format_value(values)}")
    if any(step <= 0 for step in header["steps"]):
        raise wire.RefusedError(f"'steps' in its header must be > 0, got {format_value(header['steps'])}")
    return SecureSums(declaration, phase, dict(zip(keys, header["steps"], strict=True)))


def _numbers(text: str) -> list[int]:
    """Return the clients that a header names."""
    parts = text.split(",")
    if len(parts) > _MAX_MEMBERS or not all(part.isascii() and part.isdigit() and len(part) < 10 for part in parts):
        raise wire.RefusedError(f"'members' in its header must be numbers of clients, got {format_value(text)}")
    return [int(part) for part in parts]


def _tensor(data: bytes) -> Tensor:
    return torch.from_numpy(np.frombuffer(data, dtype=np.uint8).copy())


def _bytes(content: RecordDict, name: str, size: int) -> bytes:
    received = wire.vectors_in(content, {name: (size,)}, torch.uint8)
    data: bytes = received[name].numpy().tobytes()
    return data
