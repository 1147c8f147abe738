"""Attention of a cohort: under `vmap`, clients become rows of the batch of one fused call.

`F.scaled_dot_product_attention` has no parameters, so the attention of M clients with B samples each is the attention
of M·B samples. `vmap` does not know that: it has no rule for some of PyTorch's fused kernels and computes others client
by client.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd import Function

Options = tuple[bool, float | None, bool]
"""is_causal, scale and enable_gqa of `F.scaled_dot_product_attention`."""


def in_transform() -> bool:
    """Whether a transform of `torch.func`, such as `vmap`, is active."""
    return torch._C._functorch.maybe_current_level() is not None


def attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None = None,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """Return `F.scaled_dot_product_attention` without dropout; under `vmap`, for all clients in one call."""
    how, inputs = (is_causal, scale, enable_gqa), (query, key, value)
    if not in_transform() or min(v.ndim for v in inputs) < 2:
        return _attend(*inputs, mask, how)  # outside `vmap`, or an error of PyTorch's
    shapes = [v.shape for v in (*inputs, mask) if v is not None]
    lead = torch.broadcast_shapes(*((*shape[:-3], 1) if enable_gqa else shape[:-2] for shape in shapes)) or (1,)
    samples, heads = lead[:-1], 0 if enable_gqa else lead[-1]
    q, k, v = (_as_four(_narrowed(v), samples, heads) for v in inputs)
    if mask is not None:
        shared = mask.shape[:-3].numel() == 1
        mask = _as_four(_narrowed(mask), mask.shape[:-3] if shared else samples)
    y: Tensor = _Attention.apply(q, k, v, mask, how)  # type: ignore[no-untyped-call]
    return y.reshape(*samples, *y.shape[1:]) if max(map(len, shapes)) > 2 else y[0, 0]


def _attend(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, how: Options) -> Tensor:
    is_causal, scale, enable_gqa = how
    return F.scaled_dot_product_attention(query, key, value, mask, 0.0, is_causal, scale=scale, enable_gqa=enable_gqa)


def _narrowed(v: Tensor) -> Tensor:
    """Return v in the dtype of `torch.autocast`, which is not active in the backward pass."""
    device = v.device.type
    if not torch.is_autocast_enabled(device) or v.dtype == torch.float64 or not v.is_floating_point():
        return v
    return v.to(torch.get_autocast_dtype(device))


def _as_four(v: Tensor, samples: Sequence[int], heads: int = 0) -> Tensor:
    """Return v, (samples …, heads, rows, columns), as (B, heads, rows, columns), with axes of size 1 in front.

    Args:
        v: A tensor that may lack axes in front or have only one sample or head.
        samples: The axes of the samples.
        heads: The number of heads; 0 to keep those of v.
    """
    while v.ndim < 3:
        v = v[None]
    v = v.expand(*samples, heads or v.shape[-3], *v.shape[-2:])
    return v.flatten(0, len(samples) - 1) if samples else v[None]


class _Attention(Function):
    """Attention of (B, H, L, E), with a mask (B or 1, H or 1, L or 1, S or 1)."""

    @staticmethod
    def forward(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, how: Options) -> Tensor:
        return _attend(q, k, v, mask, how)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        *tensors, ctx.how = inputs
        ctx.save_for_backward(*tensors)

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> Any:
        of_mask = ctx.needs_input_grad[3]
        gradients = _AttentionGradient.apply(dy, *ctx.saved_tensors, ctx.how, of_mask)  # type: ignore[no-untyped-call]
        return *gradients[:3], gradients[3] if of_mask else None, None

    @staticmethod
    def vmap(info: Any, in_dims: Any, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, how: Options) -> Any:
        M = info.batch_size
        q, k, v = (_with_clients(t, d, M) for t, d in zip((q, k, v), in_dims, strict=False))
        own_mask = None if mask is None else _mask_with_clients(mask, in_dims[3], M, q.shape[1])
        folded = None if own_mask is None else own_mask.flatten(0, 1)
        y = _Attention.apply(*(t.flatten(0, 1) for t in (q, k, v)), folded, how)  # type: ignore[no-untyped-call]
        return y.unflatten(0, (M, -1)), 0


class _AttentionGradient(Function):
    """Gradients with respect to query, key, value and, if `of_mask`, the mask.

    The backward pass of PyTorch's kernel for these shapes follows from a second forward pass.
    """

    @staticmethod
    def forward(
        dy: Tensor, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, how: Options, of_mask: bool
    ) -> tuple[Tensor, ...]:
        with torch.enable_grad():
            q, k, v = (t.detach().requires_grad_() for t in (q, k, v))
            leaves = [q, k, v]
            if of_mask and mask is not None:
                mask = mask.detach().requires_grad_()
                leaves.append(mask)
            y = _attend(q, k, v, mask, how)
        return torch.autograd.grad(y, leaves, dy)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        pass

    @staticmethod
    def vmap(
        info: Any,
        in_dims: Any,
        dy: Tensor,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        mask: Tensor | None,
        how: Options,
        of_mask: bool,
    ) -> Any:
        M = info.batch_size
        dy, q, k, v = (_with_clients(t, d, M) for t, d in zip((dy, q, k, v), in_dims, strict=False))
        own = None if mask is None else _mask_with_clients(mask, in_dims[4], M, q.shape[1])
        folded = None if own is None else own.flatten(0, 1)
        several = [t.flatten(0, 1) for t in (dy, q, k, v)]
        gradients = _AttentionGradient.apply(*several, folded, how, of_mask)  # type: ignore[no-untyped-call]
        parts = [g.unflatten(0, (M, -1)) for g in gradients]
        if of_mask and mask is not None:  # the mask of a client may be shared by its samples
            each = mask.shape if in_dims[4] is None else mask.movedim(in_dims[4], 0).shape[1:]
            parts[3] = parts[3].sum_to_size(M, *each)
        return tuple(parts), (0,) * len(parts)


def _with_clients(v: Tensor, dim: int | None, M: int) -> Tensor:
    """Return a view (M, …) of a tensor with a client axis at any position or without one."""
    return v.expand(M, *v.shape) if dim is None else v.movedim(dim, 0)


def _mask_with_clients(mask: Tensor, dim: int | None, M: int, samples: int) -> Tensor:
    """Return the mask as (M, samples, …), or (1, 1, …) if all share it."""
    if dim is None and len(mask) == 1:
        return mask[None]
    mask = _with_clients(mask, dim, M)
    return mask.expand(M, samples, *mask.shape[2:])
