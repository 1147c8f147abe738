"""A round of an asynchronous run: one server step, with the updates that arrive until the buffer is full.

Clients are trained when their updates are used, all of a server step together, each from the model that it was sent.
Until then only the times of their starts and arrivals are computed, which needs no training.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..algorithm import Context
from ..core.history import Record
from .asynchronous_state import AsynchronousState, SimulatedTimes
from .backend import PhaseInput
from .cohort import Cohort, SampledCohort
from .event_queue import EventQueue, Flight
from .job import Phase
from .round import commit, evaluate_model, read_results, server_step
from .round_record import update_norms
from .round_results import RoundState, TrainingResult
from .round_timing import RoundTiming
from .row_aggregation import aggregate_rows
from .sent_models import ModelVersion, SentModels
from .state import FederatedState
from .training import broadcast, stop_at_bad_updates

_MOST_LOSSES = 200
"""Clients that may be lost one after another, beside ten for each client of the federation, before a run stops."""


class ArrivalTiming(RoundTiming):
    """The times of clients whose updates have arrived: they are known before the clients train."""

    def __init__(self, algorithm: str, taken: list[Flight], lost: list[int]) -> None:
        self._algorithm, self._taken = algorithm, taken
        self.late = lost

    @property
    def clocked(self) -> bool:
        return True

    def in_time(self, phase: Phase, ids: Tensor, samples: Tensor) -> Tensor | None:
        return None

    def record(self, phase: Phase, ids: Tensor, samples: Tensor, uploads: Tensor | None = None) -> None:
        """Check that clients computed as many gradients as their times were computed for."""
        for flight, n in zip(self._taken, samples.tolist(), strict=True):
            if flight.gradients != n:
                raise ValueError(
                    f"Cannot use buffer= with {self._algorithm} because the number of gradients of a client depends on "
                    f"their values ({n} instead of {flight.gradients}), so its duration is not known when it starts; "
                    "use a method that computes a fixed number"
                )

    def seconds(self) -> Tensor | None:
        return torch.tensor([flight.seconds for flight in self._taken], dtype=torch.float64) if self._taken else None


@dataclass(kw_only=True)
class Arrivals:
    """What happens from one server step to the next, before any client is trained."""

    queue: EventQueue
    """The queue after the server step."""
    now: float
    versions: dict[int, ModelVersion] = field(default_factory=dict)
    """By round, what the clients of the server step were sent."""
    taken: list[Flight] = field(default_factory=list)
    """The updates of the server step, by ascending client; none if the buffer cannot be filled in this round."""
    steps: list[int] = field(default_factory=list)
    """The number of server steps before each of these clients was sent the model."""
    ages: list[int] = field(default_factory=list)
    """The number of server steps since then."""
    lost: list[int] = field(default_factory=list)
    """The clients that were given up."""
    bytes_down: int = 0
    bytes_up: int = 0
    short: bool = False
    """Whether fewer clients train than the buffer allows."""


CollectUpdates = Callable[[FederatedState, SampledCohort], Arrivals]
"""Takes the state of a run and a cohort that receives the selector's state; returns what happens up to the step."""


async def play_buffered_round(state: FederatedState, evaluate: bool, collect: CollectUpdates | None = None) -> Record:
    """Play the events up to the next server step, take the step, and commit it.

    As in `play_round`, the clients' part is repeated with a check of every update if a value is not finite.

    Args:
        state: The state of the run.
        evaluate: Whether the new model is evaluated.
        collect: Starts clients and receives updates until the buffer is full; None for `collect_updates`.
    """
    began = perf_counter()
    # 1. Start clients and receive updates, until the buffer is full.
    sampled = state.sampler.empty()
    arrivals = (collect or collect_updates)(state, sampled)
    set_cohort(state, sampled, arrivals)
    timing = ArrivalTiming(type(state.algorithm).__name__, arrivals.taken, arrivals.lost)
    while True:
        # 2. Train the clients, each from the model that it was sent; 3. aggregate their uploads.
        training = await train_arrived(state, sampled, arrivals, timing)
        # 4. The server's step.
        new = await server_step(state, sampled, training)
        if new is not None:
            # 5. Evaluate the new model.
            metrics = await evaluate_model(state, new) if evaluate else None
            record = describe_step(state, sampled, arrivals, new)
            results = await read_results(state, new, metrics)
            if results.finite or state.policy.check_each:
                break
        state.policy = state.policy._replace(check_each=True)
    # 6. Commit the new model, the state of the clients and the queue.
    seconds = perf_counter() - began - (0.0 if metrics is None else metrics.seconds)
    record |= results.metrics | update_norms(state, sampled, new.update, results.reports)
    return commit(state, sampled, timing, new, results, Record(seconds=seconds, **record))


def collect_updates(state: FederatedState, sampled: SampledCohort) -> Arrivals:
    """Play the events of the simulated clock until the buffer is full, or until no client trains or can start."""
    here, times = asynchronous(state), simulated_times(state)
    arrivals = Arrivals(queue=here.queue.copy(), now=times.clock.now)
    queue, newest, losses = arrivals.queue, newest_model(state), 0
    free = here.sampler.free(state.t, queue.busy)
    while True:
        start_clients(state, sampled, arrivals, newest, free)
        if not queue.flights:
            break
        flight = queue.next_end()
        arrivals.now = flight.end
        if flight.lost:
            arrivals.lost.append(flight.client)
            free = here.sampler.free(state.t, queue.busy)
            losses += 1
            _check_losses(state, losses)
            continue
        losses = 0
        queue.arrived.append(flight)
        arrivals.bytes_up += times.costs.bytes_up
        if len(queue.arrived) == here.buffer.size:
            arrivals.taken, arrivals.versions = queue.take_arrived(), dict(queue.versions)
            break
    queue.forget_versions()
    return arrivals


