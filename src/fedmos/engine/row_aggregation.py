"""The sums that an algorithm declares, computed from the rows of uploads by an aggregation rule."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ..aggregation.rule import Aggregation
from ..algorithm import Vectors
from ..attacks.attack import Attack
from ..rng import Purpose, fold
from .aggregation import update_names
from .backend import CohortUpdate
from .job import Phase
from .reports import update_norm
from .row_rules import ROWS, row_rule
from .watch import refusing_draws

if TYPE_CHECKING:
    from .state import FederatedState


def aggregate_rows(state: FederatedState, phase: Phase, update: CohortUpdate) -> CohortUpdate:
    """Return the update of a phase with the declared sums in place of the rows, where the backend gathered rows.

    Hostile clients replace their rows first. An update of too few clients, which is not used, is returned as it is.
    """
    rule = row_rule(state.algorithm)
    if rule is None or len(update.kept.ids) < rule.aggregation.min_clients:
        return update
    uploads = {name.removeprefix(ROWS): v for name, v in update.sums.items()}
    if rule.attack is not None and rule.attack.forges:
        uploads = _forged(state, rule.attack, phase, update, uploads)
        update = _with_forged(state, phase, update, uploads)
    return update._replace(sums=_Sums(state, rule.aggregation, update, uploads).declared(phase))


class _Sums:
    """The declared sums of a phase."""

    def __init__(self, state: FederatedState, rule: Aggregation, update: CohortUpdate, uploads: Vectors) -> None:
        self._state, self._rule, self._uploads, self._cohort = state, rule, uploads, update.kept
        self._found: dict[tuple[str, tuple[float, ...], tuple[float, ...] | None], Tensor] = {}
        """Means by upload, weights and factors of rows: several sums of an algorithm can need the same."""

    def declared(self, phase: Phase) -> Vectors:
        """Return the sums that the algorithm declares for the phase, by name."""
        declared = self._state.declaration.reduce(phase)
        return {name: self._sum(upload, rule) for name, (upload, rule) in declared.items()}

    def _sum(self, upload: str, rule: str) -> Tensor:
        if rule == "each":
            return self._uploads[upload]
        task, ids = self._state.task, self._cohort.ids
        weights = task.data.importance[ids] if rule == "p" else self._cohort.weights
        if rule == "sum":
            weights = torch.ones_like(weights)
        W = float(weights.sum())
        if W == 0:
            return torch.zeros_like(self._uploads[upload][0])
        if rule != "avg/K":
            mean = self._mean(upload, weights / W, None)
            return mean if rule == "avg" or W == 1 else W * mean
        # Rows are brought to the cohort's mean number of steps, so that a rule sees them in the unit of the upload.
        steps = task.steps(task.data.sizes[ids]).to(torch.float64)
        K = float(steps.mean())
        return self._mean(upload, weights / W, None if bool((steps == K).all()) else K / steps) / K

    def _mean(self, upload: str, weights: Tensor, factors: Tensor | None) -> Tensor:
        """Return what the rule takes for the mean of rows, which are multiplied by the factors first."""
        key = (upload, tuple(weights.tolist()), None if factors is None else tuple(factors.tolist()))
        if key not in self._found:
            uploads = self._uploads[upload]
            rows = uploads.reshape(len(uploads), -1)
            if factors is not None:
                rows = rows * factors[:, None].to(rows)
            self._found[key] = aggregated(self._rule, rows, weights.to(rows)).view(uploads.shape[1:])
        return self._found[key]


def aggregated(rule: Aggregation, rows: Tensor, weights: Tensor) -> Tensor:
    """Return what the rule takes for the mean of rows (S, n), (n,).

    Raises:
        ValueError: If it returns another shape, changes the rows, or draws from a global generator.
    """
    before = rows._version
    with own_without_draws(rule, "aggregate", rows.device):
        mean = rule.aggregate(rows, weights)
    owner, shape = type(rule).__name__, tuple(rows.shape[1:])
    if not isinstance(mean, Tensor) or mean.shape != rows.shape[1:]:
        got = f"a tensor of shape {tuple(mean.shape)}" if isinstance(mean, Tensor) else type(mean).__name__
        raise ValueError(f"{owner}: 'aggregate' must return a vector of shape {shape}, got {got}")
    if rows._version != before:
        raise ValueError(f"{owner}: 'aggregate' must not change the rows in place; use a new tensor or a clone")
    return mean.to(rows)


def own_without_draws(obj: Aggregation | Attack, method: str, device: torch.device) -> AbstractContextManager[None]:
    """Return a context that refuses draws from global generators in a method of a class of the user."""
    if type(obj).__module__.startswith("fedmos."):
        return nullcontext()
    return refusing_draws(type(obj).__name__, method, device)


def _forged(state: FederatedState, attack: Attack, phase: Phase, update: CohortUpdate, uploads: Vectors) -> Vectors:
    """Return the rows with those that hostile clients upload. Uploads that are no vectors stay."""
    ids, D = update.kept.ids, state.x.shape[0]
    is_hostile = torch.isin(ids, state.hostile)
    if not bool(is_hostile.any()):
        return uploads
    hostile, honest = (mask.nonzero().flatten().to(state.x.device) for mask in (is_hostile, ~is_hostile))
    key = state.task.stream(state.t, ids[is_hostile].to(state.x.device), Purpose.ATTACK)
    found = dict(uploads)
    for number, (name, rows) in enumerate(sorted(uploads.items())):
        if rows.ndim == 2 and rows.shape[1] == D:
            own = rows[hostile]
            others = rows[honest] if len(honest) else own
            with own_without_draws(attack, "forge", rows.device):
                forged = attack.forge(own, others, fold(key, 2 * number + (phase == "prepare")))
            if not isinstance(forged, Tensor) or forged.shape != own.shape:
                got = tuple(forged.shape) if isinstance(forged, Tensor) else type(forged).__name__
                raise ValueError(
                    f"{type(attack).__name__}: 'forge' must return rows of shape {tuple(own.shape)}, got {got}"
                )
            found[name] = rows.index_copy(0, hostile, forged.to(rows))
    return found


def _with_forged(state: FederatedState, phase: Phase, update: CohortUpdate, uploads: Vectors) -> CohortUpdate:
    """Return the update with what the server and the selector see of forged uploads: the updates and their norms."""
    if phase != "train":
        return update
    names = update_names(state.declaration)
    vectors = {name: uploads[name] for name in names if name in uploads}
    if len(vectors) < len(names):  # an upload that no sum contains
        return update
    if update.updates is not None:
        rows = [v.reshape(len(v), -1) for v in vectors.values()]
        update = update._replace(updates=torch.cat(rows, dim=1))
    if "update_norm" in state.reports:
        report = update.report.clone()
        place = torch.isin(update.arrived.ids, update.kept.ids).nonzero().flatten().to(report.device)
        report[1 + state.reports.index("update_norm"), place] = update_norm(vectors).to(report)
        update = update._replace(report=report)
    return update
