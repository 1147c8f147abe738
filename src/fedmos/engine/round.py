"""One round of federated learning, from the sampling of a cohort to the commit of the new state."""

from __future__ import annotations

from math import isfinite
from time import perf_counter

import torch
from torch import Tensor

from ..algorithm import Vectors
from ..core.history import Record
from ..core.method_checks import check_pair, unchanged
from ..selection.selector import thins
from .cohort import Cohort, SampledCohort
from .declaration import check_model, check_shapes
from .executor import max_abs
from .named_tensors import check_assigned, named
from .personal_models import with_statistics
from .round_record import describe_round, make_timing, update_norms
from .round_results import DivergenceError, QueuedMetrics, RoundResults, RoundState, TrainingResult
from .round_timing import RoundTiming
from .state import FederatedState
from .training import remedy_for, reports_of, train_clients


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
    stepped = _stepped(state, training)
    if stepped is None:
        return None
    x, server_state = stepped
    evaluated = state.evaluated_model(x, server_state, update.kept)
    changed = [x, evaluated, *(v for name, v in server_state.items() if v is not state.server_state[name])]
    if state.policy.check_each:
        (largest,) = await state.backend.read([_largest(changed)], now=True)
        if not bool(largest.isfinite()):
            if not state.policy.drop:
                remedy = remedy_for(state, "smaller step sizes")
                raise DivergenceError(f"The server's step in round {state.t + 1} is not finite; use {remedy}")
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


def _stepped(state: FederatedState, training: TrainingResult) -> tuple[Tensor, Vectors] | None:
    """Return the model and the server state that the algorithm computes; None if it fails on unchecked updates."""
    x, before, update = state.x, training.server_state, training.update
    try:
        with unchanged(state.algorithm, "server", {"x": x, "state": before, "agg": update.sums}):
            given, agg = named(state.algorithm, "state", before), named(state.algorithm, "agg", update.sums)
            returned = state.algorithm.server(x, given, agg, state.context(update.kept))
    except Exception:
        # Other ranks, on which there may be no error, would not take part in a repetition.
        uploaded = (*before.values(), *update.sums.values())  # before: with the sums of the extra phase
        if state.policy.check_each or all(bool(v.isfinite().all()) for v in uploaded):
            raise
        return None  # possibly because of a non-finite upload
    check_pair(state.algorithm, "server", returned)
    x, new = returned
    check_assigned(given, "server", new)
    check_model(state.algorithm, "server", x, state.x.shape)
    return x.to(state.x), before | _checked_state(state, "server", new)


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
        selection = selection.with_reports(arrived, reports_of(state, arrived, results.reports))
    if update is not None and update.updates is not None:
        selection = selection.with_updates(kept, update.updates)
    sent: int | Tensor = t
    if sampled.rounds is not None:
        all_kept = len(kept) == len(sampled.rounds)
        sent = sampled.rounds if all_kept else sampled.rounds[torch.isin(sampled.cohort.ids, kept)]

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


def _largest(vectors: list[Tensor]) -> Tensor:
    """Return the largest absolute value of all vectors, float64; non-finite if any value is."""
    distinct = {id(v): v for v in vectors}.values()
    return max_abs([v.flatten() for v in distinct]).to(torch.float64)
