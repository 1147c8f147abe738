"""A small task on which engines are tested."""

import numpy as np
import torch
from torch import nn

import fedmos as fm
from fedmos.core.flat_model import FlatModel
from fedmos.core.losses import Loss
from fedmos.engine.task import Task

SIZES = [5, 12, 1, 8]


def task(model: nn.Module | None = None, **how) -> Task:
    """Clients of unequal size whose inputs are their own sample numbers."""
    data = fm.FederatedData.from_arrays(
        [(np.arange(n, dtype=np.float64)[:, None] / 10 + i, np.arange(n) % 3) for i, n in enumerate(SIZES)]
    )
    how = {"local_steps": None, "local_epochs": None, "batch_size": None} | how
    model = FlatModel(model or nn.Linear(1, 3), torch.device("cpu"), torch.float64)
    return Task(model=model, data=data, loss=Loss("cross_entropy"), seed=0, **how)
