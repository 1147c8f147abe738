"""One round of federated learning, from the sampling of a cohort to the commit of the new state."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from math import isfinite
from time import perf_counter

import torch
from torch import Tensor

from ..algorithm import Context, Vectors
from ..core.history import Record
from ..selection.selector import thins
from .backend import CohortUpdate, NonFiniteUpdate, PhaseInput, StepObserver, Thin, complete
from .cohort import Cohort, SampledCohort
from .declaration import check_model, check_pair, check_shapes
from .executor import max_abs
from .job import Phase
from .named_tensors import named, unchanged
from .personal_models import with_statistics
from .round_record import describe_round, make_timing, update_norms
from .round_results import DivergenceError, QueuedMetrics, RoundResults, RoundState, TrainingResult
from .round_timing import RoundTiming
from .row_aggregation import aggregate_rows
from .sampling import as_sent
from .state import FederatedState


async def play_round(state: FederatedState, evaluate: bool) -> Record:
    """Play one round and commit it.

    All work is queued on the device before anything is read back, on the assumption that every value is finite. If one
    is not, the clients' part is repeated with a check of every update, which drops the client or stops the run.
    """
    began = perf_counter()
    # 1. Sample a cohort.
    sampled = state.sampler.draw(state.t, state.x)
    while True:
        timing = make_timing(state, sampled)
        # 2. Broadcast the model; 3. clients train; 4. aggregate their uploads.
        training = await train_clients(state, sampled, timing)
        # 5. The server's step.
        new = await server_step(state, sampled, training)
        if new is not None:
            # 6. Evaluate the new model.
            metrics = await evaluate_model(state, new) if evaluate else None
            # Until here the device has only been given work. Finish the host's part, then wait for the results.
            uploads = training.update.kept if training is not None and thins(state.sampler.selector) else None
            record = describe_round(state, sampled, timing, uploads, abandoned=new.update is None)
            state.sampler.prefetch(state.t + 1)
            results = await read_results(state, new, metrics)
            if results.finite or state.policy.check_each:
                break
        state.policy = state.policy._replace(check_each=True)
    # 7. Commit the new model and state.
    seconds = perf_counter() - began - (0.0 if metrics is None else metrics.seconds)
    record |= results.metrics | update_norms(state, sampled, new.update, results.reports)
    record["saturated"] = results.saturated
    return commit(state, sampled, timing, new, results, Record(seconds=seconds, **record))


async def train_clients(state: FederatedState, sampled: SampledCohort, timing: RoundTiming) -> TrainingResult | None:
    """Run the clients' part of the round; returns None if a cohort is empty and the round does not count."""
    cohort = sampled.cohort
    if not cohort.ids.shape[0]:
        return without_clients(state, cohort) if state.quorum(cohort) == 0 else None
    thin = _thinner(state, sampled)
    training = await _run_phases(state, cohort, timing, thin)
    if not timing.late or not state.algorithm.prepares(state.t):
        return training
    # Late clients count as not sampled, in the extra phase too, so both phases are repeated without them.
    arrived = training.update.arrived
    if state.algorithm.steps_without_updates:
        arrived = _in_time(state, cohort, timing)
        if not arrived.ids.shape[0]:
            return without_clients(state, arrived)
    return await _run_phases(state, arrived.scaled(cohort.W), None, thin) if arrived.W > 0 else training


def _in_time(state: FederatedState, cohort: Cohort, timing: RoundTiming) -> Cohort:
    """Return the clients that are in time, finite or not, so that no client has an effect on which others count."""
    in_time = ~torch.isin(cohort.ids, torch.tensor(timing.late))
    return Cohort.of(cohort.ids[in_time], cohort.weights[in_time], state.task.data)


