"""Recurrent layers outside of vectorised programs: dropout in between, layer by layer, and weights on a GPU."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

Drop = Callable[[Tensor], Tensor]
"""Applies dropout to the outputs of a layer, (T, B, …) or (B, T, …)."""
PackedDrop = Callable[[Tensor, Any], Tensor]
"""Applies dropout to packed outputs, (rows, …), given the number of samples at each position."""

RECURRENT = (torch.lstm, torch.gru, torch.rnn_tanh, torch.rnn_relu)


def by_layer(function: Callable[..., Any], drop: Callable[[float], tuple[Drop, PackedDrop]], args: Any) -> Any:
    """Return what `function`, one of `RECURRENT`, returns, with dropout by `drop`.

    Args:
        function: `torch.lstm`, `torch.gru`, `torch.rnn_tanh` or `torch.rnn_relu`.
        drop: Given p, returns dropout for padded and for packed sequences.
        args: The arguments of the function: (inputs, state, weights, …, batch_first) for padded sequences, and
            (rows, samples at each position, state, weights, …) for packed ones.
    """
    packed = isinstance(args[3], list | tuple)  # the weights
    x, *before = args[:2] if packed else args[:1]
    state, weights, bias, layers, p, training, bidirectional, *after = args[len(before) + 1 :]
    if layers == 1 or p == 0 or not training:
        return function(*args)
    padded_drop, packed_drop = drop(p)
    directions, count = 2 if bidirectional else 1, len(weights) // layers
    states = state if function is torch.lstm else (state,)
    ends: list[Any] = []
    for layer in range(layers):
        own = tuple(v[layer * directions : (layer + 1) * directions] for v in states)
        some = weights[layer * count : (layer + 1) * count]
        given = own if function is torch.lstm else own[0]
        x, *end = function(x, *before, given, some, bias, 1, 0.0, training, bidirectional, *after)
        ends.append(end)
        if layer < layers - 1:
            x = packed_drop(x, before[0]) if packed else padded_drop(x)
    return (x, *(torch.cat(parts) for parts in zip(*ends, strict=True)))


@contextmanager
def without_layout_warning() -> Iterator[None]:
    """Hide the advice of cuDNN's layers to call `flatten_parameters`: parameters are views of one vector."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "RNN module weights are not part of single contiguous chunk")
        yield
