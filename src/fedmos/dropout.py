"""Dropout whose masks are hashes: the same on any engine, device and batching.

`nn.Dropout` draws from the global generator, so its masks depend on whatever ran before. On the
copy of the model that a run trains, each dropout layer is replaced by one that reads a key per
sample from a buffer; the engine puts the keys of the current batch there.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from .rng import fold, uniform


class StreamDropout(nn.Module):
    """Drops single numbers, or whole channels if `channels`, with probability p."""

    key: Tensor

    def __init__(self, p: float, channels: bool) -> None:
        super().__init__()
        self.p, self.channels = p, channels
        self.register_buffer("key", torch.zeros(0, dtype=torch.int64), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        if not self.training or self.p == 0:
            return x
        shape = x.shape[1:2] if self.channels else x.shape[1:]
        counter = torch.arange(shape.numel(), device=x.device)
        kept = uniform(fold(self.key.unsqueeze(-1), counter)) >= self.p
        kept = kept.view(-1, *shape, *[1] * (x.ndim - 1 - len(shape)))
        return torch.where(kept, x / (1 - self.p), torch.zeros((), dtype=x.dtype, device=x.device))


def replace_dropout(model: nn.Module) -> list[str]:
    """Replace the dropout layers of `model` in place; the names of their key buffers, in order."""
    names = []
    for name, module in list(model.named_modules()):
        if type(module) not in (nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d):
            continue
        parent, _, child = name.rpartition(".")
        channels = type(module) is not nn.Dropout
        setattr(model.get_submodule(parent), child, StreamDropout(module.p, channels))
        names.append(f"{name}.key")
    return names