def without_clients(state: FederatedState, cohort: Cohort) -> TrainingResult:
    """Return the result of a round in which no client takes part: sums of zero."""

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
        if arrived.ids.shape[0] < state.quorum(sampled.cohort):  # the round is abandoned: nobody is asked
            return arrived.none()
        return state.sampler.thin(state.t, sampled, arrived, _reports(state, arrived.ids, trained))

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
    given = PhaseInput("prepare", ctx, state.lr(state.t), state.x, {}, timing, state.policy)
    with stop_at_bad_updates(state):
        if algorithm.prepares(state.t):
            prepared = await state.backend.run_phase(cohort, given, observer)
            if len(prepared.kept.ids) < state.quorum(cohort):
                return TrainingResult(server_state, prepared._replace(kept=cohort.none()))  # nobody is asked to train
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
            f"The update of client {client} in round {state.t + 1} is not finite; use a smaller 'lr', 'clip', or "
            "on_bad_update='drop'"
        ) from None


def broadcast(state: FederatedState, server_state: Vectors, ctx: Context) -> Vectors:
    """Return the message that is sent to the cohort with x."""
    declared = state.declaration.message
    with unchanged(state.algorithm, "broadcast", {"x": state.x, "state": server_state}):
        message = state.algorithm.broadcast(state.x, named(state.algorithm, "state", server_state), ctx)
    check_shapes(state.algorithm, "broadcast", message, declared, some=False)
    # A captured graph identifies vectors by their order.
    return {name: message[name].reshape(shape).to(state.x) for name, shape in declared.items()}


async def server_step(
    state: FederatedState, sampled: SampledCohort, training: TrainingResult | None
) -> RoundState | None:
    """Apply the server's step; returns None if it fails and updates were not checked.

    Without enough updates the round is abandoned and the model stays.
    """
    cohort = sampled.cohort
    if training is None:
        return _abandoned(state, cohort, torch.empty((1, 0), dtype=torch.float64, device=state.x.device))
    update, report = training.update, training.update.report
    needed = state.quorum(cohort)
    if update.arrived.ids.shape[0] < needed or (needed and update.kept.ids.shape[0] < state.min_uploads):
        return _abandoned(state, cohort, report)
    x, before, sums = state.x, training.server_state, update.sums
    try:
        with unchanged(state.algorithm, "server", {"x": x, "state": before, "agg": sums}):
            given, agg = (named(state.algorithm, name, v) for name, v in (("state", before), ("agg", sums)))
            returned = state.algorithm.server(x, given, agg, state.context(update.kept))
    except Exception:
        if state.policy.check_each:
            raise
        return None  # possibly because of a non-finite upload
    check_pair(state.algorithm, "server", returned)
    x, new = returned
    check_model(state.algorithm, "server", x, state.x.shape)
    x = x.to(state.x)
    server_state = before | _checked_state(state, "server", new)
    evaluated = state.evaluated_model(x, server_state, update.kept)
    changed = [x, evaluated, *(v for name, v in server_state.items() if v is not state.server_state[name])]
    if state.policy.check_each:
        (largest,) = await state.backend.read([_largest(changed)], now=True)
        if not bool(largest.isfinite()):
            if not state.policy.drop:
                raise DivergenceError(f"The server's step in round {state.t + 1} is not finite; use {_remedy(state)}")
            return _abandoned(state, cohort, report, changed)
    return RoundState(
        x=x,
        evaluated=evaluated,
        server_state=server_state,
        update=update,
        report=report,
        changed=changed,
        saturated=update.saturated,
    )


def _remedy(state: FederatedState) -> str:
    """Return what helps where the server's step is not finite."""
    return "smaller step sizes" if state.lr(state.t) else "an 'lr_decay' that stays above 0"


def _abandoned(
    state: FederatedState, cohort: Cohort, report: Tensor, changed: list[Tensor] | None = None
) -> RoundState:
    """Return the result of a round that leaves the model as it is."""
    with unchanged(state.algorithm, "idle", {"x": state.x, "state": state.server_state}):
        new = state.algorithm.idle(state.x, named(state.algorithm, "state", state.server_state), state.context(cohort))
    server_state = state.server_state | _checked_state(state, "idle", new)
    return RoundState(
        x=state.x,
        evaluated=state.evaluated_model(state.x, server_state, cohort),
        server_state=server_state,
        update=None,
        report=report,
        changed=changed or [state.x],
    )


