"""The clients' part of a round: the extra phase, the broadcast, local training, and the aggregation of uploads."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from ..algorithm import Context, Vectors
from ..core.method_checks import unchanged
from ..selection.selector import thins
from .backend import CohortUpdate, NonFiniteUpdate, PhaseInput, StepObserver, Thin, complete
from .cohort import Cohort, SampledCohort
from .declaration import check_shapes
from .job import Phase
from .named_tensors import named
from .probes import as_sent
from .round_results import DivergenceError, TrainingResult
from .round_timing import RoundTiming
from .row_aggregation import aggregate_rows
from .state import FederatedState


async def train_clients(state: FederatedState, sampled: SampledCohort, timing: RoundTiming) -> TrainingResult | None:
    """Run the clients' part of the round; returns None if a cohort is empty and the round does not count."""
    cohort = sampled.cohort
    if not cohort.ids.shape[0]:
        return _empty_result(state, cohort) if state.quorum(cohort) == 0 else None
    thin = _thinner(state, sampled)
    training = await _run_phases(state, cohort, timing, thin)
    if not timing.late or not state.algorithm.prepares(state.t):
        return training
    # Late clients count as not sampled, in the extra phase too, so both phases are repeated without them.
    arrived = training.update.arrived
    if state.algorithm.steps_without_updates:
        arrived = _in_time(state, cohort, timing)
        if not arrived.ids.shape[0]:
            return _empty_result(state, arrived)
    return await _run_phases(state, arrived.scaled(cohort.W), None, thin) if arrived.W > 0 else training


def _in_time(state: FederatedState, cohort: Cohort, timing: RoundTiming) -> Cohort:
    """Return the clients that are in time, finite or not, so that no client has an effect on which others count."""
    in_time = ~torch.isin(cohort.ids, torch.tensor(timing.late))
    return Cohort.of(cohort.ids[in_time], cohort.weights[in_time], state.task.data)


def _empty_result(state: FederatedState, cohort: Cohort) -> TrainingResult:
    """Return the result for an empty cohort: sums of zero."""

    def zeros(phase: Phase) -> Vectors:
        return {name: state.x.new_zeros(shape) for name, shape in state.declaration.sums(phase).items()}

    prepared = zeros("prepare") if state.algorithm.prepares(state.t) else {}
    update = CohortUpdate(
        sums=zeros("train"),
        kept=cohort,
        arrived=cohort,
        states=(cohort.ids, {}),
        report=torch.zeros((1 + len(state.reports), 0), dtype=torch.float64, device=state.x.device),
    )
    return TrainingResult(state.server_state | prepared, update)


def _thinner(state: FederatedState, sampled: SampledCohort) -> Thin | None:
    """Return what chooses the uploads of the round after local training; None where all clients upload."""
    if not thins(state.sampler.selector):
        return None

    def thin(arrived: Cohort, trained: Vectors) -> Cohort:
        if arrived.ids.shape[0] < state.quorum(sampled.cohort):  # the round is abandoned
            return Cohort.empty()
        return state.sampler.thin(state.t, sampled, arrived, reports_of(state, arrived.ids, trained))

    return thin


async def _run_phases(
    state: FederatedState,
    cohort: Cohort,
    timing: RoundTiming | None,
    thin: Thin | None = None,
    observer: StepObserver | None = None,
) -> TrainingResult:
    """Run the extra phase if the round has one, broadcast, and train the cohort."""
    algorithm, ctx, prepared = state.algorithm, state.context(cohort), None
    server_state = state.server_state
    quorum = state.quorum(cohort)
    given = PhaseInput("prepare", ctx, state.lr(state.t), state.x, {}, timing, state.policy, quorum=quorum)
    with stop_at_bad_updates(state):
        if algorithm.prepares(state.t):
            prepared = await state.backend.run_phase(cohort, given, observer)
            if len(prepared.kept.ids) < quorum:
                return TrainingResult(server_state, prepared._replace(kept=Cohort.empty()))  # the round is abandoned
            prepared = aggregate_rows(state, "prepare", prepared)
            server_state = server_state | prepared.sums
        message = broadcast(state, server_state, ctx)
        updates = state.sampler.selector.updates
        given = given._replace(phase="train", msg=message, reports=state.reports, thin=thin, updates=updates)
        update = await state.backend.run_phase(cohort, given, observer)
        update = aggregate_rows(state, "train", update)
    if prepared is not None:
        update.report[0] += prepared.report[0].sum()  # non-finite if any value of the extra phase is
        if prepared.saturated is not None and update.saturated is not None:
            update = update._replace(saturated=update.saturated + prepared.saturated)
    return TrainingResult(server_state, update)


@contextmanager
def stop_at_bad_updates(state: FederatedState) -> Iterator[None]:
    """Stop the run at an update that is not finite, where the backend refuses one."""
    try:
        yield
    except NonFiniteUpdate as error:
        client = state.task.data.label(error.client)
        raise DivergenceError(
            f"The update of client {client} in round {state.t + 1} is not finite; use "
            + remedy_for(state, "a smaller 'lr', 'clip', or on_bad_update='drop'")
        ) from None


def remedy_for(state: FederatedState, otherwise: str) -> str:
    """Return what helps where a step is not finite; methods such as SCAFFOLD divide by a step size of zero."""
    return otherwise if state.lr(state.t) else "an 'lr_decay' that stays above 0"


def broadcast(state: FederatedState, server_state: Vectors, ctx: Context) -> Vectors:
    """Return the message that is sent to the cohort with x."""
    declared = state.declaration.message
    with unchanged(state.algorithm, "broadcast", {"x": state.x, "state": server_state}):
        message = state.algorithm.broadcast(state.x, named(state.algorithm, "state", server_state), ctx)
    check_shapes(state.algorithm, "broadcast", message, declared, some=False)
    # A captured graph identifies vectors by their order.
    return {name: message[name].reshape(shape).to(state.x) for name, shape in declared.items()}


def dry_run(state: FederatedState, cohort: Cohort, observer: StepObserver) -> None:
    """Run local training for a cohort and call `observer` after every step, without changing the run."""
    with torch.no_grad():
        complete(_run_phases(state, cohort, None, observer=observer))


def reports_of(state: FederatedState, ids: Tensor, trained: Vectors) -> Vectors:
    """Return what clients report to the selector: of their local training, and of their data at x."""
    names = state.sampler.selector.reports
    at_start = state.backend.reports(state.x, ids, names)
    return {name: v for name, v in trained.items() if name in names} | {
        name: as_sent(v, state.x) for name, v in at_start.items()
    }
