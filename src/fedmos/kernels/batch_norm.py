"""Batch normalisation in which samples have shares, with few passes over the data."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


def normalise(x: Tensor, share: Tensor, scale: Tensor, shift: Tensor, eps: float) -> tuple[Tensor, Tensor, Tensor]:
    """Normalise the channels of a batch.

    Args:
        x: The batch, (B, C, P), with P positions of each sample.
        share: The share of each sample in the moments, (B,); they sum to one, and that of padding is zero.
        scale: (C,).
        shift: (C,).
        eps: Is added to the variance.

    Returns:
        The normalised batch, and the mean and the biased variance of each channel, which are constants for autograd.
    """
    out, mean, var, _, _ = _Normalise.apply(x, share, scale, shift, eps)  # type: ignore[no-untyped-call]
    return out, mean, var


class _Normalise(torch.autograd.Function):
    """The forward pass serves tensors with a client axis, too; `vmap` vectorises the backward pass."""

    @staticmethod
    def forward(x: Tensor, share: Tensor, scale: Tensor, shift: Tensor, eps: float) -> tuple[Tensor, ...]:
        weight = (share / x.shape[-1]).unsqueeze(-1)
        mean = (x.sum(-1) * weight).sum(-2)
        centred = x - _over_positions(mean)
        var = (torch.linalg.vector_norm(centred, dim=-1).square() * weight).sum(-2)
        inverse = torch.rsqrt(var + eps)
        out = torch.addcmul(_over_positions(shift), centred, _over_positions(inverse * scale))
        return out, mean, var, centred, inverse

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        _, share, scale, _, _ = inputs
        _, mean, var, centred, inverse = output
        ctx.mark_non_differentiable(mean, var, centred, inverse)
        ctx.save_for_backward(share, scale, centred, inverse)

    @staticmethod
    def backward(ctx: Any, g: Tensor, *_: Any) -> tuple[Tensor | None, ...]:
        share, scale, centred, inverse = ctx.saved_tensors
        g_shift = g.sum((0, 2))
        g_scale = (g * centred).sum((0, 2)) * inverse
        factor, weight = inverse * scale, (share / centred.shape[-1]).unsqueeze(-1)
        # The gradient at x is factor · (g − weight · (g_shift + normalised x · g_scale)).
        g_x = torch.addcmul((weight * (-factor * g_shift)).unsqueeze(-1), g, _over_positions(factor))
        g_x = torch.addcmul(g_x, centred, (weight * (-factor * inverse * g_scale)).unsqueeze(-1))
        return g_x, None, g_scale, g_shift, None

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int | None, ...], *given: Any) -> tuple[Any, tuple[int, ...]]:
        *tensors, eps = given
        rows = [
            v.expand(info.batch_size, *v.shape) if axis is None else v.movedim(axis, 0)
            for v, axis in zip(tensors, in_dims, strict=False)
        ]
        return _Normalise.apply(*rows, eps), (0,) * 5  # type: ignore[no-untyped-call]


def _over_positions(v: Tensor) -> Tensor:
    """(…, C) → (…, 1, C, 1)."""
    return v.unsqueeze(-2).unsqueeze(-1)
