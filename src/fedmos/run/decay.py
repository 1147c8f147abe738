"""The option `lr_decay`: its rule, and how a run records and compares it."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import is_dataclass
from typing import Any, cast

from ..core.schedules import Schedule, factor_of
from ..core.validation import positive, whole_number
from ..engine.lr_schedule import Decay
from .values import structured

_COMPARED_ROUNDS = 1000


def is_decay(v: Any) -> bool:
    """Whether a value is a factor per round, a mapping of rounds to factors, or a function of the round."""
    if callable(v):
        return not isinstance(v, type)
    if isinstance(v, Mapping):
        return all(whole_number.fault(key) is None and positive.test(factor) for key, factor in v.items())
    return positive.test(v)


def convert_decay(v: Any) -> Decay:
    """Return the value with Python's own numbers."""
    if callable(v):
        return cast(Schedule, v)
    return {int(key): float(factor) for key, factor in v.items()} if isinstance(v, Mapping) else float(v)


def record_decay(v: Decay) -> Any:
    """Return the value as JSON to read."""
    if callable(v):
        return repr(v) if is_dataclass(v) else _name(v)
    return {str(key): factor for key, factor in v.items()} if isinstance(v, Mapping) else v


def compare_decay(v: Decay) -> Any:
    """Return the value as JSON to compare; a plain function is described by its name and its first factors."""
    if not callable(v) or is_dataclass(v):
        return structured(v)
    factors = []
    for t in range(_COMPARED_ROUNDS):
        try:
            factors.append(f"{factor_of(v, t):.12g}")
        except ValueError:  # in a round that the run does not play
            break
    return {"function": _name(v), "factors": hashlib.sha256(" ".join(factors).encode()).hexdigest()[:32]}


def _name(v: Schedule) -> str:
    return str(getattr(v, "__qualname__", type(v).__qualname__))
