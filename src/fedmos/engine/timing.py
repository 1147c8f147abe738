"""How long a round takes on the simulated clock, and who is too late for it."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from ..cost import Wire
from ..system import Clock
from .choosing import Choice


class Traffic(NamedTuple):
    """Bytes per client of a round."""

    down: int
    up: int
    wire: Wire


class Timing:
    """The clients of one round; without a clock everyone is in time."""

    def __init__(self, clock: Clock | None, choice: Choice, traffic: Traffic, losses: Tensor) -> None:
        """`losses`: how many samples each client of the federation evaluates for what it reports."""
        self._clock, self._choice, self._traffic, self._losses = clock, choice, traffic, losses
        self._samples = dict.fromkeys(choice.cohort.ids.tolist(), 0)
        self._seconds: list[Tensor] = []
        self.late: list[int] = []

    def note(self, ids: Tensor, samples: Callable[[], Tensor]) -> Tensor:
        """Remember the gradients of an earlier phase; everyone counts."""
        if self._clock is not None:
            for i, n in zip(ids.tolist(), samples().tolist(), strict=True):
                self._samples[i] += n
        return torch.ones(len(ids), dtype=torch.bool)

    def in_time(self, ids: Tensor, samples: Callable[[], Tensor]) -> Tensor:
        """Who is done before the deadline."""
        everyone = self.note(ids, samples)
        if self._clock is None:
            return everyone
        gradients = torch.tensor([self._samples[i] for i in ids.tolist()], dtype=torch.float64)
        down = self._traffic.down - self._traffic.wire.vector * torch.isin(ids, self._choice.holding)
        seconds = self._clock.seconds(ids, down, self._traffic.up, gradients, self._losses[ids])
        late = self._clock.late(seconds)
        self._seconds.append(seconds)
        self.late += ids[late].tolist()
        return ~late

    def seconds(self) -> Tensor | None:
        """What each client of the cohort needed."""
        return torch.cat(self._seconds) if self._seconds else None

    def duration(self) -> float:
        """How long the round lasts: first those asked answer, then the cohort works."""
        if self._clock is None:
            return 0.0
        seconds, wire = self.seconds(), self._traffic.wire
        total = 0.0 if seconds is None else self._clock.duration(seconds)
        for question in self._choice.asked:
            up = wire.vector if question.gradients else wire.number
            none = torch.zeros_like(question.samples)
            work = (question.samples, none) if question.gradients else (none, question.samples)
            total += float(self._clock.seconds(question.ids, wire.vector * question.first, up, *work).max())
        return total
