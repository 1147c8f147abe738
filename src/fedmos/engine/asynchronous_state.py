"""What an asynchronous run has beside the state of every run."""

from __future__ import annotations

from dataclasses import dataclass, field

from ..core.history import History
from ..rng import Purpose, number
from .buffer import Buffer
from .event_queue import EventQueue
from .gradient_count import GradientCounter
from .simulated_clock import Clock
from .single_draws import SingleDraws
from .start_costs import StartCosts


@dataclass(kw_only=True)
class SimulatedTimes:
    """How long clients take on the simulated clock, and whose updates are lost: known when they start."""

    clock: Clock
    counter: GradientCounter
    costs: StartCosts

    def outcome(self, start: int, client: int, seconds: float) -> tuple[float, bool]:
        """Return when a client that needs these seconds is done or given up, and whether its update is lost.

        Args:
            start: The number of clients that have started before in the run.
            client: The client.
            seconds: The time until its update would arrive.
        """
        system = self.clock.system
        deadline, lost = system.deadline, False
        if system.dropout:
            lost = number(self.clock.seed, start, client, Purpose.LOST) < system.dropout
        if deadline is not None and (lost or seconds > deadline):
            return deadline, True
        return seconds, lost


@dataclass(kw_only=True)
class AsynchronousState:
    """What an asynchronous run has beside the state of every run; see `fedmos.engine.buffered`."""

    buffer: Buffer
    sampler: SingleDraws
    times: SimulatedTimes | None
    """The times of clients; None where clients are real."""
    queue: EventQueue = field(default_factory=EventQueue)
    _steps: list[int] = field(default_factory=lambda: [0])

    def steps_before(self, t: int, history: History) -> int:
        """Return the number of server steps before round t ≤ len(history): abandoned rounds have none."""
        while len(self._steps) <= t:
            self._steps.append(self._steps[-1] + (not history[len(self._steps) - 1].abandoned))
        return self._steps[t]
