"""The running statistics of BatchNorm layers as one vector: mean, variance and number of batches, layer by layer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple

import torch
from torch import Tensor, nn

BatchNorm = nn.modules.batchnorm._BatchNorm
"""The base class of BatchNorm1d, 2d, 3d and SyncBatchNorm."""

BatchNormMode = Literal["group", "local", "local-affine", "frozen"]
"""The values of the option `batchnorm`."""

CLIENT_MODES: tuple[BatchNormMode, ...] = ("local", "local-affine")
"""The values with which clients keep running statistics."""

STATISTICS, AFFINE = "batchnorm.statistics", "batchnorm.affine"
"""The names of the client and server state: running statistics; scales and shifts."""


def batch_norms(module: nn.Module) -> dict[str, BatchNorm]:
    """Return the BatchNorm layers of a module by name."""
    return {name: part for name, part in module.named_modules() if isinstance(part, BatchNorm)}


def affine_slices(module: nn.Module, personal: Sequence[str] = ()) -> list[slice]:
    """Return where the scales and shifts of BatchNorm layers are in the vector of trainable parameters.

    The parameters named in `personal` are no part of it.
    """
    held = {id(p) for layer in batch_norms(module).values() for p in layer.parameters(recurse=False)}
    found, start = [], 0
    for name, p in module.named_parameters():
        if p.requires_grad and name not in personal:
            if id(p) in held:
                found.append(slice(start, start + p.numel()))
            start += p.numel()
    return found


class LayerPlace(NamedTuple):
    """The place of a layer's running mean in the vector; the variance and the number of batches follow it."""

    name: str
    start: int
    channels: int


class StatisticsLayout:
    """The running statistics of all BatchNorm layers of a module as one vector of `size` numbers."""

    def __init__(self, module: nn.Module) -> None:
        self._module, self.size = module, 0
        self._places: list[LayerPlace] = []
        for name, layer in batch_norms(module).items():
            if layer.running_mean is not None:
                self._places.append(LayerPlace(name, self.size, layer.num_features))
                self.size += 2 * layer.num_features + 1

    def initial(self) -> Tensor:
        """Return the statistics that the module has."""
        parts: list[Tensor] = []
        for place in self._places:
            mean, var, count = _buffers(self._layer(place))
            parts += [mean, var, count.to(mean).reshape(1)]
        return torch.cat(parts) if parts else next(self._module.parameters()).detach().new_zeros(0)

    def buffers(self, statistics: Tensor) -> dict[str, Tensor]:
        """Return the vector as buffers by name; the number of batches is a floating-point number."""
        found = {}
        for name, start, channels in self._places:
            prefix, end = f"{name}." if name else "", start + channels
            found[f"{prefix}running_mean"] = statistics[start:end]
            found[f"{prefix}running_var"] = statistics[end : end + channels]
            found[f"{prefix}num_batches_tracked"] = statistics[end + channels]
        return found

    def load(self, statistics: Tensor) -> None:
        """Write the vector into the buffers of the module. The number of batches is rounded."""
        given = self.buffers(statistics)
        for name, buffer in self._module.named_buffers():
            if name in given:
                value = given[name]
                buffer.copy_(value if buffer.is_floating_point() else value.round())

    def _layer(self, place: LayerPlace) -> BatchNorm:
        layer = self._module.get_submodule(place.name)
        assert isinstance(layer, BatchNorm)
        return layer


def _buffers(layer: BatchNorm) -> tuple[Tensor, Tensor, Tensor]:
    assert layer.running_mean is not None
    assert layer.running_var is not None
    count = layer.num_batches_tracked
    return layer.running_mean, layer.running_var, torch.zeros(()) if count is None else count
