"""The engine's task, built from the options of a run."""

from __future__ import annotations

import gc
import logging
from dataclasses import replace
from functools import cache

import torch
from torch import Tensor

from ..core.flat_model import FlatModel
from ..core.formatting import one_line
from ..core.input_layout import InputLayout
from ..core.losses import PADDING, Loss
from ..data.federated import FederatedData
from ..engine.declaration import check_declaration
from ..engine.inference import evaluation_mode, with_accepted_inputs
from ..engine.malloc import keep_memory, return_memory
from ..engine.task import DeviceCache, Task, on_device
from ..engine.task_check import check_fit
from ..local.chain import radius_of
from .batchnorm import conversion_note
from .preflight import check_parts, check_precision, find_device
from .spec import RunSpec

_log = logging.getLogger("fedmos")

_LARGE = 2**20
"""Parameters from which on a server returns freed memory to the system."""


def build_task(
    spec: RunSpec,
    device: torch.device,
    data: FederatedData,
    origin: tuple[Tensor, Tensor] | None = None,
    device_cache: DeviceCache | None = None,
    shares: bool = False,
) -> Task:
    """Combine the model and the options of local training with data that is on the device already.

    `origin` holds the seed and the number of each client where `data` is a part of the federation. Frozen parameters
    found in `device_cache` are not copied again, and with `shares` no parameters are; see `FlatModel`.
    """
    task = Task(
        model=flat_model(spec, device, data.layout, device_cache, shares),
        data=data,
        loss=Loss(spec.loss),
        seed=spec.seed,
        local_steps=spec.local_steps,
        local_epochs=spec.local_epochs,
        batch_size=spec.batch_size,
        weight_decay=spec.weight_decay,
        clip=spec.clip,
        sam_radius=radius_of(spec.local),
        origin=origin,
    )
    targets = [values for _, values in data.all_targets()]
    task = with_accepted_inputs(task)
    return replace(task, loss=Loss(spec.loss, _class_weights(spec, task)).to(device, spec.dtype, *targets))


def flat_model(
    spec: RunSpec,
    device: torch.device,
    layout: InputLayout | None = None,
    copies: DeviceCache | None = None,
    shares: bool = False,
) -> FlatModel:
    """Return the model of a run as a function of its parameters."""
    how = spec.dtype, spec.precision, spec.outputs, layout, copies, spec.has_client_statistics
    return FlatModel(spec.trained_model, device, *how, spec.personal_names, shares)


@cache
def _warn_of_initial_values(names: str) -> None:
    """Warn, once in a process, that metrics of the global model say little where parameters are personal."""
    _log.warning(
        "personal: metrics of the global model are computed with the initial values of %s, which only clients train; "
        "use evaluate_clients= for personal_accuracy, that of the clients' own models",
        names,
    )


@cache
def _warn_of_initial_model(algorithm: str) -> None:
    """Warn, once in a process, that metrics of the global model say nothing where clients send no updates."""
    _log.warning(
        "%s: accuracy and losses are those of the initial model, because clients send nothing; use evaluate_clients= "
        "for personal_accuracy, that of the clients' own models",
        algorithm,
    )


def _class_weights(spec: RunSpec, task: Task) -> Tensor | None:
    """Return the weights of the classes of `cross_entropy`, or of the positive targets of `bce`."""
    if spec.class_weights is None:
        return None
    targets = task.data.y if task.data.index is None else task.data.y[task.data.index]
    if spec.loss == "bce":
        return _balanced_positive(targets).to(spec.dtype)
    if spec.class_weights == "balanced":
        weights = _balanced(targets)
    else:
        weights = torch.tensor(spec.class_weights, dtype=torch.float64)
    with evaluation_mode(task), torch.no_grad():
        inputs, _ = task.samples(torch.zeros(task.model.least_rows, dtype=torch.int64, device=task.model.device))
        classes = task.model(task.model.initial(), inputs).shape[1]
    if spec.class_weights != "balanced" and len(weights) != classes:
        raise ValueError(
            f"run: 'class_weights' must have a weight for each of the model's {classes} outputs, got {len(weights)}"
        )
    padded = torch.zeros(max(classes, len(weights)), dtype=spec.dtype)
    padded[: len(weights)] = weights
    return padded


def _balanced(targets: Tensor) -> Tensor:
    """Return n / (classes · n_c) for every class c that occurs; 0 for others."""
    counts = torch.bincount(targets[targets != PADDING].to(torch.int64).flatten()).to("cpu", torch.float64)
    present = counts > 0
    return torch.where(present, counts.sum() / (present.sum() * counts.where(present, 1)), 0)


def _balanced_positive(targets: Tensor) -> Tensor:
    """Return the ratio of negative to positive targets of each output."""
    positive = (targets > 0.5).to(torch.float64).mean(0)
    if bool(((positive == 0) | (positive == 1)).any()):
        raise ValueError("Cannot balance the classes because an output has targets of one class only")
    return (1 - positive) / positive


def _free_earlier_runs(device: torch.device) -> None:
    """Free the GPU memory of runs that have ended. Their objects are in cycles, which Python keeps for a while."""
    if device.type == "cuda":
        gc.collect()


def prepare_task(spec: RunSpec, device_cache: DeviceCache | None, served: bool = False) -> Task:
    """Move model and data to the device, and check that the options fit together and the model fits the data.

    Args:
        spec: the options of the run.
        device_cache: samples and frozen parameters that other runs have copied to the device.
        served: whether clients elsewhere train, and nothing changes the given model.
    """
    device = find_device(spec.device)
    _free_earlier_runs(device)
    check_precision(spec.precision, spec.dtype, device)
    check_declaration(spec.composed_algorithm)
    check_parts(spec)
    if served and sum(p.numel() for p in spec.model.parameters()) >= _LARGE:
        return_memory()
    elif device.type == "cpu":
        keep_memory()
    if (note := conversion_note(spec.model, spec.batchnorm)) is not None:
        _log.warning(note)
    if not spec.algorithm.up and spec.evaluate_clients is None:
        _warn_of_initial_model(type(spec.algorithm).__name__)
    if spec.personal_names and spec.evaluate_clients is None:
        _warn_of_initial_values(one_line(", ".join(spec.personal_names), 80))
    data = on_device(spec.data, device, spec.dtype, device_cache)
    task = build_task(spec, device, data, device_cache=device_cache, shares=served)
    check_fit(task)
    return task
