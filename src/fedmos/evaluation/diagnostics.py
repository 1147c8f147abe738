"""What the papers' theorems speak of, measured while a run goes on."""

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
from ..engine.round import dry_run
from ..engine.state import FederatedState
from ..rng import Purpose, stream, uniform

_SAMPLES = 8192

MEASURES = {
    "drift": "ε_t, (1/KM) Σ_i Σ_k ‖y_i^k − x‖² (FedCM)",
    "dissimilarity": "B² = Σ p_i ‖∇f_i‖² / ‖∇f‖² (FedProx); 1 where clients agree",
    "gradient_spread": "Σ p_i ‖∇f_i − ∇f‖² (GHBM's G², FedCM's σ_g²)",
    "update_norm": "mean ‖Δ_i‖ of the clients' updates",
    "update_variance": "of the mean update: mean ‖Δ_i − Δ̄‖² / (M − 1)",
    "alignment": "mean cosine between a client's update and the server's last step",
    "descent": "cosine between the server's last step and −∇f",
    "momentum_deviation": "‖m̃ − ∇f‖² / ‖∇f‖², the server's momentum against everyone's gradient (GHBM, Lemmas 4.5-4.7)",
    "selection_skew": "ρ: the cohort's mean loss over everyone's (Power-of-Choice, F* = 0)",
}
"""What is measured, in words."""


class Diagnostics(Callback):
    """Pass it to `fm.run` as a callback: every so many rounds, `record.diagnostics` has the numbers of `MEASURES`.

    After such a round, at most `clients` of its cohort do the next round's local work once more, for show, from the
    new model: the run stays as it is, to the bit. ∇f_i is a client's gradient on all its data (clipped, with weight
    decay, as in training), ∇f its mean over those clients by importance. What does not exist in a round is left out,
    as the skew in rounds that are not evaluated.

    For the momentum's deviation ∇f is everyone's: over all training samples or, of many, over 8,192 drawn evenly by
    importance, in evaluation mode, with weight decay and without clipping. m̃ is the algorithm's `gradient_estimate`:
    the server's momentum scaled to a mean of gradients, so that a gradient that stays the same is met exactly in the
    end. GHBM's lemmas bound the parts of that distance: noise and drift (4.6), gradients of past models (4.5), clients
    that did not take part (4.7).
    """

    def __init__(self, every: int = 10, clients: int = 20) -> None:
        require("Diagnostics", "every", every, count)
        require("Diagnostics", "clients", clients, count)
        self.every, self.clients = every, clients

    def diagnosed(self, record: Record, simulation: FederatedState, before: Tensor) -> Record:
        """The record of the round just played from the model `before`, with diagnostics if it is time for them."""
        if record.round % self.every or not record.cohort:
            return record
        found = self._measure(record, simulation, simulation.x - before)
        return replace(record, diagnostics={name: v for name, v in found.items() if math.isfinite(v)})

    @torch.no_grad()
    def _measure(self, record: Record, simulation: FederatedState, step: Tensor) -> dict[str, float]:
        M = min(self.clients, len(record.cohort))
        some = torch.linspace(0, len(record.cohort) - 1, M).long()
        ids, weights = torch.tensor(record.cohort)[some], torch.tensor(record.weights, dtype=torch.float64)[some]
        updates, gradients, drift = _rehearsed(simulation, ids, weights)
        p = simulation.task.data.importance[ids].to(gradients)
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
        if (estimate := simulation.gradient_estimate(Cohort.of(ids, weights, simulation.task.data))) is not None:
            true = _everyones_gradient(simulation)
            found["momentum_deviation"] = float(((estimate.to(true) - true) ** 2).sum() / (true**2).sum())
        if M > 1:
            found["update_variance"] = float(((updates - updates.mean(0)) ** 2).sum(1).mean() / (M - 1))
        if record.train_loss is not None and record.train_loss > 0 and float(weights.sum()) > 0:
            positions = [torch.arange(int(n)) for n in simulation.task.data.sizes[ids]]
            losses, _ = client_losses(simulation.task, simulation.x, ids, positions)
            found["selection_skew"] = float(weights @ losses / weights.sum()) / record.train_loss
        return found


def _rehearsed(simulation: FederatedState, ids: Tensor, weights: Tensor) -> tuple[Tensor, Tensor, float]:
    """Clients' updates and gradients at x, (M, D) each, float64, and how far they are from x on their way."""
    x, away, steps = simulation.x, 0.0, 0
    updates: dict[int, Tensor] = {}
    gradients: dict[int, Tensor] = {}

    def watch(gradient: LocalGradient, k: int, y: Tensor, y_next: Tensor) -> None:
        nonlocal away, steps
        who, M = gradient.chunk.ids.tolist(), len(gradient.chunk.ids)
        active = gradient.active(k).expand(M)
        away += float((((gradient.unrows(y, M) - x) ** 2).sum(1).to(torch.float64) * active).sum())
        steps += int(active.sum())
        updates.update(zip(who, (gradient.unrows(y_next, M) - x).to(torch.float64), strict=True))
        if k == 0:
            own = gradient.unrows(gradient.full(gradient.start(x)), M)
            gradients.update(zip(who, own.to(torch.float64), strict=True))

    dry_run(simulation, Cohort.of(ids, weights, simulation.task.data), watch)
    order = ids.tolist()
    return torch.stack([updates[i] for i in order]), torch.stack([gradients[i] for i in order]), away / max(1, steps)


def _everyones_gradient(simulation: FederatedState) -> Tensor:
    """∇f(x), (D,), float64: of all training samples, or of some, drawn evenly by importance."""
    task, x, data = simulation.task, simulation.x, simulation.task.data
    share = (data.importance / data.sizes).repeat_interleave(data.sizes)
    entries = torch.arange(len(share))
    if len(share) > _SAMPLES:
        start = uniform(stream(task.seed, simulation.t, 0, Purpose.DIAGNOSTICS))
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
    """Of vectors, or of rows with a vector; nan where one is zero."""
    cosine: Tensor = (a @ b) / (a.norm(dim=-1) * b.norm())
    return cosine
