"""The registry of algorithms, selectors, partitions, models and data sets by name."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import is_dataclass
from typing import Any, TypeVar

import torch

from .. import aggregation as _aggregation
from .. import algorithms as _algorithms
from .. import attacks as _attacks
from .. import codecs as _codecs
from .. import local as _local
from .. import models as _models
from .. import privacy as _privacy
from .. import selection as _selection
from ..aggregation import Aggregation
from ..algorithm import Algorithm
from ..attacks import Attack
from ..codecs.codec import Codec
from ..core import schedules as _schedules
from ..data import datasets as _datasets
from ..data import partition as _partition
from ..engine import simulated_clock as _system
from ..selection.availability import Availability
from ..selection.selector import Selector

K = TypeVar("K")


def algorithms() -> dict[str, type[Algorithm]]:
    """Return the algorithms by name.

    Example:
        >>> fm.algorithms()["FedMoS"](lr=0.1).beta
        0.8
    """
    return {name: getattr(_algorithms, name) for name in sorted(_algorithms.__all__, key=str.lower)}


def selectors() -> dict[str, type[Selector]]:
    """Return the selectors by name.

    Example:
        >>> fm.selectors()["ACS"](m=3)
        ACS(m=3)
    """
    return _kinds(Selector)


def availabilities() -> dict[str, type[Availability]]:
    """Return the availability models by name.

    Example:
        >>> fm.availabilities()["Alternating"](groups=2)
        Alternating(groups=2, drop=0.1)
    """
    return _kinds(Availability)


def _kinds(base: type[K]) -> dict[str, type[K]]:
    found = {name: getattr(_selection, name) for name in sorted(_selection.__all__, key=str.lower)}
    return {name: kind for name, kind in found.items() if issubclass(kind, base) and kind is not base}


def local_optimizers() -> dict[str, type[Any]]:
    """Return the local optimisers by name."""
    return {name: getattr(_local, name) for name in _local.__all__ if name != "LocalOptimizer"}


def codecs() -> dict[str, type[Codec]]:
    """Return the codecs by name."""
    found: dict[str, Any] = {name: getattr(_codecs, name) for name in _codecs.__all__}
    return {name: kind for name, kind in found.items() if isinstance(kind, type) and kind is not Codec}


def mechanisms() -> dict[str, type[Any]]:
    """Return the mechanisms of privacy by name."""
    kinds = (_privacy.DiscreteGaussian, _privacy.Gaussian, _privacy.Local, _privacy.MatrixFactorization)
    return {kind.__name__: kind for kind in kinds}


def aggregations() -> dict[str, type[Aggregation]]:
    """Return the aggregation rules by name."""
    return {name: getattr(_aggregation, name) for name in _aggregation.__all__ if name != "Aggregation"}


def attacks() -> dict[str, type[Attack]]:
    """Return the attacks by name."""
    return {name: getattr(_attacks, name) for name in _attacks.__all__ if name != "Attack"}


def profiles() -> dict[str, type[Any]]:
    """Return the profiles of speeds or bandwidths by name."""
    kinds: tuple[type[Any], ...] = (_system.Constant, _system.LogNormal, _system.PerClient)
    return {kind.__name__: kind for kind in kinds} | {"Table": _system.PerClient}  # Table: the earlier name


def schedules() -> dict[str, type[Any]]:
    """Return the schedules of the step size by name."""
    return {kind.__name__: kind for kind in (_schedules.Cosine, _schedules.Step, _schedules.Warmup)}


def partitions() -> dict[str, type[Any]]:
    """Return the partitions by name.

    Example:
        >>> fm.partitions()["Dirichlet"](alpha=0.1)
        Dirichlet(alpha=0.1, prior='ones')
    """
    found = {name: getattr(_partition, name) for name in _partition.__all__}
    return {
        name: kind
        for name, kind in found.items()
        if inspect.isclass(kind) and is_dataclass(kind) and name not in ("Fixed", "FromFlower")
    }


def models() -> dict[str, Callable[..., torch.nn.Module]]:
    """Return the model functions by name, without those that change a given model."""
    found = {name: getattr(_models, name) for name in _models.__all__}
    parameters = {name: inspect.signature(make).parameters for name, make in found.items()}
    return {
        name: make for name, make in found.items() if "seed" in parameters[name] and "model" not in parameters[name]
    }


def datasets() -> list[str]:
    """Return the names of the data sets."""
    return _datasets.names()
