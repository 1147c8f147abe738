"""`fm.Diagnostics`: measure the quantities of the papers' theorems during a run."""

from __future__ import annotations

import math
from dataclasses import replace

import torch
from torch import Tensor

from ..core.callback import Callback
from ..core.history import Record
from ..core.validation import count, require
from ..engine.cohort import Cohort
from ..engine.gradients import LocalGradient
from ..engine.inference import client_losses, evaluation_mode, samples_at_once
from ..engine.state import FederatedState
from ..engine.training import dry_run
from ..rng import Purpose, stream, uniform

_SAMPLES = 8192
"""Samples of which the gradient of all clients is estimated, if there are more."""

MEASURES = {
    "drift": "ε_t, (1/KM) Σ_i Σ_k ‖y_i^k − x‖² (FedCM)",
    "dissimilarity": "B² = Σ p_i ‖∇f_i‖² / ‖∇f‖² (FedProx); 1 if clients agree",
    "gradient_spread": "Σ p_i ‖∇f_i − ∇f‖² (GHBM's G², FedCM's σ_g²)",
    "update_norm": "mean ‖Δ_i‖ of the clients' updates",
    "update_variance": "of the mean update: mean ‖Δ_i − Δ̄‖² / (M − 1)",
    "alignment": "mean cosine between a client's update and the server's last step",
    "descent": "cosine between the server's last step and −∇f",
    "momentum_deviation": "‖m̃ − ∇f‖² / ‖∇f‖², server momentum against all clients' gradient (GHBM, Lemmas 4.5-4.7)",
    "selection_skew": "ρ: the cohort's mean loss divided by that of all clients (Power-of-Choice, F* = 0)",
}
"""The measures and their definitions."""


class Diagnostics(Callback):
    """Callback that adds the measures of `MEASURES` to `record.diagnostics`.

    After a measured round, clients of its cohort repeat the local training of the next round from the new model. The
    run itself does not change, to the bit. ∇f_i is a client's gradient on all its data (clipped and with weight decay,
    as in training), ∇f the mean over those clients by importance. Measures that a round does not have are left out,
    e.g. the skew if the round is not evaluated.

    For `momentum_deviation`, ∇f is the gradient of all clients: over all training samples or, if there are more than
    8,192, over as many drawn evenly by importance; in evaluation mode, with weight decay and without clipping. m̃ is the
    algorithm's `gradient_estimate`: the server's momentum scaled to a mean of gradients, so that it converges to a
    gradient that stays constant. GHBM's lemmas bound the parts of the distance: noise and drift (4.6), gradients of
    past models (4.5), and clients that did not take part (4.7).

    Args:
        every: Measure after every so many rounds.
        clients: Clients of the cohort to measure, at most.

    Raises:
        ValueError: If an argument is not an integer ≥ 1.

    Example:
        >>> watch = fm.Diagnostics(every=2, clients=5)
        >>> result = fm.run(model, data, fm.FedAvg(lr=0.1), fm.Uniform(m=5), rounds=2, local_steps=2, callbacks=[watch])
        >>> result.history[-1].diagnostics["dissimilarity"] > 1
        True
    """

    def __init__(self, every: int = 10, clients: int = 20) -> None:
        require("Diagnostics", "every", every, count)
        require("Diagnostics", "clients", clients, count)
        self.every, self.clients = every, clients

    def diagnosed(self, record: Record, state: FederatedState, before: Tensor) -> Record:
        """Return the record of a round, with diagnostics if the round is to be measured.

        Args:
            record: The record of the round.
            state: The federation after the round.
            before: The model before the round.
        """
        if record.round % self.every or not record.cohort:
            return record
        found = self._measure(record, state, state.x - before)
        return replace(record, diagnostics={name: v for name, v in found.items() if math.isfinite(v)})

    @torch.no_grad()
    def _measure(self, record: Record, state: FederatedState, step: Tensor) -> dict[str, float]:
        M = min(self.clients, len(record.cohort))
        some = torch.linspace(0, len(record.cohort) - 1, M).long()
        ids, weights = torch.tensor(record.cohort)[some], torch.tensor(record.weights, dtype=torch.float64)[some]
        updates, gradients, drift = _local_updates(state, ids, weights)
        p = state.task.data.importance[ids].to(gradients)
        p = p / p.sum() if float(p.sum()) > 0 else torch.full_like(p, 1 / M)
        mean, norms = p @ gradients, (gradients**2).sum(1)
        found = {
            "drift": drift,
            "dissimilarity": float(p @ norms / (mean**2).sum()),
            "gradient_spread": float(p @ ((gradients - mean) ** 2).sum(1)),
            "update_norm": float(updates.norm(dim=1).mean()),
            "alignment": float(_cosine(updates, step.to(updates)).mean()),
            "descent": float(_cosine(-mean, step.to(mean))),
        }
        uniform = state.task.loss.uniform
        if uniform and (estimate := state.gradient_estimate(Cohort.of(ids, weights, state.task.data))) is not None:
            true = _full_gradient(state)
            found["momentum_deviation"] = float(((estimate.to(true) - true) ** 2).sum() / (true**2).sum())
        if M > 1:
            found["update_variance"] = float(((updates - updates.mean(0)) ** 2).sum(1).mean() / (M - 1))
        if record.train_loss is not None and record.train_loss > 0 and float(weights.sum()) > 0:
            positions = [torch.arange(int(n)) for n in state.task.data.sizes[ids]]
            losses, _ = client_losses(state.task, state.x, ids, positions)
            found["selection_skew"] = float(weights @ losses / weights.sum()) / record.train_loss
        return found


