"""Codecs that make one mistake each, with a part of the sentence that names it."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import torch

from fedmos import codecs

CALLS = itertools.count()


@dataclass(frozen=True)
class Plain(codecs.Codec):
    """Sends the vector in float32."""

    def declare(self, size):
        return {"values": (torch.float32, size)}

    def encode(self, v, key):
        return {"values": v.float()}

    def decode(self, fields, size, key):
        return fields["values"]


class NoDeclaration(Plain):
    def declare(self, size):
        return {"values": torch.float32}


class NamedBadly(Plain):
    def declare(self, size):
        return {"the values": (torch.float32, size)}


class NoSuchPayload(Plain):
    payload = "numbers"


class FewerBytes(Plain):
    def nbytes(self, size, dtype=torch.float32):
        return size


class OtherFields(Plain):
    def encode(self, v, key):
        return {"value": v.float()}


class OtherDtype(Plain):
    def encode(self, v, key):
        return {"values": v.double()}


class OtherLength(Plain):
    def encode(self, v, key):
        return {"values": v.float()[..., :5]}


class OtherSize(Plain):
    def decode(self, fields, size, key):
        return fields["values"][..., :5]


class GlobalNoise(Plain):
    def encode(self, v, key):
        return {"values": (v + 0.01 * torch.randn(v.shape)).float()}


class WritesVector(Plain):
    def encode(self, v, key):
        return {"values": v.mul_(2).float()}


class WritesFields(Plain):
    def decode(self, fields, size, key):
        return fields["values"].mul_(2)


class KeepsLast(Plain):
    def encode(self, v, key):
        object.__setattr__(self, "last", v.float())
        return {"values": v.float()}


class Varies(Plain):
    def encode(self, v, key):
        return {"values": v.float() + next(CALLS)}


class WholeCohort(Plain):
    def encode(self, v, key):
        return {"values": v.float() / v.float().abs().max().clamp(min=1e-9)}


class WholeCohortDecoded(Plain):
    def decode(self, fields, size, key):
        return fields["values"] + fields["values"].mean()


class HidesNaN(Plain):
    def encode(self, v, key):
        return {"values": v.float().nan_to_num()}


class NotUnbiased(Plain):
    unbiased = True

    def decode(self, fields, size, key):
        return 0.9 * fields["values"]


class RefusesItself(Plain):
    def check(self, fields, size, *, finite=True):
        super().check(fields, size - 1, finite=finite)


class NeedsTwo(Plain):
    def encode(self, v, key):
        return {"values": v.float() + 0 * v[..., 1:2].float().expand(v.shape)}


class Doubles(Plain):
    """A codec for `ErrorFeedback` that is no contraction."""

    def decode(self, fields, size, key):
        return 2.5 * fields["values"]


MISTAKES: dict[type[Plain], str] = {
    NoDeclaration: "NoDeclaration: 'declare' must return {name: (dtype, number of entries)}",
    NamedBadly: "NamedBadly: 'declare' must return {name: (dtype, number of entries)} with names of letters",
    NoSuchPayload: "NoSuchPayload: 'payload' must name a field that is declared as \"float\", got 'numbers'",
    FewerBytes: "FewerBytes: 'nbytes' must return the 4 bytes that are declared for 1 numbers, got 1",
    OtherFields: "OtherFields: 'encode' must return the declared fields values, got ['value']",
    OtherDtype: "OtherDtype: 'encode' must return 'values' as declared, torch.float32 of shape (1,)",
    OtherLength: "OtherLength: 'encode' must return 'values' as declared, torch.float32 of shape (7,)",
    OtherSize: "OtherSize: 'decode' must return floating-point numbers of shape (7,), got torch.float32 of shape (5,)",
    GlobalNoise: "GlobalNoise: 'encode' must not draw from PyTorch's global generator",
    WritesVector: "WritesVector: 'encode' must not change v in place",
    WritesFields: "WritesFields: 'decode' must not change fields['values'] in place",
    KeepsLast: "KeepsLast: 'encode' must not keep values on self, got a new 'self.last'; a codec has no state",
    Varies: "Varies: 'encode' must return the same for the same arguments",
    WholeCohort: "WholeCohort: 'encode' must return for a row of a cohort what it returns for the vector alone",
    WholeCohortDecoded: "WholeCohortDecoded: 'decode' must return for a row of a cohort what it returns for",
    HidesNaN: "HidesNaN: 'decode' must not hide a NaN or an infinity of the vector",
    NotUnbiased: "NotUnbiased: 'unbiased' must be False because the mean of decoded vectors differs from the vector",
    RefusesItself: "RefusesItself: 'check' must accept what 'encode' returns, but raises: RefusesItself: 'values' must",
    NeedsTwo: "NeedsTwo: 'encode' raises RuntimeError",
}
