"""Coded vectors in messages: the bytes that travel, and what both sides make of them."""

from __future__ import annotations

from collections.abc import Container, Mapping

import torch
from torch import Tensor

from ..algorithm import Algorithm, Vectors
from ..codecs.bytes import from_bytes, to_bytes
from ..codecs.codec import Codec, Fields
from ..codecs.compose import HELD, ON_WIRE, coding_of, decode_onto
from ..codecs.links import link_key
from ..core.flat_model import FlatModel
from ..engine.client_store import ClientStore
from ..engine.job import Phase
from ..rng import Purpose, stream
from . import wire


class CodedMessages:
    """The coded vectors of one algorithm: which they are, their bytes, and their random streams."""

    def __init__(self, algorithm: Algorithm, model: FlatModel, seed: int) -> None:
        coding = coding_of(algorithm)
        self.up: dict[str, Codec] = {vector.name: vector.codec for vector in coding.up}
        self.down: dict[str, Codec] = {vector.name: vector.codec for vector in coding.down}
        self._model, self._seed = model, seed

    def shapes(self, shapes: wire.Shapes, codecs: Mapping[str, Codec]) -> wire.Shapes:
        """Return the shapes of what travels: coded vectors as bytes."""
        size, dtype = self._model.size, self._model.dtype
        return {n: (Codec.nbytes(codecs[n], size, dtype),) if n in codecs else shape for n, shape in shapes.items()}

    def uploads(self, received: Vectors, t: int, client: int, phase: Phase) -> Vectors:
        """Decode the uploads of a client.

        Raises:
            wire.RefusedError: If the bytes are not those of an encoded vector.
        """
        found = dict(received)
        for name, codec in self.up.items():
            if name in received:
                fields, key = self._fields(name, codec, received[name]), self.key(t, client, phase, name)
                found[name] = codec.decode(fields, self._model.size, key).to(self._model.dtype)
        return found

    def downloads(self, received: Vectors, held: Vectors, t: int, client: int) -> Vectors:
        """Decode what a client receives, given what it holds; vectors that are not bytes are whole."""
        found = dict(received)
        for name, codec in self.down.items():
            if name in received and received[name].dtype == torch.uint8:
                fields, key = self._fields(name, codec, received[name]), self.key(t, client, "down", name)
                found[name] = decode_onto(codec, fields, held[HELD + name].cpu(), key)
        return found

    def key(self, t: int, client: int, place: str, name: str) -> Tensor:
        """Return the random stream of a coded vector."""
        return link_key(stream(self._seed, t, client, Purpose.ALGORITHM), place, name)

    def _fields(self, name: str, codec: Codec, data: Tensor) -> Fields:
        fields = from_bytes(codec, data, self._model.size, self._model.dtype)
        try:
            codec.check(fields, self._model.size)
        except ValueError as error:
            raise wire.RefusedError(f"'{name}' is not encoded properly: {error}") from None
        return fields


class HeldVectors:
    """What clients hold of the server's vectors, as the server knows it."""

    def __init__(self, coded: CodedMessages, clients: ClientStore) -> None:
        self._coded, self._clients = coded, clients
        self._received: dict[int, Vectors] = {}

    def enter_round(self) -> None:
        """Forget what was sent in the round before; if it was committed, `clients` has it."""
        self._received = {}

    def keep(self, clients: Container[int]) -> None:
        """Forget what was sent to all other clients, where rounds have no common beginning."""
        self._received = {i: received for i, received in self._received.items() if i in clients}

    def message(self, vectors: Vectors, t: int, client: int) -> Vectors:
        """Return the tensors to send: bytes of the difference to what the client holds; the whole to a new client."""
        own = {name: v[0] for name, v in self._clients.read(torch.tensor([client])).items()}
        sent, received = {}, self._received.setdefault(client, {})
        for name, v in vectors.items():
            codec, held = self._coded.down.get(name), own.get(HELD + name)
            if codec is None or held is None or int(self._clients.last[client]) < 0:
                sent[name] = received[name] = v
                continue
            key = self._coded.key(t, client, "down", name).to(v.device)
            fields = codec.encode(v - held, key)
            sent[name] = to_bytes(codec, fields, v.shape[-1])
            received[name] = decode_onto(codec, fields, held, key)
        return sent

    def states(self, ids: Tensor) -> Vectors:
        """Return what these clients hold after this round."""
        return {
            HELD + n: torch.stack([self._received[i][n] for i in ids.tolist()]) for n in self._coded.down if len(ids)
        }


def as_sent(uploads: Vectors) -> Vectors:
    """Return the uploads of `codecs.compose.at_client` as they are sent: coded ones as bytes."""
    coded = {name.removeprefix(ON_WIRE): v for name, v in uploads.items() if name.startswith(ON_WIRE)}
    return {
        name: coded[name].to(torch.uint8) if name in coded else v
        for name, v in uploads.items()
        if not name.startswith(ON_WIRE)
    }