def _local_updates(state: FederatedState, ids: Tensor, weights: Tensor) -> tuple[Tensor, Tensor, float]:
    """Return clients' updates and gradients at x, (M, D) each, float64, and the mean squared distance from x."""
    x, distance, steps = state.x, 0.0, 0
    updates: dict[int, Tensor] = {}
    gradients: dict[int, Tensor] = {}

    def observe(gradient: LocalGradient, k: int, y: Tensor, y_next: Tensor) -> None:
        nonlocal distance, steps
        chunk, M = gradient.chunk.ids.tolist(), len(gradient.chunk.ids)
        active = gradient.active(k).expand(M)
        distance += float((((gradient.unrows(y) - x) ** 2).sum(1).to(torch.float64) * active).sum())
        steps += int(active.sum())
        updates.update(zip(chunk, (gradient.unrows(y_next) - x).to(torch.float64), strict=True))
        if k == 0:
            own = gradient.unrows(gradient.exact(gradient.start(x)))
            gradients.update(zip(chunk, own.to(torch.float64), strict=True))

    dry_run(state, Cohort.of(ids, weights, state.task.data), observe)
    order = ids.tolist()
    return (
        torch.stack([updates[i] for i in order]),
        torch.stack([gradients[i] for i in order]),
        distance / max(1, steps),
    )


def _full_gradient(state: FederatedState) -> Tensor:
    """Return ∇f(x), (D,), float64, over all training samples or over `_SAMPLES` drawn evenly by importance."""
    task, x, data = state.task, state.x, state.task.data
    share = (data.importance / data.sizes).repeat_interleave(data.sizes)
    entries = torch.arange(len(share))
    if len(share) > _SAMPLES:
        start = uniform(stream(task.seed, state.t, 0, Purpose.DIAGNOSTICS))
        points = (torch.arange(_SAMPLES) + start) / _SAMPLES * float(share.sum())
        entries = torch.searchsorted(share.cumsum(0), points, right=True).clamp(max=len(share) - 1)
        share = torch.full((_SAMPLES,), 1 / _SAMPLES, dtype=torch.float64)
    total = task.weight_decay * x.to(torch.float64)
    with evaluation_mode(task):
        width = max(1, samples_at_once(task, x) // 4)
        for some, w in zip(entries.split(width), share.split(width), strict=True):
            inputs, targets = task.samples(some.to(x.device))
            with torch.enable_grad():
                y = x.detach().clone().requires_grad_()
                losses = task.loss.each_or_loop(task.model(y, inputs), targets)
                (gradient,) = torch.autograd.grad((losses * w.to(losses)).sum(), y)
            total = total + gradient
    return total


def _cosine(a: Tensor, b: Tensor) -> Tensor:
    """Return the cosine of two vectors, or of every row of a with b; nan for a zero vector."""
    cosine: Tensor = (a @ b) / (a.norm(dim=-1) * b.norm())
    return cosine
