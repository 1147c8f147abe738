"""Numbers as integers modulo 2^bits, whose sums are exact in any order.

A number u of a client with the factor f becomes the integer q = round(f · clamp(u, −bound, bound) / step). Integers are
int64 tensors. Their sum in int64, which wraps modulo 2^64, has the right remainder modulo 2^bits. The step is chosen
such that no sum of a cohort leaves the range of signed integers of so many bits, so the sum that is decoded is the sum
of the integers.
"""

from __future__ import annotations

import sys
from typing import NamedTuple

import torch
from torch import Tensor

MAX_BITS = 48
"""More would exceed the precision of float64, in which numbers are scaled."""


class Ring(NamedTuple):
    """The integers modulo 2^bits.

    Example:
        >>> ring = Ring(8)
        >>> ring.signed(torch.tensor([250]) + torch.tensor([10]))
        tensor([4])
    """

    bits: int

    @property
    def nbytes(self) -> int:
        """Bytes of one element in a message."""
        return -(self.bits // -8)

    def reduced(self, v: Tensor) -> Tensor:
        """Return the elements as integers from 0 to 2^bits − 1."""
        return v & ((1 << self.bits) - 1)

    def signed(self, v: Tensor) -> Tensor:
        """Return the elements as integers from −2^(bits − 1) to 2^(bits − 1) − 1."""
        half = 1 << (self.bits - 1)
        return self.reduced(v + half) - half


class Quantizer(NamedTuple):
    """The encoding of numbers as elements of a ring.

    Example:
        >>> quantizer = Quantizer.of(16, bound=1.0, total=1.0, clients=2)
        >>> q = quantizer.encode(torch.tensor([[0.5, -3.0], [0.25, 0.0]]), torch.tensor([0.5, 0.5]))
        >>> quantizer.decode(q.sum(0))
        tensor([ 0.3750, -0.5000], dtype=torch.float64)
    """

    ring: Ring
    bound: float
    """The largest absolute value of a number; larger ones are clamped."""
    step: float
    """The difference of numbers whose integers differ by one."""
    toward_zero: bool = False
    """Whether numbers are rounded toward zero, so that no norm grows; otherwise to the nearest integer."""

    @classmethod
    def of(cls, bits: int, *, bound: float, total: float, clients: int, toward_zero: bool = False) -> Quantizer:
        """Return the finest encoding with which the sum of a cohort cannot overflow.

        Args:
            bits: The bits of the ring.
            bound: The largest absolute value of a number.
            total: The sum of the absolute factors of all clients, or more.
            clients: The number of clients of the cohort, or more.
            toward_zero: Whether to round toward zero.

        Raises:
            ValueError: If the ring is too small for so many clients.
        """
        levels = (1 << (bits - 1)) - 2 - -(clients // -2)  # less what rounding adds
        if levels < clients:
            raise ValueError(f"Cannot sum {clients} clients in {bits} bits; use a larger 'bits', or a smaller cohort")
        # A step that underflows to zero would have no multiples.
        step = max(bound * total / levels, sys.float_info.min) if total > 0 else 1.0
        return cls(Ring(bits), bound, step, toward_zero)

    def encode(self, rows: Tensor, factors: Tensor) -> Tensor:
        """Return the integers of factor · number.

        Args:
            rows: A row of numbers for each client, (M, …).
            factors: The factors of the clients, (M,), float64.

        Returns:
            (M, …), int64, on the device of the rows.
        """
        ratios = (factors.to(torch.float64) / self.step).to(rows.device).view(-1, *[1] * (rows.ndim - 1))
        scaled = rows.to(torch.float64).clamp(-self.bound, self.bound) * ratios
        return (scaled.trunc() if self.toward_zero else scaled.round()).to(torch.int64)

    def saturated(self, rows: Tensor) -> Tensor:
        """Return how many numbers exceed the bound: a 0-dimensional tensor, int64."""
        return (rows.abs() > self.bound).sum()

    def decode(self, total: Tensor) -> Tensor:
        """Return the sum of the numbers from the sum of their integers, in float64."""
        return self.ring.signed(total).to(torch.float64) * self.step
