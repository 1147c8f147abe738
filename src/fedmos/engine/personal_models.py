"""The models of clients' own, which an algorithm's `personal` returns."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

import torch
from torch import Tensor

from ..algorithm import Algorithm, ClientContext, Context, Vectors
from ..core.method_checks import unchanged
from ..core.statistics_layout import STATISTICS
from ..rng import Purpose
from .cohort import Cohort
from .declaration import check_model
from .model_state import ModelState
from .named_tensors import named
from .watch import refusing_draws


def has_personal_models(state: ModelState) -> bool:
    """Return whether clients have models of their own: `personal` may be defined and return None for all of them."""
    if type(state.algorithm).personal is Algorithm.personal:
        return False
    declared = state.declaration.client_state
    initial = state.declaration.initial(declared, state.task.model.initial())
    own = {name: v[None] if v.ndim == 0 else v for name, v in initial.items()}
    return _models(state, torch.zeros(1, dtype=torch.int64), own, rows=False) is not None


def personal_models(state: ModelState, ids: Tensor, vectorised: bool = True) -> Tensor | None:
    """Return the model of each client's own, with its statistics, (M, D); None if the algorithm has none.

    Args:
        state: The state of the run.
        ids: The clients, on the CPU.
        vectorised: Whether to call the algorithm once with a row per client, or once per client as the loop does.

    Raises:
        ValueError: If this process does not store the state of these clients.
    """
    stored, needed = state.clients.read(ids), set(state.declaration.client_state)
    for i in ids.tolist():
        if needed and not (state.clients.stores(i) and needed <= set(stored)):
            raise ValueError(
                f"Cannot give client {i} a model of its own because its state is not stored in this process; use a "
                "simulation on one rank"
            )
    if vectorised:
        columns = {name: v[:, None] if v.ndim == 1 else v for name, v in stored.items()}
        return _models(state, ids, columns, rows=True)
    found = []
    for n in range(len(ids)):
        own = {name: v[n : n + 1] if v.ndim == 1 else v[n] for name, v in stored.items()}
        model = _models(state, ids[n : n + 1], own, rows=False)
        if model is None:
            return None
        found.append(model)
    return torch.stack(found)


def evaluable_models(state: ModelState, ids: Tensor, vectorised: bool) -> Tensor:
    """Return `personal_models` of clients of which each has a model of its own.

    Raises:
        ValueError: If one has none.
    """
    found = personal_models(state, ids, vectorised)
    if found is None:
        raise ValueError(
            f"{type(state.algorithm).__name__}: 'personal' must return a model for every client, or None for all, got "
            "None for some"
        )
    return found


def _models(state: ModelState, ids: Tensor, own: Vectors, rows: bool) -> Tensor | None:
    """Call the algorithm's `personal` for several clients, with rows, or for one."""
    algorithm, data = state.algorithm, state.task.data
    none = Cohort.of(ids[:0], data.importance[ids[:0]], data)
    known: dict[str, Any] = {f.name: getattr(state.context(none), f.name) for f in fields(Context)}
    keys = state.task.stream(state.t, ids.to(state.x.device), Purpose.ALGORITHM)
    known["key"] = keys if rows else keys[0]
    numbers = {"K": state.task.steps(data.sizes[ids]), "p": data.importance[ids], "last": state.clients.last[ids]}
    known |= {name: (v[:, None] if rows else v).to(state.x) for name, v in numbers.items()}
    msg = named(algorithm, "c.msg", {}, "a client keeps no message after its round")
    own_named = named(algorithm, "c.own", own)
    c = ClientContext(**known, x=algorithm.received(state.x, own_named), msg=msg, own=own_named)
    with (
        unchanged(algorithm, "personal", {"c.x": state.x, "c.own": own}),
        refusing_draws(type(algorithm).__name__, "personal", state.x.device),
    ):
        models = algorithm.personal(c)
    if models is None:
        return None
    if rows and isinstance(models, Tensor) and models.ndim == 1:
        models = models.expand(len(ids), -1)
    size = state.task.model.size + state.task.model.personal_layers.size
    check_model(algorithm, "personal", models, torch.Size([*([len(ids)] if rows else []), size]))
    return with_statistics(models.to(state.x.dtype), own)


def with_statistics(x: Tensor, state: Mapping[str, Tensor]) -> Tensor:
    """Return the model, or one per row, followed by the running statistics of BatchNorm layers in the state, if any."""
    if STATISTICS not in state:
        return x
    return torch.cat([x, state[STATISTICS].to(x).expand(*x.shape[:-1], -1)], dim=-1)
