"""Heterogeneity of the clients at a model: the constants of the papers' assumptions, and drift."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.func import grad, vmap

from ...algorithm import Algorithm
from ...algorithms import FedAvg
from ...core.flat_model import FlatModel
from ...core.losses import Loss, LossFunction
from ...core.module_kind import torch_module
from ...core.validation import LARGE, Rule, count, integer, none, one_of, positive, require
from ...data.federated import FederatedData
from ...engine.client_store import ClientStore
from ...engine.cohort import Cohort
from ...engine.execution_plan import choose_plan
from ...engine.gradients import LocalGradient
from ...engine.inference import evaluation_mode, with_accepted_inputs
from ...engine.local_backend import LocalBackend
from ...engine.state import FederatedState, initial_client_state
from ...engine.task import Task, on_device
from ...engine.task_check import check_fit
from ...engine.training import dry_run
from ...rng import Purpose, choose, stream
from ...selection import Full

_NUMBERS_AT_ONCE = 2**24
"""Size of the chunks, in numbers, in which per-sample gradients are computed."""


@dataclass(frozen=True, kw_only=True)
class Heterogeneity:
    """The left-hand sides of the papers' bounds at one model. ∇f_i is client i's gradient on all its data.

    For a bound that must hold for each client, the value is the maximum over clients; for a bound on a mean, the mean.

    Example:
        >>> found = fm.analysis.heterogeneity(model, data, lr=0.1, local_steps=5, batch_size=8)
        >>> found.clients
        10
    """

    clients: int
    """Number of clients measured."""
    sigma2: float
    """σ²: max_i E‖g_i(ξ) − ∇f_i‖², the variance of a mini-batch gradient (FedMoS Assumption 2, FedCM's σ_l² in its
    Assumption 4, GHBM 4.1, Power-of-Choice 3.3)."""
    zeta2: float
    """ζ²: max_i ‖∇f_i − ∇f‖² with ∇f = Σ p_i ∇f_i (FedMoS Assumption 3, which prints the norm without its square)."""
    sigma_g2: float
    """σ_g²: the mean over clients of ‖∇f_i − ∇f‖², ∇f their plain mean (FedCM Assumption 5)."""
    G2: float
    """G² of GHBM's Assumption 4.3: the same quantity as σ_g²."""
    gradient2: float
    """‖∇f‖², which FedCM's Assumption 3 bounds by its own G²."""
    second_moment: float
    """max_i E‖g_i(ξ)‖², which Power-of-Choice's Assumption 3.4 bounds by its own G²."""
    dissimilarity: float
    """Σ p_i ‖∇f_i‖² / ‖∇f‖²: FedProx's B²; one if clients agree."""
    drift: float | None
    """ε_t as FedCM defines it, (1/KN) Σ_i Σ_k ‖y_i^k − x‖² over k = 0 … K−1; None unless a step size was given."""
    drift_shadow: float | None
    """ε_t as GHBM defines it, (1/KN) Σ_i Σ_k ‖y_i^k − θ^k‖² over k = 1 … K, where θ takes the clients' mean step of
    plain SGD at θ itself."""


