"""Gradient inversion: reconstruct the samples of a client from one update."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..algorithm import Algorithm
from ..core.validation import count, integer, require
from ..data.federated import FederatedData
from ..rng import Purpose, stream
from ..rng import normal as normal_numbers
from ..run.api import run
from ..selection.full import Full
from .membership import federation

_OTHERS = 50
"""The number of samples of other clients that a sample is compared with."""


@dataclass(frozen=True)
class Inversion:
    """Samples of a client, and what an attacker reconstructs of them.

    Example:
        >>> x = torch.rand(1, 4)
        >>> fm.leakage.Inversion(x, x, correlation=1.0, others=0.2).correlation
        1.0
    """

    samples: Tensor
    """The samples of the client, as the model gets them."""
    reconstructed: Tensor
    """What the attacker found, in the order of the samples."""
    correlation: float
    """The mean correlation of a sample with its reconstruction; 1 for a perfect one."""
    others: float
    """For comparison: the mean correlation of the samples with samples of the same labels at other clients; NaN if
    there are none."""


def gradient_inversion(
    model: nn.Module,
    data: FederatedData,
    algorithm: Algorithm,
    *,
    client: int = 0,
    samples: int = 1,
    iterations: int = 300,
    seed: int = 0,
    **options: Any,
) -> Inversion:
    """Play one round of one client, and reconstruct its samples from the change of the model.

    The client takes one step on `samples` of its samples. The attacker knows the model, the labels, and the updates of
    all other clients, so that the change of the model is that of this client, with the noise of the option `privacy`.
    It searches for inputs whose gradient has the direction of the change (Geiping et al., NeurIPS 2020).

    Args:
        model: As in `fm.run`.
        data: The federation. Targets are class labels, and the model gets floating-point inputs.
        algorithm: As in `fm.run`.
        client: The client.
        samples: The number of its samples.
        iterations: The number of steps of the attacker's search.
        seed: Seed of the run and of the attacker's first guess.
        options: Other arguments of `fm.run`, for example `privacy`.

    Raises:
        ValueError: If a value is out of range, inputs are not floating-point numbers, or targets are not class labels.

    Example:
        >>> found = fm.leakage.gradient_inversion(model, data, fm.FedAvg(lr=0.1), iterations=50)
        >>> found.reconstructed.shape == found.samples.shape
        True
    """
    require("gradient_inversion", "data", data, federation)
    require("gradient_inversion", "samples", samples, count)
    require("gradient_inversion", "iterations", iterations, count)
    require("gradient_inversion", "client", client, integer)
    x, y = data.stored(client)
    x, y = x[:samples], y[:samples]
    if y.ndim != 1 or y.is_floating_point() or not data.inputs(x).is_floating_point():
        raise ValueError(
            "Cannot invert gradients because inputs are not numbers, or targets are not one class label for each sample"
        )
    alone = FederatedData.from_arrays([(x.numpy(), y.numpy())]).declare(normalize=data.normalize)
    given = {"rounds": 1, "local_steps": 1, "batch_size": len(y), "seed": seed} | options
    result = run(model, alone, algorithm, Full(), **given)
    seen = alone.inputs(x)
    found = _search(model, result.params, seen.shape, y.long(), iterations, seed)
    others = zip(seen, _others(data, client, y), strict=True)
    alike = torch.stack([_correlation(one.expand_as(v), v).mean() for one, v in others])
    return Inversion(seen, found, float(_correlation(seen, found).mean()), float(alike.nanmean()))


def _others(data: FederatedData, client: int, labels: Tensor) -> list[Tensor]:
    """Return for each label some samples of other clients that have it."""
    entries = torch.arange(int(data.offsets[-1]))
    entries = entries[(entries < data.offsets[client]) | (entries >= data.offsets[client + 1])]
    rows = entries if data.index is None else data.index[entries]
    return [data.inputs(data.x[rows[data.y[rows] == label][:_OTHERS]]) for label in labels]


def _search(model: nn.Module, trained: Tensor, shape: torch.Size, labels: Tensor, iterations: int, seed: int) -> Tensor:
    """Return inputs whose gradient at the model has the direction of its change."""
    model = copy.deepcopy(model).eval()
    parameters = {name: p.detach().requires_grad_() for name, p in model.named_parameters() if p.requires_grad}
    before = torch.cat([p.detach().flatten() for p in parameters.values()])
    change = trained.to(before) - before
    guess = normal_numbers(stream(seed, 0, 0, Purpose.DIAGNOSTICS), shape.numel()).view(shape).to(change.dtype)
    guess.requires_grad_()
    optimizer = torch.optim.Adam([guess], lr=0.1)
    with torch.enable_grad():
        for _ in range(iterations):
            outputs = torch.func.functional_call(model, parameters, (guess,))
            loss = F.cross_entropy(outputs, labels)
            gradients = torch.autograd.grad(loss, list(parameters.values()), create_graph=True)
            flat = torch.cat([g.flatten() for g in gradients])
            (guess.grad,) = torch.autograd.grad(1 + F.cosine_similarity(flat, change, dim=0), [guess])
            optimizer.step()
    return guess.detach()


def _correlation(one: Tensor, other: Tensor) -> Tensor:
    """Return the correlation of each sample with another."""
    a, b = (v.flatten(1) - v.flatten(1).mean(1, keepdim=True) for v in (one.double(), other.double()))
    return F.cosine_similarity(a, b, dim=1)
