"""Composition of an algorithm with codecs: what clients upload and receive is encoded and decoded.

The uploads of a client are replaced, where its local training ends, by what the server decodes of them. Everything
after that (sums, rows, reports, checks) uses these numbers. What the server sends is the coded difference to what the
client holds; both sides keep that as state of the client.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from ..algorithm import Algorithm, ClientContext, Field, Gradient, Vectors
from ..core.composition import is_pair_of_dicts, recast, subclass
from ..core.declared_fields import names_of
from .bytes import to_bytes
from .codec import Codec, Fields
from .links import CodedVector, Link, check_hashable, coded_vectors, link_key
from .own import check_decoded, check_encoded

RESIDUAL = "codec."
"""The names of residuals of error feedback, which are client state, begin with this."""
ON_WIRE = "wire."
"""The names of encoded uploads, as bytes, begin with this at the client of a deployment."""
HELD = "held."
"""The names of what a client holds of the server's vectors, which is client state, begin with this."""


class Coding(NamedTuple):
    """The vectors of a run that are coded."""

    up: tuple[CodedVector, ...] = ()
    down: tuple[CodedVector, ...] = ()


def with_codecs(algorithm: Algorithm, uplink: Link | None, downlink: Link | None) -> Algorithm:
    """Return the algorithm with coded messages.

    The result has the class name and the fields of the algorithm, and also declares the residuals of error feedback and
    what clients hold. Without codecs, the algorithm is returned unchanged.

    Args:
        algorithm: The algorithm.
        uplink: The codecs of uploads.
        downlink: The codecs of what the server sends.

    Raises:
        ValueError: If a codec is given for something that is no vector of the model's size, or cannot be used there.
    """
    check_hashable("uplink", uplink)
    check_hashable("downlink", downlink)
    coding = Coding(coded_vectors(algorithm, "uplink", uplink), coded_vectors(algorithm, "downlink", downlink))
    if coding == Coding():
        return algorithm
    return recast(algorithm, _coded_class(type(algorithm), coding))  # type: ignore[arg-type]  # a class is hashable


def at_client(algorithm: Algorithm, size: int, dtype: torch.dtype) -> Algorithm:
    """Return a coded algorithm as the client of a deployment runs it.

    The client decodes what it receives before its methods are called, and returns each coded upload twice: as the
    server decodes it, and as bytes, with `ON_WIRE` before its name.

    Args:
        algorithm: The algorithm, composed with codecs or not.
        size: The number of parameters of the model.
        dtype: The dtype of the model.
    """
    if not isinstance(algorithm, _Coded):
        return algorithm
    lengths = tuple((v.name, Codec.nbytes(v.codec, size, dtype)) for v in algorithm._codec_coding.up)
    return recast(algorithm, _remote_class(type(algorithm), lengths))  # type: ignore[arg-type]  # a class is hashable


def coding_of(algorithm: Algorithm) -> Coding:
    """Return the vectors of an algorithm that are coded; none if it is composed with no codec."""
    return algorithm._codec_coding if isinstance(algorithm, _Coded) else Coding()


def receive(
    algorithm: Algorithm, x: Tensor, msg: Vectors, own: Vectors, last: Tensor, key: Callable[[], Tensor]
) -> tuple[Tensor, Vectors]:
    """Return the model and the message as clients decode them.

    Args:
        algorithm: The algorithm, composed with codecs or not.
        x: The server's model, (D,), or (M, D) for merged runs.
        msg: The tensors that are sent with it.
        own: The clients' state.
        last: The round that each client last took part in, −1 for never: (1,) or (M, 1).
        key: Returns the clients' random streams in this round.
    """
    if isinstance(algorithm, _Remote) or not coding_of(algorithm).down:
        return x, msg
    sent = {"x": x} | msg
    for name, codec, _ in coding_of(algorithm).down:
        if name in sent:
            held, stream = own[HELD + name], link_key(key(), "down", name)
            fields = codec.encode(change := sent[name] - held, stream)
            check_encoded(codec, fields, change)
            sent[name] = torch.where(last < 0, sent[name], decode_onto(codec, fields, held, stream))
    return sent.pop("x"), sent


def decode_onto(codec: Codec, fields: Fields, held: Tensor, key: Tensor) -> Tensor:
    """Return what clients hold after they received the fields of the difference to it."""
    change = codec.decode(fields, held.shape[-1], key)
    check_decoded(codec, change, held)
    return held + change.to(held.dtype)


class _Sent(NamedTuple):
    """What clients send in a phase."""

    decoded: Vectors
    """The uploads as the server decodes them."""
    residuals: Vectors
    """The new residuals of error feedback."""
    on_wire: Vectors
    """At the client of a deployment, the bytes."""


@cache
def _coded_class(kind: type[Algorithm], coding: Coding) -> type[Algorithm]:
    """Return a subclass of `kind` with these codecs: one for all runs that have them, so that runs can merge."""
    return subclass(kind, _Coded, _codec_coding=coding, _codec_base=kind)


