"""What a run records about itself."""

from __future__ import annotations

import platform
from typing import Any

import torch

from ..core.version import __version__
from ..engine.task import Task
from .spec import RunSpec


def describe_run(spec: RunSpec, task: Task) -> dict[str, Any]:
    """Describe a run by its options, its model and its data."""
    info = spec.recorded() | {
        "clients": len(spec.data),
        "parameters": task.model.size,
        "device": str(task.model.device),
        "versions": {"fedmos": __version__, "torch": str(torch.__version__), "python": platform.python_version()},
    }
    if spec.out is not None:
        info |= {"model": task.model.fingerprint(), "data": spec.data.fingerprint()}
    return info
