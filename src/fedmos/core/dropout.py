"""Dropout with hashed masks, which are the same on every engine and device and for every batching.

`nn.Dropout` draws from the global generator, so its masks depend on all earlier draws. In the copy
of the model that a run trains, each dropout layer is replaced with one that reads a key per sample
from a buffer; the engine writes the keys of the current batch to it. `functional_dropout` replaces
dropout that is called as a function.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from ..kernels.operators import Operator
from ..rng import at_least, fold
from .module_kind import UnsuitableModel


# An opaque operator, because PyTorch's compiler for CPUs (2.13) miscompiles the hash.
@Operator("kept")
def _kept(key: Tensor, count: int, p: float) -> Tensor:
    """Return the mask of kept numbers, (…, count), for keys (…,)."""
    if key.device.type == "cuda":
        from ..kernels import hash_mask

        return hash_mask.at_least(key, count, p)
    return at_least(key, count, p)


@_kept.register_fake
def _(key: Tensor, count: int, p: float) -> Tensor:
    return key.new_empty((*key.shape, count), dtype=torch.bool)


@_kept.register_vmap
def _(info: Any, in_dims: Any, key: Tensor, count: int, p: float) -> Any:
    return torch.ops.fedmos.kept(key.movedim(in_dims[0], 0), count, p), 0


class SampleAxis(NamedTuple):
    """Where the samples of a batch are in a tensor that dropout is applied to."""

    axis: int | None = 0
    """The axis of the samples; None if the tensor (a weight, for example) does not depend on the batch."""
    rows: int = 1
    """The number of rows of each sample on that axis."""
    interleaved: bool = False
    """Whether row r belongs to sample r modulo the batch size, instead of r divided by `rows`."""


class StreamDropout(nn.Module):
    """Drops single numbers, or whole channels if `channels`, with probability p."""

    key: Tensor
    calls: int
    """Number of applications in the current forward pass; a layer that is used twice draws two masks."""
    positions: dict[int, SampleAxis]
    """By the number of the call; the samples are on the first axis where there is no entry."""
    recorded: list[Tensor] | None
    """If not None, nothing is dropped and the inputs of all calls are collected here."""

    def __init__(self, p: float, channels: bool) -> None:
        super().__init__()
        self.p, self.channels, self.calls = p, channels, 0
        self.positions, self.recorded = {}, None
        self.register_buffer("key", torch.zeros(0, dtype=torch.int64), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        if not self.training or self.p == 0:
            return x
        if self.recorded is not None:
            self.recorded.append(x.detach())
            return x
        if self.p == 1:
            return torch.zeros_like(x)
        position, key = self.positions.get(self.calls, SampleAxis()), fold(self.key, self.calls)
        self.calls += 1
        return drop(x, kept_mask(x, key, self.p, self.channels, position), self.p)


def drop(x: Tensor, kept: Tensor, p: float) -> Tensor:
    """Return x / (1 − p) where `kept`, and 0 elsewhere."""
    return torch.where(kept, x / (1 - p), torch.zeros((), dtype=x.dtype, device=x.device))


def kept_mask(x: Tensor, key: Tensor, p: float, channels: bool, position: SampleAxis) -> Tensor:
    """Return the mask of the numbers, or of the channels, that are kept; it broadcasts against x.

    Args:
        x: The numbers that dropout is applied to.
        key: One key per sample.
        p: The probability that a number is dropped.
        channels: Whether to draw one number per channel (the second axis).
        position: Where the samples are in x.
    """
    if position.axis is None:  # the first sample is the same on every engine, whatever the padding of the batch
        drawn: Tensor = torch.ops.fedmos.kept(key[:1], x.numel(), p)
        return drawn.view(x.shape)
    if x.shape[position.axis] != len(key) * position.rows or (channels and position != SampleAxis()):
        raise UnsuitableModel(
            f"Cannot apply dropout to {x.shape[position.axis]} rows because the batch has {len(key)} samples; "
            "keep the samples on the first axis"
        )
    if position == SampleAxis():
        shape = x.shape[1:2] if channels else x.shape[1:]
        drawn = torch.ops.fedmos.kept(key, shape.numel(), p)
        return drawn.view(-1, *shape, *[1] * (x.ndim - 1 - len(shape)))
    others = [n for axis, n in enumerate(x.shape) if axis != position.axis]
    drawn = torch.ops.fedmos.kept(key, x.numel() // len(key), p).view(len(key), position.rows, *others)
    drawn = (drawn.transpose(0, 1) if position.interleaved else drawn).flatten(0, 1)
    return drawn.movedim(0, position.axis)


def replace_dropout(model: nn.Module) -> dict[str, StreamDropout]:
    """Replace the dropout layers of `model` in place and return the new layers by the name of their key buffer."""
    new: dict[int, StreamDropout] = {}
    layers = {}
    for name, module in list(model.named_modules(remove_duplicate=False)):
        if type(module) not in (nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d):
            continue
        if id(module) not in new:
            new[id(module)] = StreamDropout(module.p, channels=type(module) is not nn.Dropout)
            new[id(module)].train(module.training)
            layers[f"{name}.key"] = new[id(module)]
        if name:
            model.set_submodule(name, new[id(module)])
    return layers
