"""Dropout that a model calls as a function, with hashed masks.

Within `FunctionalDropout`, `F.dropout` and its relatives, `F.scaled_dot_product_attention`,
`F.multi_head_attention_forward` and recurrent layers draw their masks from keys instead of the
global generator. Attention is computed by `kernels.attention`, for a whole cohort under `vmap`.
"""

from __future__ import annotations

import math
import types
from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from ..kernels.attention import attention
from ..kernels.client_axis import linear
from ..rng import fold
from .cohort_functions import is_replaced
from .cohort_recurrence import PaddedSizes
from .constant_reads import READS, ConstantReads
from .dropout import SampleAxis, drop, kept_mask
from .hugging_face import is_shortcut
from .recurrent import RECURRENT, by_layer

_ALPHA = -1.7580993408473766
"""The value of dropped numbers in alpha dropout (Klambauer et al., NeurIPS 2017): −λα of SELU."""


class FunctionalDropout(TorchFunctionMode):
    """Replaces functional dropout within the context."""

    def __init__(
        self,
        keys: Tensor | None,
        positions: Mapping[int, SampleAxis],
        recorded: list[Tensor] | None = None,
        reads: ConstantReads | None = None,
    ) -> None:
        """Make the context of one forward pass.

        Args:
            keys: One key per sample.
            positions: By the number of the call, where the samples are; on the first axis where there is no entry.
            recorded: If not None, nothing is dropped, and the numbers that each call is applied to are collected here.
            reads: Reads the values of tensors where clients and samples are vectorised.
        """
        super().__init__()
        self._keys, self._positions, self._recorded, self._calls = keys, positions, recorded, 0
        self._reads = reads
        self.needed_by_cohorts = False
        """Whether a cohort's program needs this context: for attention, values of tensors, or rows to be merged."""
        self.replaced_in_cohorts = False
        """Whether the forward pass called a function that `CohortTensors` replaces."""
        self.views_complex = False
        """Whether the forward pass called `torch.view_as_complex`."""
        self.assigned: set[int] = set()
        """The addresses of tensors whose `.data` the forward pass replaced."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        if func not in _REPLACED:
            self.replaced_in_cohorts = self.replaced_in_cohorts or is_replaced(func, args)
            self.views_complex = self.views_complex or func is torch.view_as_complex
            if func == _SET_DATA:
                self.assigned.add(args[0].untyped_storage().data_ptr())
            return func(*args, **kwargs)
        if func in READS:
            self.needed_by_cohorts = True
            if is_shortcut(func, args):
                return False
            return func(*args, **kwargs) if self._reads is None else self._reads.read(func, args, kwargs)
        if func in (torch.dropout, torch.dropout_):
            kwargs = {"training" if name == "train" else name: v for name, v in kwargs.items()}
            return self._dropout(*args, **kwargs | {"inplace": func == torch.dropout_})
        if func in _DROPOUT:
            return self._dropout(*args, **kwargs | {"channels": func is not F.dropout})
        if func in (F.alpha_dropout, F.feature_alpha_dropout):
            return self._alpha_dropout(*args, **kwargs | {"channels": func is F.feature_alpha_dropout})
        if func is F.linear:
            return self._linear(*args, **kwargs)
        if func is F.scaled_dot_product_attention:
            return self._attention(*args, **kwargs)
        if func is F.multi_head_attention_forward:
            self.needed_by_cohorts = True
            replaced = {"dropout": self._dropout, "scaled_dot_product_attention": self._attention} | _PROJECTIONS
            # Another mode, as of `make_fx`, must not get the function as a whole.
            return _with_globals(func, replaced | {"has_torch_function": lambda tensors: False})(*args, **kwargs)
        return by_layer(func, self._between_layers, args)

    def _linear(self, input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        # Trained weights are substituted by tensors.
        self.needed_by_cohorts |= isinstance(weight, nn.Parameter) and input.ndim > 2 and not input.is_contiguous()
        return linear(input, weight, bias)

    def _kept(self, x: Tensor, p: float, channels: bool = False, position: SampleAxis | None = None) -> Tensor | None:
        """Return the mask of the next call, or None if calls are recorded only."""
        number, self._calls = self._calls, self._calls + 1
        if self._recorded is not None or self._keys is None:
            if self._recorded is not None:
                # Where the position is known, only the axis of the samples is left.
                self._recorded.append(x.detach() if position is None else x.detach()[:, :0])
            return None
        position = self._positions.get(number, SampleAxis()) if position is None else position
        return kept_mask(x, fold(self._keys, number), p, channels, position)

    def _dropout(
        self, input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False, channels: bool = False
    ) -> Tensor:
        if not training or p == 0:
            return input
        kept = self._kept(input, p, channels)
        if kept is None:
            return input
        return _in_place(input, torch.zeros_like(input) if p == 1 else drop(input, kept, p), inplace)

    def _alpha_dropout(
        self, input: Tensor, p: float = 0.5, training: bool = False, inplace: bool = False, channels: bool = False
    ) -> Tensor:
        if not training or p == 0:
            return input
        kept = self._kept(input, p, channels)
        if kept is None:
            return input
        scale = 0.0 if p == 1 else ((1 - p) * (1 + p * _ALPHA**2)) ** -0.5
        return _in_place(input, scale * torch.where(kept, input, _ALPHA) - scale * _ALPHA * p, inplace)

    def _attention(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attn_mask: Tensor | None = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        **more: Any,
    ) -> Tensor:
        self.needed_by_cohorts = True
        if dropout_p == 0:
            return attention(query, key, value, attn_mask, is_causal, **more)
        if more.get("enable_gqa"):
            key, value = (v.repeat_interleave(query.shape[-3] // v.shape[-3], -3) for v in (key, value))
        weights = _attention_weights(query, key, attn_mask, is_causal, more.get("scale"))
        return self._dropout(weights, dropout_p) @ value

    def _between_layers(self, p: float) -> tuple[Callable[..., Tensor], Callable[..., Tensor]]:
        def packed(x: Tensor, sizes: Tensor | PaddedSizes) -> Tensor:
            if isinstance(sizes, PaddedSizes):
                like = x.new_empty(()).expand(sizes.B, sizes.T, *x.shape[1:])
                kept = self._kept(like, p, position=SampleAxis())
                if kept is None or p == 1:
                    return x if kept is None else torch.zeros_like(x)
                return drop(x, kept.transpose(0, 1).flatten(0, 1), p)
            # Row r is position `time` of the sequence `order`, counted from the longest.
            order = torch.cat([torch.arange(int(n)) for n in sizes]).to(x.device)
            time = torch.repeat_interleave(torch.arange(len(sizes)), sizes).to(x.device)
            like = x.new_empty(()).expand(int(sizes[0]), len(sizes), *x.shape[1:])
            kept = self._kept(like, p, position=SampleAxis())
            return x if kept is None else torch.zeros_like(x) if p == 1 else drop(x, kept[order, time], p)

        return lambda x: self._dropout(x, p), packed


_SET_DATA = Tensor.data.__set__  # type: ignore[attr-defined]
_DROPOUT = (F.dropout, F.dropout1d, F.dropout2d, F.dropout3d)
_REPLACED = frozenset(
    {
        *READS,
        *(torch.dropout, torch.dropout_, *_DROPOUT, F.alpha_dropout, F.feature_alpha_dropout),
        *(F.linear, F.scaled_dot_product_attention, F.multi_head_attention_forward, *RECURRENT),
    }
)


def _in_place(x: Tensor, new: Tensor, inplace: bool) -> Tensor:
    return x.copy_(new) if inplace else new


def _with_globals(function: Any, replaced: Mapping[str, Any]) -> Callable[..., Any]:
    """Return a function with the same code that finds other functions under some global names."""
    code, names = function.__code__, {**function.__globals__, **replaced}
    new = types.FunctionType(code, names, function.__name__, function.__defaults__, function.__closure__)
    new.__kwdefaults__ = function.__kwdefaults__
    return new


_PROJECTIONS = {"linear": linear} | {
    name: _with_globals(getattr(F, name), {"linear": linear}) for name in ("_in_projection", "_in_projection_packed")
}
"""The functions that project queries, keys and values in `F.multi_head_attention_forward`."""


def _attention_weights(query: Tensor, key: Tensor, mask: Tensor | None, is_causal: bool, scale: float | None) -> Tensor:
    """Return softmax(scale · q kᵀ + mask); the weights of a query that may attend to nothing are 0."""
    scores = query @ key.transpose(-2, -1) * (1 / math.sqrt(query.shape[-1]) if scale is None else scale)
    if is_causal:
        allowed = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).tril()
        scores = scores.masked_fill(~allowed, -math.inf)
    if mask is not None:
        scores = scores.masked_fill(~mask, -math.inf) if mask.dtype == torch.bool else scores + mask
    nothing = (scores == -math.inf).all(-1, keepdim=True)
    return scores.masked_fill(nothing, 0).softmax(-1).masked_fill(nothing, 0).to(query.dtype)
