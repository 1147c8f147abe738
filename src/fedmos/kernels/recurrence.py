"""Recurrent layers of a cohort.

PyTorch's recurrent kernels take one set of weights, so `vmap` cannot give each client its own. Here, all clients and
both directions advance together: one batched product for the inputs of all steps, then one per step.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from . import recurrence_ops  # registers the operators
from .client_axis import is_vectorised, linear

_GATES = recurrence_ops.GATES


def recurrent_layers(
    kind: str,
    x: Tensor,
    states: Sequence[Tensor],
    weights: Sequence[Tensor],
    bias: bool,
    layers: int,
    directions: int,
    lengths: Tensor | None = None,
) -> tuple[Tensor, list[Tensor]]:
    """Return the outputs, (T, B, …), and the last states, (layers · directions, B, …), without dropout.

    Args:
        kind: A key of `GATES`.
        x: The inputs, (T, B, …).
        states: The initial states: h, and c of an LSTM.
        weights: The parameters of all layers and directions, in the order of PyTorch.
        bias: Whether there are biases.
        layers: The number of layers.
        directions: 2 if bidirectional, else 1.
        lengths: If not None, the lengths of the sequences, (B,). Outputs after the end of a sequence are arbitrary.
    """
    device = x.device.type
    dtype = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else x.dtype
    x, states, weights = x.to(dtype), [v.to(dtype) for v in states], [v.to(dtype) for v in weights]
    count = len(weights) // (layers * directions)
    ends = []
    for layer in range(layers):
        first = layer * directions
        own = [_stack(weights[first * count + k :: count][:directions]) for k in range(count)]
        start = [v[first : first + directions] for v in states]
        x, end = _layer(kind, x, start, own, bias, lengths)
        ends.append(end)
    return x, [torch.cat(parts) for parts in zip(*ends, strict=True)]


def _layer(
    kind: str,
    x: Tensor,
    states: Sequence[Tensor],
    weights: Sequence[Tensor],
    bias: bool,
    lengths: Tensor | None,
) -> tuple[Tensor, list[Tensor]]:
    """Return the outputs and last states of one layer; weights and states have an axis of directions in front."""
    w_input, w_state, *more = weights
    (T, B, _), bidirectional = x.shape, len(w_state) == 2
    gates = _projected([x, _reversed(x, lengths)] if bidirectional else [x], w_input)
    b_state = w_state.new_zeros((len(w_state), w_state.shape[1] if kind == "gru" else 0))
    if bias:
        gates = gates + (more[0] if kind == "gru" else more[0] + more[1]).unsqueeze(1)
        b_state = more[1] if kind == "gru" else b_state
    projection = more[-1] if len(more) in (1, 3) else w_state.new_zeros((len(w_state), 0, 0))
    h, *cell = states
    c = cell[0] if cell else h[..., :0]
    gates = gates.unflatten(1, (T, B)).transpose(0, 1)
    outputs, cells, _ = _Recurrence.apply(kind, gates, h, c, w_state, b_state, projection)  # type: ignore[no-untyped-call]
    ends = [_last(v, lengths) for v in (outputs, cells)[: len(states)]]
    if not bidirectional:
        return outputs[:, 0], ends
    return torch.cat([outputs[:, 0], _reversed(outputs[:, 1], lengths)], -1), ends


def _projected(directions: Sequence[Tensor], w: Tensor) -> Tensor:
    """Return x wᵀ of each direction, (directions, T · B, …); as one product for all clients if they share weights."""
    if is_vectorised(directions[0]) and not is_vectorised(w):
        return torch.stack([linear(x, own).flatten(0, 1) for x, own in zip(directions, w, strict=True)])
    return _stack(directions).flatten(1, 2) @ w.mT


def _stack(parts: Sequence[Tensor]) -> Tensor:
    return parts[0].unsqueeze(0) if len(parts) == 1 else torch.stack(list(parts))


def _reversed(x: Tensor, lengths: Tensor | None) -> Tensor:
    """Return sequences (T, B, …) in reverse order; padding after the end of a sequence stays."""
    if lengths is None:
        return x.flip(0)
    t = torch.arange(len(x), device=x.device).unsqueeze(1)
    steps = torch.where(t < lengths, lengths - 1 - t, t)
    return x.gather(0, steps.unsqueeze(-1).expand(x.shape))


def _last(states: Tensor, lengths: Tensor | None) -> Tensor:
    """Return the states (T, directions, B, …) after the last step of each sequence."""
    if lengths is None:
        return states[-1]
    index = (lengths - 1).view(1, 1, -1, 1).expand(1, *states.shape[1:])
    return states.gather(0, index)[0]


# The time loop and its derivative. Under `vmap`, PyTorch calls the method `vmap` with tensors that have the client axis
# at dimension in_dims[i]. Clients and directions become one axis, or clients and samples if clients share the weights.

_SAMPLES = 1
"""How far the axis of samples is behind that of directions."""


class _Recurrence(Function):
    @staticmethod
    def forward(kind: str, *tensors: Tensor) -> Any:
        return torch.ops.fedmos.recurrence(kind, *tensors)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.kind, _, h, c, w, _, projection = inputs
        outputs, cells, kept = output
        ctx.mark_non_differentiable(kept)
        ctx.save_for_backward(h, c, w, projection, outputs, cells, kept)

    @staticmethod
    def backward(ctx: Any, d_outputs: Tensor, d_cells: Tensor, _: Any) -> Any:
        trained = any(ctx.needs_input_grad[4:])
        found = _RecurrenceBackward.apply(ctx.kind, trained, d_outputs, d_cells, *ctx.saved_tensors)  # type: ignore[no-untyped-call]
        return None, *found[:3], *(found[3:] if trained else (None, None, None))

    @staticmethod
    def vmap(info: Any, in_dims: Any, kind: str, *tensors: Tensor) -> Any:
        M, dims = info.batch_size, in_dims[1:]
        shift = _SAMPLES if dims[3:] == (None, None, None) else 0
        merged = _merge_clients(M, tensors[:3], dims[:3], axes=(1 + shift, shift, shift))
        weights = tensors[3:] if shift else _merge_clients(M, tensors[3:], dims[3:], axes=(0, 0, 0))
        found = _Recurrence.apply(kind, *merged, *weights)  # type: ignore[no-untyped-call]
        return tuple(v.unflatten(1 + shift, (M, -1)) for v in found), (1 + shift,) * 3


class _RecurrenceBackward(Function):
    @staticmethod
    def forward(kind: str, trained: bool, *tensors: Tensor) -> Any:
        return torch.ops.fedmos.recurrence_backward(kind, trained, *tensors)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        pass

    @staticmethod
    def vmap(info: Any, in_dims: Any, kind: str, trained: bool, *tensors: Tensor) -> Any:
        M, dims = info.batch_size, in_dims[2:]
        shift = _SAMPLES if not trained and dims[4:6] == (None, None) else 0
        axes = (1 + shift, 1 + shift, shift, shift, 0, 0, 1 + shift, 1 + shift, 1 + shift)
        merged = [
            v if shift and i in (4, 5) else _merge_clients(M, (v,), (dim,), (axis,))[0]
            for i, (v, dim, axis) in enumerate(zip(tensors, dims, axes, strict=True))
        ]
        gates, h, c, *weights = _RecurrenceBackward.apply(kind, trained, *merged)  # type: ignore[no-untyped-call]
        states = (v.unflatten(shift, (M, -1)) for v in (h, c))
        of_weights = weights if shift else [v.unflatten(0, (M, -1)) for v in weights]
        return (gates.unflatten(1 + shift, (M, -1)), *states, *of_weights), (
            1 + shift,
            shift,
            shift,
            *((None,) * 3 if shift else (0,) * 3),
        )


def _merge_clients(M: int, tensors: Sequence[Tensor], dims: Sequence[int | None], axes: Sequence[int]) -> list[Tensor]:
    """Return the tensors with the client axis, if they have one, merged into another axis of each (`axes`)."""
    merged = []
    for v, dim, axis in zip(tensors, dims, axes, strict=True):
        clients = v.unsqueeze(axis) if dim is None else v.movedim(dim, axis)
        shape = list(clients.shape)
        shape[axis] = M
        merged.append(clients.expand(shape).flatten(axis, axis + 1))
    return merged
