"""Max pooling in elementary operations, for compiled programs.

PyTorch's pooling stores a 64-bit index for every output, and its gradient is a separate kernel. With elementary
operations, a compiler fuses the forward pass with its neighbours (a bias, a ReLU) and stores a byte for every output;
the gradient is one pass that writes every input once. Values and gradients equal PyTorch's: of equal values the first
one wins.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd import Function
from torch.overrides import handle_torch_function, has_torch_function

from .switch import Switch

written_out = Switch("written_out")
"""Whether pooling layers compute with elementary operations."""


class CohortMaxPool2d(nn.Module):
    """Max pooling over non-overlapping windows of k × k."""

    def __init__(self, k: int) -> None:
        super().__init__()
        self.k = k

    def forward(self, x: Tensor) -> Tensor:
        if not written_out:
            return F.max_pool2d(x, self.k)
        return _max_pool(x, self.k)


def _max_pool(x: Tensor, k: int) -> Tensor:
    if has_torch_function((x,)):  # so that a mode sees which line makes the images
        seen: Tensor = handle_torch_function(_max_pool, (x,), x, k)
        return seen
    pooled: Tensor = _MaxPool.apply(x.movedim(-3, -1), k)[0]  # type: ignore[no-untyped-call]
    return pooled.movedim(-1, -3)


def replace_pooling(model: nn.Module) -> None:
    """Replace the supported pooling layers of `model` in place."""
    for name, module in list(model.named_modules(remove_duplicate=False)):
        if name and type(module) is nn.MaxPool2d and _is_supported(module):
            model.set_submodule(name, CohortMaxPool2d(_side(module.kernel_size)))


def _is_supported(layer: nn.MaxPool2d) -> bool:
    return (
        not any(v for k, v in vars(layer).items() if k.endswith("_hooks"))
        and 2 <= _side(layer.kernel_size) <= 4
        and _side(layer.stride) == _side(layer.kernel_size)
        and layer.padding in (0, (0, 0))
        and layer.dilation in (1, (1, 1))
        and not layer.ceil_mode
        and not layer.return_indices
    )


def _side(size: Any) -> int:
    """Return the side of a square window, or 0 if it is not square."""
    sides = {size} if isinstance(size, int) else set(size)
    return sides.pop() if len(sides) == 1 else 0


class _MaxPool(Function):
    """(…, H, W, C), k → the maximum of each window of k × k, and its index. Channels last is the fast layout."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, k: int) -> tuple[Tensor, Tensor]:
        h, w = x.shape[-3] // k, x.shape[-2] // k
        windows = x[..., : h * k, : w * k, :].unflatten(-2, (w, k)).unflatten(-4, (h, k))
        best = windows[..., 0, :, 0, :]
        which = torch.zeros_like(best, dtype=torch.uint8)
        for number in range(1, k * k):
            value = windows[..., number // k, :, number % k, :]
            better = (value > best) | value.isnan()
            best = torch.where(better, value, best)
            which = torch.where(better, torch.full_like(which, number), which)
        return best, which

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        x, ctx.k = inputs
        ctx.size = x.shape[-3:-1]
        ctx.mark_non_differentiable(output[1])
        ctx.save_for_backward(output[1])

    @staticmethod
    def backward(ctx: Any, g: Tensor, _: Any) -> Any:
        (which,), k = ctx.saved_tensors, ctx.k
        place = torch.arange(k * k, dtype=torch.uint8, device=g.device).view(k, 1, k, 1)
        chosen = which[..., :, None, :, None, :] == place
        spread = torch.where(chosen, g[..., :, None, :, None, :], torch.zeros((), dtype=g.dtype, device=g.device))
        dx = spread.flatten(-5, -4).flatten(-3, -2)
        rest = [size - n for size, n in zip(ctx.size, dx.shape[-3:-1], strict=True)]
        return (F.pad(dx, (0, 0, 0, rest[1], 0, rest[0])) if any(rest) else dx), None
