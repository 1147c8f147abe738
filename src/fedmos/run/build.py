"""The engine's task, built from the options of a run."""

from __future__ import annotations

import torch
from torch import Tensor

from ..core.flat_model import FlatModel
from ..core.losses import Loss
from ..data.federated import FederatedData
from ..engine.inference import with_accepted_inputs
from ..engine.task import Task
from .spec import RunSpec


def build_task(
    spec: RunSpec, device: torch.device, data: FederatedData, origin: tuple[Tensor, Tensor] | None = None
) -> Task:
    """Combine the model and the options of local training with data that is on the device already.

    `origin` holds the seed and the number of each client where `data` is a part of the federation.
    """
    task = Task(
        model=FlatModel(spec.model, device, spec.dtype, spec.precision, spec.outputs),
        data=data,
        loss=Loss(spec.loss),
        seed=spec.seed,
        local_steps=spec.local_steps,
        local_epochs=spec.local_epochs,
        batch_size=spec.batch_size,
        weight_decay=spec.weight_decay,
        clip=spec.clip,
        origin=origin,
    )
    return with_accepted_inputs(task)
