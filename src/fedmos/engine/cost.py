"""Bytes on the wire, from what an algorithm and a selector declare."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from .declaration import Declaration, Shapes


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
        return self._bytes(self.declaration.down)

    @property
    def sends_x(self) -> bool:
        """Whether clients of the cohort receive x."""
        return "x" in self.declaration.down

    def up(self, t: int, reports: int) -> int:
        """Return the bytes that a client sends in round t: its uploads, those of the extra phase, and its reports."""
        return self._bytes(self.declaration.up("train")) + self.prepared(t) + reports * self.number

    def prepared(self, t: int) -> int:
        """Return the bytes that a client sends in the extra phase of round t, if it has one."""
        return self._bytes(self.declaration.up("prepare")) if self.declaration.algorithm.prepares(t) else 0

    def _bytes(self, shapes: Shapes) -> int:
        return sum(math.prod(shape) for shape in shapes.values()) * self.number