class _Coded(Algorithm):
    """The methods and declarations in which an algorithm with coded messages differs from the algorithm alone."""

    _codec_coding: ClassVar[Coding]
    _codec_base: ClassVar[type[Algorithm]]
    """The class of the algorithm alone."""

    @property
    def client_state(self) -> Sequence[Field]:
        coding = self._codec_coding
        residuals = [RESIDUAL + vector.name for vector in coding.up if vector.feedback]
        held = [HELD + vector.name for vector in coding.down]
        return (*self._codec_alone().client_state, *residuals, *held)

    def prepare(self, c: ClientContext, grad: Gradient) -> Vectors:
        uploads = super().prepare(c, grad)
        if not isinstance(uploads, dict):
            return uploads  # the engine refuses it
        sent = self._codec_send("prepare", uploads, c)
        return sent.decoded | sent.on_wire

    def finish(self, y: Tensor, s: Vectors, c: ClientContext, grad: Gradient) -> tuple[Vectors, Vectors]:
        finished: Any = super().finish(y, s, c, grad)
        if not is_pair_of_dicts(finished):
            return finished  # type: ignore[no-any-return]  # the engine refuses it
        held = {HELD + name: c.x if name == "x" else c.msg[name] for name, _, _ in self._codec_coding.down}
        uploads, own = finished
        if not self._codec_coding.up:
            return uploads, own | held
        sent = self._codec_send("train", uploads, c)
        delivered: Any = self.delivered(sent.decoded, own, c)
        if not is_pair_of_dicts(delivered):
            raise ValueError(
                f"{type(self).__name__}: 'delivered' must return uploads and state, two dictionaries of tensors"
            )
        coded = {vector.name: sent.decoded[vector.name] for vector in self._codec_coding.up if vector.name in uploads}
        return delivered[0] | coded | sent.on_wire, own | delivered[1] | sent.residuals | held

    def _codec_send(self, phase: str, uploads: Vectors, c: ClientContext) -> _Sent:
        """Encode the uploads of a phase, and decode them as the server does."""
        sent = _Sent(dict(uploads), {}, {})
        for name, codec, feedback in self._codec_coding.up:
            v = _rows(uploads, name, c)
            if v is None:
                continue
            feedback = feedback and phase == "train"
            v = v + c.own[RESIDUAL + name] if feedback else v
            key = link_key(c.key, phase, name)
            fields = codec.encode(v, key)
            check_encoded(codec, fields, v)
            decoded = codec.decode(fields, v.shape[-1], key)
            check_decoded(codec, decoded, v)
            decoded = decoded.to(v.dtype)
            if feedback:
                sent.residuals[RESIDUAL + name] = v - decoded
            sent.decoded[name] = decoded
            sent.on_wire.update(self._codec_wire(name, codec, fields, v))
        return sent

    def _codec_wire(self, name: str, codec: Codec, fields: Fields, v: Tensor) -> Vectors:
        """Return an encoded upload where it is sent."""
        return {}

    def _codec_alone(self) -> Algorithm:
        """Return the algorithm alone. Its declarations may depend on each other."""
        return recast(self, self._codec_base)


@cache
def _remote_class(kind: type[Algorithm], lengths: tuple[tuple[str, int], ...]) -> type[Algorithm]:
    return subclass(kind, _Remote, _codec_lengths=dict(lengths), _codec_local=kind)


class _Remote(_Coded):
    """A coded algorithm at the client of a deployment; see `at_client`."""

    _codec_lengths: ClassVar[dict[str, int]]
    """By coded upload, its bytes."""
    _codec_local: ClassVar[type[Algorithm]]
    """The class of the algorithm in a simulation."""

    @property
    def up(self) -> Sequence[Field]:
        return self._codec_with_bytes(recast(self, self._codec_local).up)

    @property
    def prepare_up(self) -> Sequence[Field]:
        return self._codec_with_bytes(recast(self, self._codec_local).prepare_up)

    def _codec_with_bytes(self, declared: Sequence[Field]) -> Sequence[Field]:
        names = names_of(declared)
        return (*declared, *((ON_WIRE + name, n) for name, n in self._codec_lengths.items() if name in names))

    def _codec_wire(self, name: str, codec: Codec, fields: Fields, v: Tensor) -> Vectors:
        # As numbers of the dtype of the run, which uploads have in the engine.
        return {ON_WIRE + name: to_bytes(codec, fields, v.shape[-1]).to(v.dtype)}


def _rows(uploads: Vectors, name: str, c: ClientContext) -> Tensor | None:
    """Return an upload with a row for each client, (D,) or (M, D); None if it is missing or of another shape."""
    v, shape = uploads.get(name), (*c.K.shape[:-1], c.layers.size)
    if not isinstance(v, Tensor) or v.shape not in (shape, shape[-1:], (1, shape[-1])):
        return None  # the engine refuses it
    return v.expand(shape).to(c.K.dtype)
