"""Engines: how a cohort's local work is computed. What is computed, a round, is in `rounds`."""

from __future__ import annotations

import logging

import torch

from .batched import Batched
from .gradients import LocalGradient
from .loop import Loop
from .task import Task

_log = logging.getLogger("fedmos")

_SMALL = 200_000
"""Parameters: on a CPU, models up to this size are faster vectorised, larger ones usually are not."""


def choose_engine(name: str, task: Task) -> type[LocalGradient]:
    """The engine of that name; "auto" is the vectorised one for small models and on a GPU, if the model allows it."""
    if name == "loop":
        return Loop
    if name == "auto" and task.model.size > _SMALL and task.model.device.type == "cpu":
        return Loop
    problem = _why_not_vectorised(task)
    if problem is None:
        return Batched
    if name == "batched":
        raise ValueError(f"Cannot vectorise the model or the loss because {problem}; use engine='loop'")
    _log.warning("Training client by client because the model or the loss cannot be vectorised: %s", problem)
    return Loop


def _why_not_vectorised(task: Task) -> str | None:
    """Try one gradient on one sample of the first clients."""
    try:
        with torch.no_grad():
            Batched(task, torch.arange(min(2, len(task.data))), 0).batch(task.model.initial(), 1)
    except Exception as error:  # a user's module may raise anything here
        return str(error).strip().split("\n")[0]
    return None
