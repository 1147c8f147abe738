"""Bytes on the wire, from what an algorithm and a selector declare."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from ..aggregation.ring import Ring
from ..aggregation.secure import NUMBER_BITS
from ..codecs.compose import Coding, coding_of
from ..codecs.links import CodedVector
from ..codecs.own import counted_bytes
from ..secure.sizes import sent_down, sent_up
from .declaration import Declaration, Shapes
from .job import Phase
from .secure_sums import secure_rule, summed_vectors


class ProtocolBytes(NamedTuple):
    """Bytes of one client in a round that are not of vectors or numbers: keys and shares of secure aggregation."""

    down: int
    up: int


@dataclass(frozen=True)
class Wire:
    """The sizes of messages in bytes."""

    declaration: Declaration
    dtype: torch.dtype

    @property
    def number(self) -> int:
        """Bytes of one number."""
        return self.dtype.itemsize

    @property
    def vector(self) -> int:
        """Bytes of the model or of a gradient."""
        return self.declaration.layers.size * self.number

    @property
    def down(self) -> int:
        """Bytes that a client of the cohort receives. With an extra phase, x is sent there and not again."""
        return self._bytes(self.declaration.down, self._coding.down)

    def received(self, last: Tensor) -> Tensor:
        """Return the bytes that clients of the cohort receive, (M,).

        Args:
            last: The round that each client last took part in, −1 for never: such a client gets vectors as they are.
        """
        if not self._coding.down:
            return torch.full_like(last, self.down)
        return torch.where(last < 0, self._bytes(self.declaration.down, ()), self.down)

    @property
    def reuses_x(self) -> bool:
        """Whether a client that was probed at x is not sent it again; with a codec, it gets the difference anyway."""
        return self.sends_x and all(v.name != "x" for v in self._coding.down)

    @property
    def sends_x(self) -> bool:
        """Whether clients of the cohort receive x."""
        return "x" in self.declaration.down

    def up(self, t: int, reports: int) -> int:
        """Return the bytes that a client sends in round t: its uploads, those of the extra phase, and its reports."""
        return self._uploads("train") + self.prepared(t) + reports * self.number

    def prepared(self, t: int) -> int:
        """Return the bytes that a client sends in the extra phase of round t, if it has one."""
        return self._uploads("prepare") if self.declaration.algorithm.prepares(t) else 0

    def protocol(self, t: int, clients: int) -> ProtocolBytes:
        """Return the bytes that secure aggregation adds for each of so many clients of round t; zero without it."""
        if secure_rule(self.declaration.algorithm) is None or not clients:
            return ProtocolBytes(0, 0)
        phases = 2 if self.declaration.algorithm.prepares(t) else 1
        return ProtocolBytes(phases * sent_down(clients), phases * sent_up(clients))

    def _uploads(self, phase: Phase) -> int:
        if (secure := secure_rule(self.declaration.algorithm)) is not None:
            vectors = summed_vectors(self.declaration, phase).values()
            count = 0 if secure.private or not vectors else Ring(NUMBER_BITS).nbytes
            return count + sum(math.prod(v.shape) * Ring(v.bits).nbytes for v in vectors)
        return self._bytes(self.declaration.up(phase), self._coding.up)

    @property
    def _coding(self) -> Coding:
        return coding_of(self.declaration.algorithm)

    def _bytes(self, shapes: Shapes, coded: Iterable[CodedVector]) -> int:
        codecs = {vector.name: vector.codec for vector in coded}
        return sum(
            counted_bytes(codecs[name], self.declaration.layers.size, self.dtype)
            if name in codecs
            else math.prod(shape) * self.number
            for name, shape in shapes.items()
        )