def asynchronous(state: FederatedState) -> AsynchronousState:
    """Return what an asynchronous run has beside the state of every run."""
    assert state.asynchronous is not None
    return state.asynchronous


def simulated_times(state: FederatedState) -> SimulatedTimes:
    """Return the times of the clients of a simulation."""
    times = asynchronous(state).times
    assert times is not None
    return times


class NewestModel(NamedTuple):
    """What clients that start in this round are sent, the work that they will do, and when they last took part."""

    version: ModelVersion
    gradients: Tensor
    """The number of per-sample gradients that each client will compute, (N,)."""
    work: NDArray[np.int64]
    """The same numbers."""
    last: NDArray[np.int64]
    """The round, from 0, in which each client last took part; −1 for never."""


def newest_model(state: FederatedState) -> NewestModel:
    """Broadcast the current model, and count the gradients of the clients that will receive it."""
    ctx, version = newest_version(state)
    gradients = simulated_times(state).counter.count(ctx, version)
    return NewestModel(version, gradients, gradients.numpy(), state.clients.last.numpy())


def newest_version(state: FederatedState) -> tuple[Context, ModelVersion]:
    """Broadcast the current model; returns the context of its clients and what they are sent.

    Neither server nor clients know yet with whom an update will arrive.
    """
    ctx = state.context_of(asynchronous(state).buffer.size, 1.0)
    return ctx, ModelVersion(state.lr(state.t), state.x, broadcast(state, state.server_state, ctx))


def start_clients(
    state: FederatedState, sampled: SampledCohort, arrivals: Arrivals, newest: NewestModel, free: NDArray[np.bool_]
) -> None:
    """Start clients that are free until as many train as the buffer allows, or no other is free."""
    queue, here, times, t = arrivals.queue, asynchronous(state), simulated_times(state), state.t
    arrivals.short = False
    while len(queue.flights) < here.buffer.concurrency:
        drawn = here.sampler.draw_one(t, queue.starts, free, sampled)
        if drawn is None:
            arrivals.short = True
            return
        client, weight = drawn
        free[client] = False
        first = bool(newest.last[client] < 0)
        needed = times.costs.seconds(client, newest.gradients, first)
        seconds, lost = times.outcome(queue.starts, client, needed)
        arrivals.bytes_down += times.costs.bytes_down(first)
        queue.versions.setdefault(t, newest.version)
        queue.start(Flight(arrivals.now + seconds, client, t, weight, seconds, int(newest.work[client]), lost))


def _check_losses(state: FederatedState, losses: int) -> None:
    if losses > _MOST_LOSSES + 10 * len(state.task.data):
        raise ValueError(
            f"Cannot fill the buffer because {losses} clients in a row were lost in round {state.t + 1}; use a longer "
            "'deadline' or a smaller 'dropout'"
        )


def set_cohort(state: FederatedState, sampled: SampledCohort, arrivals: Arrivals) -> None:
    """Make the updates of the server step the cohort, with weights by age."""
    here, taken = asynchronous(state), arrivals.taken
    buffer, now = here.buffer, here.steps_before(state.t, state.history)
    arrivals.steps = [here.steps_before(flight.round, state.history) for flight in taken]
    arrivals.ages = [now - steps for steps in arrivals.steps]
    weights = [
        flight.weight / buffer.size * buffer.factor(age) for flight, age in zip(taken, arrivals.ages, strict=True)
    ]
    sampled.cohort = Cohort.of(
        torch.tensor([flight.client for flight in taken], dtype=torch.int64),
        torch.tensor(weights, dtype=torch.float64),
        state.task.data,
    )
    sampled.rounds = torch.tensor([flight.round for flight in taken], dtype=torch.int64)
    sampled.available, sampled.queue = here.sampler.count_available(state.t), arrivals.queue


async def train_arrived(
    state: FederatedState, sampled: SampledCohort, arrivals: Arrivals, timing: ArrivalTiming
) -> TrainingResult | None:
    """Train the clients whose updates the server uses; returns None if there are none."""
    cohort = sampled.cohort
    if not arrivals.taken:
        return None
    assert sampled.rounds is not None
    given = PhaseInput(
        phase="train",
        ctx=state.context(cohort),
        lr=state.lr(state.t),
        x=state.x,
        msg={},
        timing=timing,
        policy=state.policy,
        reports=state.reports,
        updates=state.sampler.selector.updates,
        sent=SentModels(arrivals.versions, sampled.rounds),
    )
    with stop_at_bad_updates(state):
        update = await state.backend.run_phase(cohort, given)
        return TrainingResult(state.server_state, aggregate_rows(state, "train", update))


def describe_step(state: FederatedState, sampled: SampledCohort, arrivals: Arrivals, new: RoundState) -> dict[str, Any]:
    """Return the fields of the record that are not metrics. Bytes count in the round in which they travel."""
    down, up = state.backend.traffic((arrivals.bytes_down, arrivals.bytes_up))
    return {
        "round": state.t + 1,
        "cohort": sampled.cohort.ids.tolist(),
        "weights": sampled.cohort.weights.tolist(),
        "versions": arrivals.steps,
        "ages": arrivals.ages,
        "bytes_down": down,
        "bytes_up": up,
        "available": sampled.available,
        "short": arrivals.short,
        "late": arrivals.lost,
        "abandoned": new.update is None,
        "clock": arrivals.now,
    }