def _checked_state(state: FederatedState, method: str, new: Vectors) -> Vectors:
    """Return new server state in the declared shapes and the dtype of the model."""
    declared = state.declaration.server_state
    check_shapes(state.algorithm, method, new, declared)
    return {name: v.reshape(declared[name]).to(state.x) for name, v in new.items()}


async def evaluate_model(state: FederatedState, new: RoundState) -> QueuedMetrics:
    """Evaluate the new model."""
    began = perf_counter()
    values = await state.backend.evaluate(with_statistics(new.evaluated, new.server_state))
    return QueuedMetrics(values, perf_counter() - began)


async def read_results(state: FederatedState, new: RoundState, queued: QueuedMetrics | None) -> RoundResults:
    """Read the results of the round from the device in one transfer."""
    counted = [] if new.saturated is None else [new.saturated.to(torch.float64)]
    values = [] if queued is None else [queued.values]
    read = await state.backend.read([_largest(new.changed), new.report, *counted, *values])
    largest, (sent, *reports), metrics = read[0], read[1], read[2 + len(counted) :]
    return RoundResults(
        reports=dict(zip(state.reports, reports, strict=False)),  # an abandoned round has none
        metrics=dict(zip(state.backend.evaluator.names, metrics[0].tolist(), strict=True)) if metrics else {},
        finite=isfinite(largest) and isfinite(sent.sum()),
        saturated=int(read[2]) if counted else None,
    )


def commit(
    state: FederatedState,
    sampled: SampledCohort,
    timing: RoundTiming,
    new: RoundState,
    results: RoundResults,
    record: Record,
) -> Record:
    """Make the round's result the state of the run, completely or not at all."""
    t, update = state.t, new.update
    kept = sampled.cohort.ids[:0] if update is None else update.kept.ids
    selection = state.sampler.next_state(sampled, kept, timing.seconds())
    if update is not None and state.sampler.selector.reports:
        arrived = update.arrived.ids
        selection = selection.with_reports(arrived, _reports(state, arrived, results.reports))
    if update is not None and update.updates is not None:
        selection = selection.with_updates(kept, update.updates)
    sent = t if sampled.rounds is None else sampled.rounds[torch.isin(sampled.cohort.ids, kept)]

    def write() -> None:
        if update is not None:
            state.clients.write(*update.states)
            state.clients.note(kept, sent)
        state.sampler.selection_state = selection
        if state.clock is not None and record.clock is not None:
            state.clock.now = record.clock
        if state.asynchronous is not None and sampled.queue is not None:
            state.asynchronous.queue = sampled.queue
        state.t, state.x, state.server_state = t + 1, new.x, new.server_state
        state.evaluated = new.evaluated
        if len(state.history) == t:
            state.history.append(record)

    try:
        write()
    except KeyboardInterrupt:  # writing twice is harmless, so an interrupted commit is completed first
        write()
        raise
    return record


def dry_run(state: FederatedState, cohort: Cohort, observer: StepObserver) -> None:
    """Run local training for a cohort and call `observer` after every step, without changing the run."""
    with torch.no_grad():
        complete(_run_phases(state, cohort, None, observer=observer))


def _reports(state: FederatedState, ids: Tensor, trained: Vectors) -> Vectors:
    """Return what clients report to the selector."""
    names = state.sampler.selector.reports
    at_start = state.backend.reports(state.x, ids, names)
    return {name: v for name, v in trained.items() if name in names} | {
        name: as_sent(v, state.x) for name, v in at_start.items()
    }


def _largest(vectors: list[Tensor]) -> Tensor:
    """Return the largest absolute value of all vectors, float64; non-finite if any value is."""
    distinct = {id(v): v for v in vectors}.values()
    return max_abs([v.flatten() for v in distinct]).to(torch.float64)
