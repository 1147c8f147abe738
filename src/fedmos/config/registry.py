"""Everything that has a name: what `fedmos list` shows and configurations choose from."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import is_dataclass
from typing import Any, TypeVar

import torch

from .. import algorithms as _algorithms
from .. import models as _models
from .. import selection as _selection
from ..algorithm import Algorithm
from ..data import datasets as _datasets
from ..data import partition as _partition
from ..engine import simulated_clock as _system
from ..selection.availability import Availability
from ..selection.selector import Selector

K = TypeVar("K")


def algorithms() -> dict[str, type[Algorithm]]:
    """Every algorithm by name."""
    return {name: getattr(_algorithms, name) for name in sorted(_algorithms.__all__, key=str.lower)}


def selectors() -> dict[str, type[Selector]]:
    """Every selector by name."""
    return _kinds(Selector)


def availabilities() -> dict[str, type[Availability]]:
    """Every availability model by name."""
    return _kinds(Availability)


def _kinds(base: type[K]) -> dict[str, type[K]]:
    found = {name: getattr(_selection, name) for name in sorted(_selection.__all__, key=str.lower)}
    return {name: kind for name, kind in found.items() if issubclass(kind, base) and kind is not base}


def profiles() -> dict[str, type[Any]]:
    """Every profile of speeds or bandwidths by name."""
    kinds: tuple[type[Any], ...] = (_system.Constant, _system.LogNormal, _system.PerClient)
    return {kind.__name__: kind for kind in kinds} | {"Table": _system.PerClient}  # Table: the earlier name


def partitions() -> dict[str, type[Any]]:
    """Every partition by name."""
    found = {name: getattr(_partition, name) for name in _partition.__all__}
    return {
        name: kind
        for name, kind in found.items()
        if inspect.isclass(kind) and is_dataclass(kind) and name not in ("Fixed", "FromFlower")
    }


def models() -> dict[str, Callable[..., torch.nn.Module]]:
    """Every model function by name."""
    found = {name: getattr(_models, name) for name in _models.__all__}
    return {name: make for name, make in found.items() if "seed" in inspect.signature(make).parameters}


def datasets() -> list[str]:
    """Every data set by name."""
    return _datasets.names()
