"""The options `uplink` and `downlink`: which vectors are coded, and how."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import MISSING, fields
from typing import Any, Literal, NamedTuple

from torch import Tensor

from .. import rng
from ..algorithm import Algorithm, Field
from ..core.declared_fields import name_and_shape, names_of
from ..core.formatting import format_value
from ..core.validation import suggest
from .chain import as_codec, is_codec
from .codec import Codec
from .error_feedback import ErrorFeedback
from .own import adopted

Codecs = Codec | Sequence[Codec]
"""A codec, or several from left to right."""
Link = Codecs | Mapping[str, Codecs]
"""The codecs of all vectors, or by name."""

Direction = Literal["uplink", "downlink"]

_OPTIMIZERS = "local."
"""The state of local optimisers that the server averages, which is coded only where it is named."""


def is_link(v: object) -> bool:
    """Whether a value is a codec, a list of one or more, or a mapping of names to those."""
    if isinstance(v, Mapping):
        return len(v) > 0 and all(isinstance(name, str) and is_codec(one) for name, one in v.items())
    return is_codec(v)


def convert_link(v: Link) -> Link:
    """Return the link with tuples in place of lists, and codecs in place of objects like codecs."""
    if isinstance(v, Mapping):
        return {name: _converted(one) for name, one in v.items()}
    return _converted(v)


def _converted(v: Codecs) -> Codecs:
    return tuple(adopted(one, Codec) for one in v) if isinstance(v, Sequence) else adopted(v, Codec)


def record_link(v: Link | None) -> Any:
    """Return the link as JSON to read."""
    if isinstance(v, Mapping):
        return {name: record_link(one) for name, one in v.items()}
    return [short(one) for one in v] if isinstance(v, Sequence) else None if v is None else short(v)


def short(codec: Any) -> str:
    """Return the codec as users write it, without fields that have their default."""
    if isinstance(codec, tuple | list):
        return f"[{', '.join(map(short, codec))}]"
    if not isinstance(codec, Codec):
        return repr(codec)
    declared = {f.name: f.default for f in fields(codec)}  # a class that is no dataclass has attributes beyond these
    names = dict.fromkeys([*declared, *vars(codec)])
    values = [(name, getattr(codec, name), declared.get(name, MISSING)) for name in names if name != "used"]
    given = ", ".join(f"{name}={short(value)}" for name, value, default in values if value != default)
    return f"{type(codec).__name__}({given})"


def describe_link(v: Link | None) -> str:
    """Return the link as the user wrote it, for errors."""
    if isinstance(v, Mapping):
        return "{" + ", ".join(f"{name!r}: {describe_link(one)}" for name, one in v.items()) + "}"
    return short(v)


class CodedVector(NamedTuple):
    """A vector that is sent with a codec."""

    name: str
    codec: Codec
    feedback: bool = False
    """Whether the client keeps a residual."""


def coded_vectors(algorithm: Algorithm, direction: Direction, link: Link | None) -> tuple[CodedVector, ...]:
    """Return the vectors that are coded.

    Raises:
        ValueError: If a name is unknown or is no vector of the model's size, or a codec cannot be used there.
    """
    if link is None:
        return ()
    vectors, others = _vectors(algorithm, direction)
    explicit = isinstance(link, Mapping)
    if isinstance(link, Mapping):
        for name in link:
            _check_name(algorithm, direction, name, vectors, others)
        found = {name: as_codec(codecs) for name, codecs in link.items()}
    else:
        found = dict.fromkeys([name for name in vectors if not name.startswith(_OPTIMIZERS)], as_codec(link))
    return tuple(_coded_vector(algorithm, direction, name, codec, explicit) for name, codec in found.items())


def _coded_vector(algorithm: Algorithm, direction: Direction, name: str, codec: Codec, explicit: bool) -> CodedVector:
    _check_feedback(algorithm, direction, name, codec, explicit)
    if direction == "downlink" or name in algorithm.tracked:
        # Differences to what the other side holds converge only if each message brings both closer.
        return CodedVector(name, codec.contractive())
    if isinstance(codec, ErrorFeedback) and name not in names_of(algorithm.up):
        return CodedVector(name, as_codec(codec.codec))  # in the extra phase: unbiased if the codec is
    return CodedVector(name, codec, codec.feedback)


def link_key(key: Tensor, place: str, name: str) -> Tensor:
    """Return the stream of a coded vector, known to client and server, of the shape of `key`.

    Args:
        key: The client's stream in this round: 0-dimensional, or (M,).
        place: "down", or the phase of an upload.
        name: The name of the vector.
    """
    number = int.from_bytes(hashlib.sha256(f"{place}/{name}".encode()).digest()[:7], "little")
    return rng.fold(key, number)


def _vectors(algorithm: Algorithm, direction: Direction) -> tuple[list[str], list[str]]:
    """Return the names of the vectors of the model's size, and of all other tensors, that are sent this way."""
    if direction == "uplink":
        declared, matrices = (*algorithm.up, *algorithm.prepare_up), set()
    else:
        declared = tuple(algorithm.down)
        # The name of server state has the shape that is declared there.
        matrices = set(names_of(f for f in algorithm.server_state if not _is_vector(f)))
    vectors = [name for name in names_of(filter(_is_vector, declared)) if name not in matrices]
    return list(dict.fromkeys(vectors)), [name for name in names_of(declared) if name not in vectors]


def _is_vector(field: Field) -> bool:
    shape: object = name_and_shape(field)[1]
    return shape == ("D",)


def _check_name(
    algorithm: Algorithm, direction: Direction, name: str, vectors: Iterable[str], others: Iterable[str]
) -> None:
    owner, verb = type(algorithm).__name__, "uploads" if direction == "uplink" else "sends to clients"
    if name in others:
        raise ValueError(
            f"Cannot use {direction}= for {name!r} of {owner} because it is no vector of the model's size; leave it "
            "out, as it is sent without a codec"
        )
    if name not in vectors:
        known = ", ".join(vectors) or "none"
        raise ValueError(
            f"run: '{direction}' must name vectors that {owner} {verb} ({known}), got {format_value(name)}"
            f"{suggest(name, vectors)}"
        )


def _check_feedback(algorithm: Algorithm, direction: Direction, name: str, codec: Codec, explicit: bool) -> None:
    """Refuse error feedback where there is nothing to feed back to."""
    if not codec.feedback:
        return
    owner = type(algorithm).__name__
    if direction == "downlink":
        raise ValueError(
            f"Cannot use downlink={short(codec)} because clients are sent the difference to what they hold, which "
            "contains what earlier messages lost; use the codec without ErrorFeedback"
        )
    if explicit and name in names_of(algorithm.prepare_up) and name not in names_of(algorithm.up):
        raise ValueError(
            f"Cannot use error feedback for {name!r} of {owner} because clients keep no state in the extra phase; use "
            "the codec without ErrorFeedback"
        )
    if explicit and name in algorithm.tracked:
        raise ValueError(
            f"Cannot use error feedback for {name!r} of {owner} because it is a client's state or the change of one, "
            "and the next one contains what is lost of this one; use the codec without ErrorFeedback"
        )


def check_hashable(direction: Direction, link: Link | None) -> None:
    """Refuse codecs whose fields may change during the run."""
    try:
        hash(tuple(link.items()) if isinstance(link, Mapping) else link)
    except TypeError:
        raise ValueError(
            f"Cannot use {direction}={describe_link(link)} because its fields may change during the run; use "
            "@dataclass(frozen=True) with fields that are hashable"
        ) from None
