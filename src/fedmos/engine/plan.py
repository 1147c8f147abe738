"""Which engine to use."""

from __future__ import annotations

import logging

import torch

from .batched import Batched
from .batches import Chunk
from .task import Task
from .work import Plan

_log = logging.getLogger("fedmos")

_SMALL = 200_000


def choose_plan(name: str, task: Task, m: int) -> Plan:
    """The plan for cohorts of about m clients; `name` is "loop", "batched" or "auto"."""
    loop, batched = (
        Plan(engine="loop", chunk=1),
        Plan(engine="batched", chunk=m, graphed=task.model.device.type == "cuda"),
    )
    if name == "loop":
        return loop
    if name == "auto" and task.model.size > _SMALL and task.model.device.type == "cpu":
        return loop
    problem = why_not_vectorised(task)
    if problem is None:
        return batched
    if name == "batched":
        raise ValueError(f"Cannot vectorise the model or the loss because {problem}; use engine='loop'")
    _log.warning("Training client by client because the model or the loss cannot be vectorised: %s", problem)
    return loop


def why_not_vectorised(task: Task) -> str | None:
    """Try one gradient on one sample of the first clients."""
    try:
        with torch.no_grad():
            ids = torch.arange(min(2, len(task.data)))
            Batched(task, Chunk.of(task, ids), 0).batch(task.model.initial(), 1)
    except Exception as error:  # a user's module may raise anything here
        return str(error).strip().split("\n")[0]
    return None