def heterogeneity(
    model: nn.Module,
    data: FederatedData,
    *,
    batch_size: int | None = 1,
    algorithm: Algorithm | None = None,
    lr: float | None = None,
    local_steps: int = 5,
    clients: int | Sequence[int] | None = 100,
    loss: str | LossFunction = "cross_entropy",
    seed: int = 0,
    device: str | torch.device = "cpu",
    dtype: torch.dtype = torch.float32,
) -> Heterogeneity:
    """Measure the heterogeneity of clients at the weights of `model`.

    Gradients are computed in evaluation mode and without augmentation; drift as in a run.

    Args:
        model: A module; its current weights are the point of measurement.
        data: The federation.
        batch_size: Size of the mini-batches, drawn without replacement; None for all local data, for which σ² is zero.
        algorithm: The algorithm of whose first round drift is measured.
        lr: Step size of FedAvg, in place of `algorithm`. If both are None, drift is not measured.
        local_steps: Local steps K of the round.
        clients: Number of clients to measure, drawn at random; a list of clients; or None for all. Unless it is all,
            importances are scaled to sum to one over these clients.
        loss: As in `fm.run`.
        seed: Seed of the draws.
        device: Where to compute.
        dtype: torch.float32 or torch.float64.

    Returns:
        A `Heterogeneity`.

    Raises:
        ValueError: If an argument is invalid, or the model does not fit the data.

    Example:
        >>> found = fm.analysis.heterogeneity(model, data, batch_size=10, lr=0.1, local_steps=5)
        >>> found.dissimilarity > 1
        True
    """
    require("heterogeneity", "model", model, torch_module)
    require("heterogeneity", "data", data, Rule("a fedmos.FederatedData", lambda v: isinstance(v, FederatedData)))
    require(
        "heterogeneity", "algorithm", algorithm, Rule("a fedmos.Algorithm", lambda v: isinstance(v, Algorithm)) | none
    )
    require("heterogeneity", "device", device, Rule("a device of this machine", _is_device))
    require("heterogeneity", "batch_size", batch_size, count | none)
    require("heterogeneity", "local_steps", local_steps, count)
    require("heterogeneity", "lr", lr, positive.up_to(LARGE) | none)
    require("heterogeneity", "seed", seed, integer)
    require("heterogeneity", "dtype", dtype, one_of(torch.float32, torch.float64))
    if algorithm is not None and lr is not None:
        raise ValueError("heterogeneity: 'lr' must be None where an algorithm brings its own")
    if lr is not None:
        algorithm = FedAvg(lr=lr)
    device = torch.device(device)
    task = Task(
        model=FlatModel(model, device, dtype, layout=data.layout),
        data=on_device(data, device, dtype),
        loss=Loss(loss),
        seed=seed,
        local_steps=local_steps,
        local_epochs=None,
        batch_size=batch_size,
    )
    task = with_accepted_inputs(task)
    check_fit(task)
    if not task.loss.uniform:
        raise ValueError(
            f"Cannot measure heterogeneity because {task.loss.name} is no mean over samples; use another loss"
        )
    ids = _measured_clients(clients, len(data), seed)
    with torch.no_grad():
        own, squares = _gradients(task, ids)
        drift = (None, None) if algorithm is None else _drift(task, algorithm, ids)
    return _measures(task, ids, own, squares, *drift)


def _is_device(v: object) -> bool:
    try:
        return isinstance(v, str | torch.device) and torch.zeros(1, device=v).item() == 0  # fails on a "meta" device
    except (RuntimeError, AssertionError):
        return False


def _measured_clients(clients: int | Sequence[int] | None, N: int, seed: int) -> Tensor:
    numbers = Rule(
        f"a number of clients, clients from 0 to {N - 1}, or None",
        lambda v: (
            v is None
            or count.test(v)
            or (
                hasattr(v, "__len__")
                and getattr(v, "ndim", 1) == 1
                and len(v) > 0
                and all(integer.test(i) and 0 <= i < N for i in v)
            )
        ),
    )
    require("heterogeneity", "clients", clients, numbers)
    if clients is None:
        return torch.arange(N)
    if count.test(clients):
        m = min(int(clients), N)  # type: ignore[arg-type]
        return choose(stream(seed, 0, 0, Purpose.PROBE), N, m).sort().values
    return torch.tensor(sorted({int(i) for i in clients}))  # type: ignore[union-attr]


