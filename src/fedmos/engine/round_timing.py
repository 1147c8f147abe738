"""How long a round takes on the simulated clock, and who is too late for it."""

from __future__ import annotations

from collections import defaultdict
from typing import NamedTuple

import torch
from torch import Tensor

from .cost import Wire
from .job import Phase
from .sampling import SampledCohort
from .simulated_clock import Clock


class Traffic(NamedTuple):
    """Bytes per client of a round."""

    down: int
    up: int
    wire: Wire


class Timing:
    """The clients of one round; without a clock everyone is in time."""

    def __init__(
        self, clock: Clock | None, choice: SampledCohort, traffic: Traffic | None, losses: Tensor | None
    ) -> None:
        """`losses`: how many samples each client of the federation evaluates for what it reports; None for none."""
        self._clock, self._choice, self._traffic, self._losses = clock, choice, traffic, losses
        self._samples: dict[int, int] = defaultdict(int)
        self._seconds: list[Tensor] = []
        self.late: list[int] = []

    @property
    def clocked(self) -> bool:
        return self._clock is not None

    def admits(self, phase: Phase, ids: Tensor, samples: Tensor) -> Tensor:
        """(M,): who is done with a phase, in which each computed gradients of so many samples, before the deadline."""
        if self._clock is None or phase == "prepare":
            return torch.ones(len(ids), dtype=torch.bool)
        return ~self._clock.late(self._needed(ids, samples))

    def record(self, phase: Phase, ids: Tensor, samples: Tensor) -> None:
        """Remember what clients did in a phase."""
        if self._clock is None:
            return
        if phase == "prepare":
            for i, n in zip(ids.tolist(), samples.tolist(), strict=True):
                self._samples[i] += n
            return
        seconds = self._needed(ids, samples)
        self._seconds.append(seconds)
        self.late += ids[self._clock.late(seconds)].tolist()

    def _needed(self, ids: Tensor, samples: Tensor) -> Tensor:
        """Seconds from a client's receiving x to its sending an update."""
        assert self._clock is not None
        assert self._traffic is not None
        before = torch.tensor([self._samples[i] for i in ids.tolist()], dtype=torch.float64)
        down = self._traffic.down - self._traffic.wire.vector * torch.isin(ids, self._choice.holding)
        losses = torch.zeros_like(ids) if self._losses is None else self._losses[ids]
        return self._clock.seconds(ids, down, self._traffic.up, before + samples, losses)

    def seconds(self) -> Tensor | None:
        """What each client of the cohort needed."""
        return torch.cat(self._seconds) if self._seconds else None

    def duration(self) -> float:
        """How long the round lasts: first those asked answer, then the cohort works."""
        if self._clock is None or self._traffic is None:
            return 0.0
        seconds, wire = self.seconds(), self._traffic.wire
        total = 0.0 if seconds is None else self._clock.duration(seconds)
        for question in self._choice.asked:
            up = wire.vector if question.gradients else wire.number
            none = torch.zeros_like(question.samples)
            work = (question.samples, none) if question.gradients else (none, question.samples)
            total += float(self._clock.seconds(question.ids, wire.vector * question.first, up, *work).max())
        return total
