"""Simulations in parts, between which the clients change: what deployments with changes are compared with."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

import fedmos as fm
from fedmos.engine.backend import complete
from fedmos.engine.snapshot import Snapshot
from fedmos.run.run import Run
from fedmos.run.spec import RunSpec

Edit = Callable[[Snapshot], Snapshot]


def played(given: dict[str, Any], until: int, earlier: Snapshot | None = None) -> Snapshot:
    """Play the rounds of a simulation until so many are done, after those of an earlier part."""
    run = Run(RunSpec(**given))
    if earlier is not None:
        run.state.restore(earlier)
    with torch.no_grad():
        while run.state.t < until:
            complete(run.next_round())
    snapshot = run.state.snapshot({}, False)
    return replace(snapshot, clients={i: run.state.clients[i] for i in run.state.clients})


def in_parts(parts: list[tuple[dict[str, Any], int]], edit: Edit) -> Snapshot:
    """Play parts of a simulation, each until so many rounds are done, and edit the state in between."""
    snapshot: Snapshot | None = None
    for given, until in parts:
        snapshot = played(given, until, None if snapshot is None else edit(snapshot))
    assert snapshot is not None
    return snapshot


def with_clients(count: int) -> Edit:
    """Remove the last clients, or add clients that never took part."""

    def edit(snapshot: Snapshot) -> Snapshot:
        more = max(0, count - len(snapshot.last))

        def cut(v: torch.Tensor, value: float) -> torch.Tensor:
            return torch.cat([v, v.new_full((more,), value)])[:count]

        selection = {
            name: cut(v, 0 if name == "picks" else torch.nan)
            for name, v in snapshot.selection.items()
            if not name.startswith("state.")
        }
        clients = {i: own for i, own in snapshot.clients.items() if i < count}
        return replace(snapshot, last=cut(snapshot.last, -1), selection=selection, clients=clients)

    return edit


def restarted(*names: str) -> Edit:
    """Set state of the server and of all clients to zero."""

    def zero(state: Any) -> Any:
        return {name: torch.zeros_like(v) if name in names else v for name, v in state.items()}

    def edit(snapshot: Snapshot) -> Snapshot:
        clients = {i: zero(own) for i, own in snapshot.clients.items()}
        return replace(snapshot, server_state=zero(snapshot.server_state), clients=clients)

    return edit


def both(*edits: Edit) -> Edit:
    def edit(snapshot: Snapshot) -> Snapshot:
        for one in edits:
            snapshot = one(snapshot)
        return snapshot

    return edit


def assert_equals(result: fm.Result, expected: Snapshot) -> None:
    """Same cohorts, weights and bits."""
    assert [r.cohort for r in result.history] == [r.cohort for r in expected.history]
    for mine, theirs in zip(result.history, expected.history, strict=True):
        assert mine.weights == pytest.approx(theirs.weights, rel=1e-15)
    assert torch.equal(result.params, expected.params)
    for name, v in expected.server_state.items():
        assert torch.equal(result.server_state[name], v), name
