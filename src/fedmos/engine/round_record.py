"""The bytes, times and other facts of a round that its record contains."""

from __future__ import annotations

from typing import Any

import torch

from ..algorithm import Vectors
from .backend import CohortUpdate
from .cohort import SampledCohort
from .reports import AT_START
from .round_timing import RoundTiming, Traffic
from .state import FederatedState


def make_timing(state: FederatedState, sampled: SampledCohort) -> RoundTiming:
    """Return the timing of a round, before any client has trained."""
    if state.clock is None:
        return RoundTiming(None, sampled, None, None)
    reports = state.sampler.selector.reports
    traffic = Traffic(
        down=state.wire.down,
        up=state.wire.up(state.t, state.numbers_up),
        wire=state.wire,
    )
    return RoundTiming(state.clock, sampled, traffic, state.task.data.sizes if _evaluates_data(reports) else None)


def describe_round(
    state: FederatedState, sampled: SampledCohort, timing: RoundTiming, abandoned: bool
) -> dict[str, Any]:
    """Return the fields of the round's record that are not metrics."""
    cohort = sampled.cohort
    down, up = state.backend.traffic((_bytes_down(state, sampled), _bytes_up(state, sampled)))
    reported = _evaluates_data(state.sampler.selector.reports)
    return {
        "round": state.t + 1,
        "cohort": cohort.ids.tolist(),
        "weights": cohort.weights.tolist(),
        "bytes_down": down,
        "bytes_up": up,
        "available": sampled.available,
        "short": sampled.available < (state.m or 1),
        "probed": sampled.samples + (int(state.task.data.sizes[cohort.ids].sum()) if reported else 0),
        "late": timing.late + state.backend.late(),
        "abandoned": abandoned,
        "clock": None if state.clock is None else state.clock.now + timing.duration(),
    }


def update_norms(
    state: FederatedState, sampled: SampledCohort, update: CohortUpdate | None, reports: Vectors
) -> dict[str, Any]:
    """Return the field of the round's record with the norms of the clients' updates, if the run records them."""
    if not state.update_norms:
        return {}
    kept = [] if update is None else update.kept.ids.tolist()
    norms = dict(zip(kept, reports["update_norm"].tolist(), strict=True)) if kept else {}
    return {"update_norms": [norms.get(i) for i in sampled.cohort.ids.tolist()]}


def _evaluates_data(reports: Any) -> bool:
    """Whether clients evaluate their data for these reports."""
    return any(name in AT_START for name in reports)


def _bytes_down(state: FederatedState, sampled: SampledCohort) -> int:
    """x is sent once to every client that is probed or that trains from it, the rest of the message to the cohort."""
    ids, has_model, wire = sampled.cohort.ids, sampled.has_model, state.wire
    again = int(torch.isin(ids, has_model).sum()) if len(has_model) and wire.sends_x else 0
    return len(ids) * wire.down + (len(has_model) - again) * wire.vector


def _bytes_up(state: FederatedState, sampled: SampledCohort) -> int:
    each = state.wire.up(state.t, state.numbers_up)
    probes = sampled.numbers_up * state.wire.number + sampled.vectors_up * state.wire.vector
    return len(sampled.cohort.ids) * each + probes
