"""The duration of a round on the simulated clock, and the clients that miss its deadline."""

from __future__ import annotations

from collections import defaultdict
from typing import NamedTuple

import torch
from torch import Tensor

from .cohort import SampledCohort
from .cost import Wire
from .job import Phase
from .simulated_clock import Clock


class Traffic(NamedTuple):
    """Bytes per client of a round."""

    down: Tensor
    """By client of the federation."""
    up: int
    report: int
    """Bytes up of a client that the selector does not ask for its upload."""
    wire: Wire


class RoundTiming:
    """The times of one round's clients; without a clock, every client is in time."""

    def __init__(
        self, clock: Clock | None, sampled: SampledCohort, traffic: Traffic | None, evaluated: Tensor | None, t: int = 0
    ) -> None:
        """`evaluated`: by client of the federation, the samples it evaluates for its reports; None for none."""
        self._clock, self._sampled, self._traffic, self._evaluated = clock, sampled, traffic, evaluated
        self._t = t
        self._prepared: dict[int, int] = defaultdict(int)
        """By client, the per-sample gradients of the extra phase."""
        self._seconds: list[Tensor] = []
        self.late: list[int] = []

    @property
    def clocked(self) -> bool:
        """Whether there is a simulated clock."""
        return self._clock is not None

    def in_time(self, phase: Phase, ids: Tensor, samples: Tensor) -> Tensor | None:
        """Return which clients finish before the deadline, (M,); None without a clock.

        Args:
            phase: The phase. Only the training phase has a deadline.
            ids: The clients.
            samples: The number of per-sample gradients that each client computed in the phase.
        """
        if self._clock is None:
            return None
        if phase == "prepare":
            return torch.ones(len(ids), dtype=torch.bool)
        return ~(self._clock.late(self._needed(ids, samples)) | self._clock.lost(self._t, ids))

    def record(self, phase: Phase, ids: Tensor, samples: Tensor, uploads: Tensor | None = None) -> None:
        """Record the work of clients in a phase. `uploads`: which of them upload, (M,); None for all.

        A client is late if its upload would be, whether or not the selector keeps it. The selector's choice takes no
        time.
        """
        if self._clock is None:
            return
        if phase == "prepare":
            for i, n in zip(ids.tolist(), samples.tolist(), strict=True):
                self._prepared[i] += n
            return
        seconds = self._needed(ids, samples)
        lost, deadline = self._clock.lost(self._t, ids), self._clock.system.deadline
        if deadline is not None:
            seconds = torch.where(lost, seconds.clamp(min=deadline), seconds)
        late = self._clock.late(seconds) | lost
        self.late += ids[late].tolist()
        if uploads is not None:
            seconds = torch.where(uploads | late, seconds, self._needed(ids, samples, upload=False))
        self._seconds.append(seconds)

    def _needed(self, ids: Tensor, samples: Tensor, upload: bool = True) -> Tensor:
        """Return the seconds from receiving x to sending the update, or the reports alone, for each client."""
        assert self._clock is not None
        assert self._traffic is not None
        before = torch.tensor([self._prepared[i] for i in ids.tolist()], dtype=torch.float64)
        wire = self._traffic.wire
        again = torch.isin(ids, self._sampled.has_model) & wire.reuses_x
        down = self._traffic.down[ids] - wire.vector * again
        evaluated = torch.zeros_like(ids) if self._evaluated is None else self._evaluated[ids]
        up = self._traffic.up if upload else self._traffic.report
        return self._clock.seconds(ids, down, up, before + samples, evaluated)

    def seconds(self) -> Tensor | None:
        """Return the seconds that each client of the cohort needed."""
        return torch.cat(self._seconds) if self._seconds else None

    def duration(self) -> float:
        """Return the duration of the round: first the probes are answered, then the cohort trains."""
        if self._clock is None or self._traffic is None:
            return 0.0
        seconds, wire = self.seconds(), self._traffic.wire
        total = 0.0 if seconds is None else self._clock.duration(seconds)
        for probe in self._sampled.probes:
            up = wire.vector if probe.gradients else wire.number
            none = torch.zeros_like(probe.samples)
            work = (probe.samples, none) if probe.gradients else (none, probe.samples)
            total += float(self._clock.seconds(probe.ids, wire.vector * probe.receives_model, up, *work).max())
        return total
