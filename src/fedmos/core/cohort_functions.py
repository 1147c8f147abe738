"""Functions that `vmap` refuses or computes client by client, written in operations that it vectorises."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ..kernels.client_axis import is_vectorised


def is_replaced(func: Any, args: Any) -> bool:
    """Whether a call is one that `REPLACED` may compute."""
    if func is F.batch_norm:
        return bool(args[0].is_cuda)
    return func in REPLACED and (func is not Tensor.__setitem__ or _is_mask(args[1]))


def _is_mask(index: Any) -> bool:
    return isinstance(index, Tensor) and index.dtype == torch.bool


def _set(x: Tensor, index: Any, value: Any) -> Any:
    """`x[mask] = value` for a value that is the same for all entries of the mask."""
    rest = x.ndim - index.ndim if _is_mask(index) else -1
    if rest < 0 or index.shape != x.shape[: index.ndim]:
        return NotImplemented
    if isinstance(value, Tensor):
        if value.ndim > rest and value.numel() > 1:
            return NotImplemented
        value = (value.reshape(()) if value.numel() == 1 else value).to(x.dtype)
    else:
        value = torch.full((), value, dtype=x.dtype, device=x.device)
    x.copy_(torch.where(index.reshape(*index.shape, *[1] * rest), value, x))
    return None


def _one_hot(x: Tensor, num_classes: int = -1) -> Any:
    if num_classes <= 0:
        return NotImplemented  # the number of classes depends on the data
    zeros = torch.zeros((*x.shape, num_classes), dtype=torch.int64, device=x.device)
    return zeros.scatter(-1, x.unsqueeze(-1), 1)


def _bilinear(x1: Tensor, x2: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    y = (torch.einsum("...i,oij->...oj", x1, weight) @ x2.unsqueeze(-1)).squeeze(-1)
    return y if bias is None else y + bias


def _unfold(x: Tensor, dimension: int, size: int, step: int) -> Any:
    if x.ndim == 0:
        return NotImplemented
    axis, windows = dimension % x.ndim, (x.shape[dimension] - size) // step + 1
    if step == size:
        return x.narrow(axis, 0, windows * size).unflatten(axis, (windows, size)).movedim(axis + 1, -1)
    first = step * torch.arange(windows, device=x.device)
    places = first[:, None] + torch.arange(size, device=x.device)
    return x.index_select(axis, places.flatten()).unflatten(axis, (windows, size)).movedim(axis + 1, -1)


def _embedding_bag(
    input: Tensor,
    weight: Tensor,
    offsets: Tensor | None = None,
    max_norm: float | None = None,
    norm_type: float = 2.0,
    scale_grad_by_freq: bool = False,
    mode: str = "mean",
    sparse: bool = False,
    per_sample_weights: Tensor | None = None,
    include_last_offset: bool = False,
    padding_idx: int | None = None,
) -> Any:
    """`F.embedding_bag` by an embedding and a reduction."""
    if max_norm is not None or scale_grad_by_freq or (offsets is not None and mode == "max"):
        return NotImplemented
    padding_idx = None if padding_idx is None else padding_idx % len(weight)
    rows = F.embedding(input, weight, padding_idx)
    if per_sample_weights is not None:
        rows = rows * per_sample_weights.unsqueeze(-1)
    counted = torch.ones_like(input, dtype=rows.dtype)
    if padding_idx is not None:
        counted = (input != padding_idx).to(rows.dtype)
    if offsets is not None:
        starts = offsets[:-1] if include_last_offset else offsets
        bag = torch.searchsorted(starts, torch.arange(len(input), device=input.device), right=True) - 1
        kept = rows * counted.unsqueeze(-1)
        total = rows.new_zeros(len(starts), rows.shape[-1]).index_add(0, bag, kept)
        number = rows.new_zeros(len(starts)).index_add(0, bag, counted)
    elif mode == "max":
        low = torch.where(counted.unsqueeze(-1) > 0, rows, -torch.inf).amax(1)
        return torch.where((counted.sum(1) > 0).unsqueeze(-1), low, 0.0)
    else:
        total, number = (rows * counted.unsqueeze(-1)).sum(1), counted.sum(1)
    return total if mode == "sum" else total / number.clamp(min=1).unsqueeze(-1)


def _batch_norm(
    input: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Any:
    """`F.batch_norm` with given statistics, which `vmap` refuses for channels-last images on a GPU."""
    if training or running_mean is None or running_var is None or not input.is_cuda:
        return NotImplemented
    return normalised(input, running_mean, running_var, weight, bias, eps)


def normalised(x: Tensor, mean: Tensor, var: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float) -> Tensor:
    """Return (x − mean) / √(var + eps) · weight + bias for the channels of x."""

    def over_channels(v: Tensor) -> Tensor:
        return v.view(-1, *[1] * (x.ndim - 2))

    scale = torch.rsqrt(var + eps)
    y = (x - over_channels(mean)) * over_channels(scale if weight is None else scale * weight)
    return y if bias is None else y + over_channels(bias)


def _requires_grad(x: Tensor, requires_grad: bool = True) -> Any:
    """`torch.zeros(…).requires_grad_()`, as for the first state of a recurrent layer, has no effect.

    A model that differentiates with respect to x gets an error. Functions of PyTorch's, such as `torch.func.grad`, call
    it on tensors of their own.
    """
    caller = sys._getframe(2).f_globals.get("__name__", "")
    return NotImplemented if is_vectorised(x) or caller.split(".")[0] == "torch" else x


def _in_place(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    # The backward pass of a function may need what x was before.
    return lambda x, *args, **kwargs: x.copy_(function(x.clone(), *args, **kwargs))


_NO_RULE = "addcdiv addcmul clamp clip cumprod cumsum floor_divide fmod index_copy lerp negative pow remainder scatter"
"""Functions whose in-place versions `vmap` computes client by client."""
REPLACED: dict[Any, Callable[..., Any]] = {
    Tensor.requires_grad_: _requires_grad,
    Tensor.__setitem__: _set,
    Tensor.unfold: _unfold,
    F.one_hot: _one_hot,
    F.bilinear: _bilinear,
    F.embedding_bag: _embedding_bag,
    F.batch_norm: _batch_norm,
    Tensor.__ipow__: _in_place(torch.pow),
    Tensor.__imod__: _in_place(torch.remainder),
    Tensor.__ifloordiv__: _in_place(torch.floor_divide),
    **{getattr(Tensor, f"{name}_"): _in_place(getattr(torch, name)) for name in [*_NO_RULE.split(), "square", "xlogy"]},
}
"""By function, what computes it for tensors with a client axis; NotImplemented where that is not possible."""
