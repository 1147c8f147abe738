"""The state of a run, adapted to changes of its clients.

Definitions, for a change after t rounds:

- An admitted client has the next number, no reports, and never took part. The selector's own state begins anew.
- A client that is reset never took part: at its next round it starts from the initial state.
- Server state that is Σ p_i of a client state over all clients (`Algorithm.population_sums`) begins anew when a client
  is retired, admitted or reset, or the p_i change, because the server does not know the terms of the sum. Clients let
  that part of their state begin anew, too (`StateSources`): the sum is right again, as at the start of a run.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from ...algorithm import Vectors
from ...engine.snapshot import Snapshot
from .member_list import MemberList

_OWN = "state."
"""The names of the selector's own state in a checkpoint begin with this."""


def migrated(snapshot: Snapshot, member_list: MemberList, initial: Vectors) -> Snapshot:
    """Return a snapshot in which all changes that took effect after its rounds have taken effect.

    It makes no difference whether the snapshot was saved before or after them.

    Args:
        snapshot: The state of the run.
        member_list: The clients of the run.
        initial: The initial values of the server state that is a sum over all clients.
    """
    t = len(snapshot.history)
    for change in member_list.changes_after(t):
        if change.kind == "admit" and member_list.names.index(str(change.client)) >= len(snapshot.last):
            snapshot = _with_client(snapshot)
        elif change.kind == "reset":
            last = snapshot.last.clone()
            last[member_list.names.index(str(change.client))] = -1
            snapshot = replace(snapshot, last=last)
    if t and member_list.restarted >= t:
        snapshot = replace(snapshot, server_state=snapshot.server_state | initial)
    return snapshot


def _with_client(snapshot: Snapshot) -> Snapshot:
    """Return a snapshot with one more client, which never took part."""
    selection = {name: v for name, v in snapshot.selection.items() if not name.startswith(_OWN)}
    for name, v in selection.items():
        if name in ("picks", "durations") or name.startswith("reported."):
            selection[name] = _longer(v, 0 if name == "picks" else torch.nan)
    return replace(snapshot, last=_longer(snapshot.last, -1), selection=selection)


def _longer(v: Tensor, value: float) -> Tensor:
    return torch.cat([v, v.new_full((1,), value)])
