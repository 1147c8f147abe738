"""Dropout with hashed masks, which are the same on every engine and device and for every batching.

`nn.Dropout` draws from the global generator, so its masks depend on all earlier draws. In the copy
of the model that a run trains, each dropout layer is replaced with one that reads a key per sample
from a buffer; the engine writes the keys of the current batch to it.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from ..rng import fold, uniform


# An opaque operator, because PyTorch's compiler for CPUs (2.13) miscompiles the hash.
@torch.library.custom_op("fedmos::kept", mutates_args=())
def _kept(key: Tensor, count: int, p: float) -> Tensor:
    """Return the mask of kept numbers, (…, count), for keys (…,)."""
    return uniform(fold(key.unsqueeze(-1), torch.arange(count, device=key.device))) >= p


@_kept.register_fake
def _(key: Tensor, count: int, p: float) -> Tensor:
    return key.new_empty((*key.shape, count), dtype=torch.bool)


@_kept.register_vmap
def _(info: Any, in_dims: Any, key: Tensor, count: int, p: float) -> Any:
    return torch.ops.fedmos.kept(key.movedim(in_dims[0], 0), count, p), 0


class StreamDropout(nn.Module):
    """Drops single numbers, or whole channels if `channels`, with probability p."""

    key: Tensor
    calls: int
    """Number of applications in the current forward pass; a layer that is used twice draws two masks."""

    def __init__(self, p: float, channels: bool) -> None:
        super().__init__()
        self.p, self.channels, self.calls = p, channels, 0
        self.register_buffer("key", torch.zeros(0, dtype=torch.int64), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        if not self.training or self.p == 0:
            return x
        if self.p == 1:
            return torch.zeros_like(x)
        if len(x) != len(self.key):
            raise ValueError(
                f"Cannot apply dropout to {len(x)} rows because the batch has {len(self.key)} samples; "
                "keep the samples on the first axis"
            )
        key = fold(self.key, self.calls)
        self.calls += 1
        shape = x.shape[1:2] if self.channels else x.shape[1:]
        kept: Tensor = torch.ops.fedmos.kept(key, shape.numel(), self.p)
        kept = kept.view(-1, *shape, *[1] * (x.ndim - 1 - len(shape)))
        return torch.where(kept, x / (1 - self.p), torch.zeros((), dtype=x.dtype, device=x.device))


def replace_dropout(model: nn.Module) -> dict[str, StreamDropout]:
    """Replace the dropout layers of `model` in place and return the new layers by the name of their key buffer."""
    new: dict[int, StreamDropout] = {}
    layers = {}
    for name, module in list(model.named_modules(remove_duplicate=False)):
        if type(module) not in (nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d):
            continue
        if id(module) not in new:
            new[id(module)] = StreamDropout(module.p, channels=type(module) is not nn.Dropout)
            layers[f"{name}.key"] = new[id(module)]
        parent, _, child = name.rpartition(".")
        setattr(model.get_submodule(parent), child, new[id(module)])
    return layers