def _gradients(task: Task, ids: Tensor) -> tuple[Tensor, Tensor]:
    """Return each client's gradient, (M, D), and the mean of its samples' squared gradient norms, (M,), float64."""
    x, model = task.model.initial(), task.model

    def one(y: Tensor, inputs: Tensor, target: Tensor) -> Tensor:
        return task.loss.mean(model(y, inputs[None]), target[None])

    def each_in_turn(y: Tensor, inputs: Tensor, targets: Tensor) -> Tensor:
        return torch.stack([grad(one)(y, i, t) for i, t in zip(inputs, targets, strict=True)])

    per_sample = vmap(grad(one), in_dims=(None, 0, 0))
    own, squares = [], []
    at_once = max(1, _NUMBERS_AT_ONCE // model.size)
    with evaluation_mode(task):
        for i in ids.tolist():
            first, last = int(task.data.offsets[i]), int(task.data.offsets[i + 1])
            total, square = torch.zeros(model.size, dtype=torch.float64, device=x.device), 0.0
            for part in torch.arange(first, last, device=x.device).split(at_once):
                inputs, targets = task.samples(part)
                try:
                    g = per_sample(x, inputs, targets)
                except RuntimeError:  # a module that cannot be vectorised
                    g = each_in_turn(x, inputs, targets)
                g = g.to(torch.float64)
                total += g.sum(0)
                square += float((g**2).sum())
            own.append(total / (last - first))
            squares.append(square / (last - first))
    return torch.stack(own), torch.tensor(squares, dtype=torch.float64, device=x.device)


def _measures(
    task: Task, ids: Tensor, own: Tensor, squares: Tensor, drift: float | None, shadow: float | None
) -> Heterogeneity:
    n = task.data.sizes[ids].to(own)
    p = task.data.importance[ids].to(own)
    p = p / p.sum() if float(p.sum()) > 0 else torch.full_like(p, 1 / len(p))
    norms = (own**2).sum(1)
    spread = (squares - norms).clamp(min=0)  # variance of the gradient of one sample
    B = n if task.batch_size is None else n.clamp(max=task.batch_size)
    variance = spread / B * (n - B) / (n - 1).clamp(min=1)  # without replacement
    weighted = p @ own
    deviation = ((own - own.mean(0)) ** 2).sum(1).mean()
    total = (weighted**2).sum()
    return Heterogeneity(
        clients=len(ids),
        sigma2=float(variance.max()),
        zeta2=float(((own - weighted) ** 2).sum(1).max()),
        sigma_g2=float(deviation),
        G2=float(deviation),
        gradient2=float(total),
        second_moment=float((variance + norms).max()),
        dissimilarity=float(p @ norms / total) if float(total) > 0 else 1.0 if float(p @ norms) == 0 else math.inf,
        drift=drift,
        drift_shadow=shadow,
    )


def _drift(task: Task, algorithm: Algorithm, ids: Tensor) -> tuple[float, float]:
    """Return FedCM's and GHBM's ε of the first round, over clients `ids`."""
    K = task.local_steps or 1
    clients = ClientStore(initial_client_state(algorithm, task.model), len(task.data))
    backend = LocalBackend(task, algorithm, choose_plan("auto", task, len(ids)), clients=clients)
    run = FederatedState(task=task, algorithm=algorithm, selector=Full(), backend=backend)
    task.model.training_mode()
    # The shadow sequence: SGD with the mean gradient of all clients at one common point.
    shadow = [run.x]
    own = [backend.executor.gradient(chunk, run.t) for chunk in backend.executor.chunks(ids)]
    for k in range(K):
        mean = torch.zeros_like(run.x)
        for gradient in own:
            gradient.k = k
            mean += gradient.unrows(gradient(gradient.start(shadow[-1]))).sum(0) / len(ids)
        shadow.append(shadow[-1] - algorithm.lr * mean)
    distance = torch.zeros(2, dtype=torch.float64)

    def observe(gradient: LocalGradient, k: int, y: Tensor, y_next: Tensor) -> None:
        distance[0] += float(((y - run.x) ** 2).sum())
        distance[1] += float(((y_next - shadow[k + 1]) ** 2).sum())

    dry_run(run, Cohort.of(ids, task.data.importance[ids], task.data), observe)
    drift, drift_shadow = (distance / (len(ids) * K)).tolist()
    return drift, drift_shadow
