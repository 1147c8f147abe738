"""Several codecs, one after another."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from .. import rng
from ..core.formatting import format_value
from .codec import Codec, Declaration, Fields
from .field_checks import check_fields, check_lengths
from .own import adopted, is_like_codec
from .streams import column


@dataclass(frozen=True)
class Chain(Codec):
    """Several codecs from left to right: each encodes the numbers that the one before would send.

    A list stands for a chain wherever a codec is expected. The fields of codec i are named "i.name", and its key is
    `key ^ rng.salt(i)`.

    Args:
        codecs: The codecs. All but the last must send numbers: `TopK`, `RandomK`, `Rotate`, or your own with `payload`.

    Raises:
        ValueError: If there are none, or one of them cannot stand where it does.

    Example:
        >>> codec = fm.codecs.Chain([fm.codecs.TopK(0.01), fm.codecs.Quantize(4)])
        >>> codec.declare(10_000)
        {'0.indices': (torch.uint8, 175), '1.codes': (torch.uint8, 50), '1.scales': (torch.float32, 1)}
        >>> codec.nbytes(10_000)
        229
    """

    codecs: Sequence[Codec]

    def __post_init__(self) -> None:
        codecs = self.codecs
        if not isinstance(codecs, list | tuple) or not codecs or not all(map(_is_one, codecs)):
            raise ValueError(f"Chain: 'codecs' must be a list of one or more codecs, got {format_value(codecs)}")
        own = [adopted(codec, Codec) for codec in codecs]
        flat = tuple(one for c in own for one in (c.codecs if isinstance(c, Chain) else (c,)))
        object.__setattr__(self, "codecs", flat)
        if len(flat) > 1 and any(codec.feedback for codec in flat):
            raise ValueError(
                "Cannot use ErrorFeedback within a chain because its residual is that of the whole vector; "
                "use ErrorFeedback([...]) around the chain"
            )
        for codec, following in pairwise(flat):
            if codec.payload is None:
                first, second = type(codec).__name__, type(following).__name__
                raise ValueError(
                    f"Cannot use {second} after {first} because {first} leaves no numbers to encode; use {first} last"
                )

    @property
    def unbiased(self) -> bool:
        return all(codec.unbiased for codec in self.codecs)

    def contractive(self) -> Codec:
        return Chain([codec.contractive() for codec in self.codecs])

    def declare(self, size: int) -> Declaration:
        fields: Declaration = {}
        for i, (codec, length) in enumerate(self._stages(size)):
            fields |= {f"{i}.{name}": v for name, v in codec.declare(length).items() if self._sends(i, name)}
        return fields

    def encode(self, v: Tensor, key: Tensor | int) -> Fields:
        key = column(key, v.shape[:-1], v.device)
        sent: Fields = {}
        for i, codec in enumerate(self.codecs):
            fields = codec.encode(v, key ^ rng.salt(i))
            sent |= {f"{i}.{name}": field for name, field in fields.items() if self._sends(i, name)}
            if codec.payload is not None:
                v = fields[codec.payload]
        return sent

    def decode(self, fields: Mapping[str, Tensor], size: int, key: Tensor | int) -> Tensor:
        check_lengths(type(self).__name__, self.declare(size), fields)
        any_field = next(iter(fields.values()))
        key, v = column(key, any_field.shape[:-1], any_field.device), None
        for i, (codec, length) in reversed(list(enumerate(self._stages(size)))):
            own = self._own(fields, i)
            if v is not None and codec.payload is not None:
                own[codec.payload] = v
            v = codec.decode(own, length, key ^ rng.salt(i))
        assert v is not None
        return v

    def check(self, fields: Mapping[str, Tensor], size: int, *, finite: bool = True) -> None:
        check_fields(type(self).__name__, self.declare(size), fields, finite)
        for i, (codec, length) in enumerate(self._stages(size)):
            own = self._own(fields, i)
            if i + 1 < len(self.codecs) and codec.payload is not None:  # sent by the next codec, which is checked too
                rows = next(iter(fields.values())).shape[:-1]
                own[codec.payload] = torch.zeros(*rows, codec.declare(length)[codec.payload][1])
            codec.check(own, length, finite=finite)

    def _stages(self, size: int) -> list[tuple[Codec, int]]:
        """Return every codec with the size of the vectors that it encodes."""
        stages = []
        for codec in self.codecs:
            stages.append((codec, size))
            if codec.payload is not None:
                size = codec.declare(size)[codec.payload][1]
        return stages

    def _sends(self, i: int, name: str) -> bool:
        """Whether a field is sent, and not encoded by the next codec."""
        return i + 1 == len(self.codecs) or name != self.codecs[i].payload

    @staticmethod
    def _own(fields: Mapping[str, Tensor], i: int) -> Fields:
        prefix = f"{i}."
        return {name.removeprefix(prefix): v for name, v in fields.items() if name.startswith(prefix)}


def is_codec(v: object) -> bool:
    """Whether a value is a codec, or a list of one or more."""
    if isinstance(v, list | tuple):
        return len(v) > 0 and all(map(_is_one, v))
    return _is_one(v)


def _is_one(v: object) -> bool:
    return isinstance(v, Codec) or is_like_codec(v)


def as_codec(v: Any) -> Codec:
    """Return a codec, or the chain of a list of codecs.

    Raises:
        ValueError: If it is neither, or the codecs cannot follow each other.
    """
    if _is_one(v):
        return adopted(v, Codec)
    if isinstance(v, list | tuple) and len(v) == 1 and _is_one(v[0]):
        return adopted(v[0], Codec)
    return Chain(v)
