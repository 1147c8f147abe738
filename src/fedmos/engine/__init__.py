"""Engines: how a cohort's local work is computed. What is computed, a round, is in `rounds`."""

from __future__ import annotations

from .batched import Batched
from .gradients import LocalGradient
from .loop import Loop
from .task import Task

_SMALL = 200_000


def choose_engine(name: str, task: Task) -> type[LocalGradient]:
    """ "auto" takes the vectorised engine for small models, where it is faster, and the loop otherwise."""
    if name == "auto":
        name = "batched" if task.model.size <= _SMALL or task.model.device.type == "cuda" else "loop"
    return {"loop": Loop, "batched": Batched}[name]
