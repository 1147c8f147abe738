"""Codecs whose effect on a trajectory is known in closed form."""

from __future__ import annotations

from dataclasses import dataclass

import fedmos as fm
from helpers.conformance import EACH


@dataclass(frozen=True)
class Scaled(fm.codecs.Codec):
    """Decodes factor · v. With a power of two, in exact arithmetic."""

    factor: float = 0.5

    def declare(self, size):
        return {"values": ("float", size)}

    def encode(self, v, key):
        return {"values": self.factor * v}

    def decode(self, fields, size, key):
        return fields["values"]


LOSSLESS = Scaled(1.0)
HALF = Scaled(0.5)

SOME = [
    case
    for case in EACH
    if case.name in ("FedAvg", "Scaffold", "FedCM", "Mime", "Stem", "FedNova", "FedSMOO", "FedACG")
]
"""Algorithms with every kind of upload and download."""
