"""The bytes, times and other facts of a round that its record contains."""

from __future__ import annotations

from typing import Any

import torch

from ..algorithm import Vectors
from .backend import CohortUpdate
from .cohort import Cohort, SampledCohort
from .reports import AT_START
from .round_timing import RoundTiming, Traffic
from .state import FederatedState


def make_timing(state: FederatedState, sampled: SampledCohort) -> RoundTiming:
    """Return the timing of a round, before any client has trained."""
    if state.clock is None:
        return RoundTiming(None, sampled, None, None)
    reports = state.sampler.selector.reports
    protocol = state.wire.protocol(state.t, len(sampled.cohort.ids))
    traffic = Traffic(
        down=state.wire.received(state.clients.last) + protocol.down,
        up=state.wire.up(state.t, state.numbers_up) + protocol.up,
        report=_report_bytes(state),
        wire=state.wire,
    )
    evaluated = state.task.data.sizes if _evaluates_data(reports) else None
    return RoundTiming(state.clock, sampled, traffic, evaluated, state.t)


def describe_round(
    state: FederatedState, sampled: SampledCohort, timing: RoundTiming, uploads: Cohort | None, abandoned: bool
) -> dict[str, Any]:
    """Return the fields of the round's record that are not metrics.

    Args:
        state: The state of the run.
        sampled: The cohort and what its selection took.
        timing: The times of the round.
        uploads: The clients that uploaded, if the selector chose them after local training.
        abandoned: Whether the model stays.
    """
    cohort = sampled.cohort
    down, up = state.backend.traffic((_bytes_down(state, sampled), _bytes_up(state, sampled, uploads)))
    reported = _evaluates_data(state.sampler.selector.reports)
    return {
        "round": state.t + 1,
        "cohort": cohort.ids.tolist(),
        "weights": cohort.weights.tolist(),
        "uploaded": None if uploads is None else uploads.ids.tolist(),
        "upload_weights": None if uploads is None else uploads.weights.tolist(),
        "bytes_down": down,
        "bytes_up": up,
        "available": sampled.available,
        "short": sampled.available < (state.m or 1),
        "probed": sampled.samples + (int(state.task.data.sizes[cohort.ids].sum()) if reported else 0),
        "late": timing.late + state.backend.late(),
        "abandoned": abandoned,
        "clock": None if state.clock is None else state.clock.now + timing.duration(),
        "epsilon": None if state.private is None else state.private.epsilon(state.t + 1),
    }


def update_norms(
    state: FederatedState, sampled: SampledCohort, update: CohortUpdate | None, reports: Vectors
) -> dict[str, Any]:
    """Return the field of the round's record with the norms of the clients' updates, if the run records them."""
    if not state.update_norms:
        return {}
    norms: dict[int, float] = {}
    if update is not None:
        norms = dict(zip(update.arrived.ids.tolist(), reports["update_norm"].tolist(), strict=True))
        if "update_norm" not in state.sampler.selector.reports:  # the server knows those of uploads only
            norms = {i: norms[i] for i in update.kept.ids.tolist()}
    return {"update_norms": [norms.get(i) for i in sampled.cohort.ids.tolist()]}


def _evaluates_data(reports: Any) -> bool:
    """Whether clients evaluate their data for these reports."""
    return any(name in AT_START for name in reports)


def _bytes_down(state: FederatedState, sampled: SampledCohort) -> int:
    """Return the bytes sent down: x once to every probed or training client, the rest of the message to the cohort."""
    ids, has_model, wire = sampled.cohort.ids, sampled.has_model, state.wire
    again = int(torch.isin(ids, has_model).sum()) if len(has_model) and wire.reuses_x else 0
    protocol = len(ids) * wire.protocol(state.t, len(ids)).down
    return int(wire.received(state.clients.last[ids]).sum()) + (len(has_model) - again) * wire.vector + protocol


def _bytes_up(state: FederatedState, sampled: SampledCohort, uploads: Cohort | None) -> int:
    """Return the bytes sent up. Clients that the selector left out after training send their reports only."""
    S = sampled.cohort.ids.shape[0]
    U = S if uploads is None else uploads.ids.shape[0]
    sent = U * state.wire.up(state.t, state.numbers_up) + (S - U) * _report_bytes(state)
    probes = sampled.numbers_up * state.wire.number + sampled.vectors_up * state.wire.vector
    return sent + probes + S * state.wire.protocol(state.t, S).up


def _report_bytes(state: FederatedState) -> int:
    """Return the bytes that a client sends in a round in which it does not upload."""
    reports = len(set(state.sampler.selector.reports))
    return state.wire.prepared(state.t) + reports * state.wire.number
