"""Recurrent layers and packed sequences of a model that is vectorised over clients.

Within `CohortRecurrence`, `nn.LSTM`, `nn.GRU` and `nn.RNN` compute with the kernels of a cohort where tensors have a
client axis, `nn.LSTMCell`, `nn.GRUCell` and `nn.RNNCell` with elementary operations, because `vmap` has no rule for the
fused ones of a GPU. Packed sequences stay padded: their number of rows would depend on the data.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NoReturn

import torch
from torch import Tensor
from torch._C._functorch import is_functorch_wrapped_tensor
from torch.overrides import TorchFunctionMode

from ..kernels.client_axis import is_vectorised, linear
from ..kernels.recurrence import recurrent_layers
from ..kernels.switch import Switch
from .recurrent import RECURRENT

_KINDS = dict(zip(RECURRENT, ("lstm", "gru", "rnn_tanh", "rnn_relu"), strict=True))


longer = Switch("longer")
"""Whether packed sequences get further padding, to find out if results depend on it."""
_MORE = 3


class UnstatedLength(int):
    """The number of steps that `pad_packed_sequence` restores if it gets no `total_length`."""


class PaddedSizes:
    """Stands for `PackedSequence.batch_sizes` where the rows of a sequence include its padding.

    The data of such a sequence has T · B rows, as if all sequences had the length T.
    """

    device = torch.device("cpu")  # PackedSequence asks

    def __init__(self, T: int, B: int, lengths: Tensor) -> None:
        self.T, self.B, self.lengths = T, B, lengths

    def __getitem__(self, t: int) -> int:
        if t != 0:
            raise _unknown(f"[{t}]")
        return self.B

    def size(self, axis: int) -> int:
        """Return T."""
        return UnstatedLength(self.T)

    def __getattr__(self, name: str) -> NoReturn:
        raise _unknown(f".{name}")

    def __iter__(self) -> NoReturn:
        raise _unknown("")

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> NoReturn:
        raise _unknown(f" in {func.__name__}")


def _unknown(where: str) -> AttributeError:
    return AttributeError(f"the model uses batch_sizes{where} of a packed sequence, which differ from client to client")


class CohortRecurrence(TorchFunctionMode):
    """Replaces recurrent layers and packing of tensors with a client axis."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func in _KINDS and _any_vectorised(args):
            return _recurrent(_KINDS[func], args)
        if func in _CELLS and _any_vectorised(args):
            return _CELLS[func](*args, **kwargs)
        if func is torch._pack_padded_sequence and _any_vectorised(args):
            return _pack(*args)
        if func is torch._pad_packed_sequence and isinstance(args[1], PaddedSizes):
            return _pad(*args)
        if func is Tensor.scatter_ and is_vectorised(args[0]) and len(args) == 4 and not kwargs:
            return args[0].copy_(args[0].scatter(*args[1:]))  # packing calls it; in place, vmap has no rule for it
        if func is torch.sort and is_vectorised(args[0]) and len(args) == 1:
            return func(*args, **kwargs | {"stable": True})  # sequences of one length keep their order on a GPU too
        if func is Tensor.data_ptr and is_functorch_wrapped_tensor(args[0]):
            return 0  # RNNBase.flatten_parameters compares addresses, and leaves weights alone that share one
        if func in (Tensor.cpu, Tensor.to) and is_vectorised(args[0]) and args[0].device.type != "cpu":
            return _stay(func, args, kwargs)
        return func(*args, **kwargs)


def _any_vectorised(args: Any) -> bool:
    return any(is_vectorised(v) for a in args for v in (a if isinstance(a, list | tuple) else (a,)))


def _recurrent(kind: str, args: Any) -> Any:
    """Compute what `torch.lstm` and its relatives compute, for padded or for packed sequences."""
    packed = isinstance(args[3], list | tuple)  # the weights
    x, *sizes = args[:2] if packed else args[:1]
    state, weights, bias, layers, _, _, bidirectional, *batch_first = args[len(sizes) + 1 :]
    lengths = None
    if packed:
        if not isinstance(sizes[0], PaddedSizes):
            raise ValueError("its packed sequence was not packed with pack_padded_sequence in the forward pass")
        x, lengths = x.unflatten(0, (sizes[0].T, sizes[0].B)), sizes[0].lengths
    swap = bool(batch_first) and batch_first[0]
    x = x.transpose(0, 1) if swap else x
    states = state if kind == "lstm" else (state,)
    x, ends = recurrent_layers(kind, x, states, weights, bias, layers, 1 + bidirectional, lengths)
    if swap:
        return (x.transpose(0, 1), *ends)
    rows = x.flatten(0, 1)  # stored client by client, so that the model may call `view` as on PyTorch's outputs
    return (rows if packed else rows.unflatten(0, x.shape[:2]), *ends)


def _lstm_cell(x: Tensor, state: Sequence[Tensor], *weights: Any) -> tuple[Tensor, Tensor]:
    h, c = state
    inner, outer = _gates(x, h, *weights)
    i, f, g, o = (inner + outer).chunk(4, -1)
    c = f.sigmoid() * c + i.sigmoid() * g.tanh()
    return o.sigmoid() * c.tanh(), c


def _gru_cell(x: Tensor, h: Tensor, *weights: Any) -> Tensor:
    (r_x, z_x, n_x), (r_h, z_h, n_h) = (gates.chunk(3, -1) for gates in _gates(x, h, *weights))
    n = (n_x + (r_x + r_h).sigmoid() * n_h).tanh()
    return n + (z_x + z_h).sigmoid() * (h - n)


def _rnn_cell(activation: Callable[[Tensor], Tensor]) -> Callable[..., Tensor]:
    def cell(x: Tensor, h: Tensor, *weights: Any) -> Tensor:
        inner, outer = _gates(x, h, *weights)
        return activation(inner + outer)

    return cell


def _gates(
    x: Tensor, h: Tensor, w_x: Tensor, w_h: Tensor, b_x: Tensor | None = None, b_h: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Return what inputs and state add to the gates of a cell."""
    return linear(x, w_x, b_x), linear(h, w_h, b_h)


_CELLS: dict[Any, Callable[..., Any]] = {
    torch.lstm_cell: _lstm_cell,
    torch.gru_cell: _gru_cell,
    torch.rnn_tanh_cell: _rnn_cell(torch.tanh),
    torch.rnn_relu_cell: _rnn_cell(torch.relu),
}


def _pack(x: Tensor, lengths: Tensor, batch_first: bool) -> tuple[Tensor, PaddedSizes]:
    """Return the rows of all steps, padding included.

    PyTorch refuses lengths below 1 and above T. A program of a cohort cannot read them, so such samples become NaN.
    """
    x = x.transpose(0, 1) if batch_first else x
    T, B = x.shape[:2]
    lengths = lengths.to(x.device)
    valid = ((lengths >= 1) & (lengths <= T)).view(1, B, *[1] * (x.ndim - 2))
    x = torch.where(valid, x, torch.full((), torch.nan, dtype=x.dtype, device=x.device))
    return x.flatten(0, 1), PaddedSizes(T, B, lengths.clamp(1, T))


def _pad(x: Tensor, sizes: PaddedSizes, batch_first: bool, value: float, total: int) -> tuple[Tensor, Tensor]:
    """Return all T steps, or `total`, filled with `value` after the end of each sequence; and the lengths."""
    x = x.unflatten(0, (sizes.T, sizes.B))
    t = torch.arange(sizes.T, device=x.device).unsqueeze(1)
    inside = (t < sizes.lengths).view(sizes.T, sizes.B, *[1] * (x.ndim - 2))
    x = torch.where(inside, x, torch.full((), value, dtype=x.dtype, device=x.device))
    if longer and isinstance(total, UnstatedLength):
        total = sizes.T + _MORE
    if total > sizes.T:
        x = torch.cat([x, x.new_full((total - sizes.T, *x.shape[1:]), value)])
    return x.transpose(0, 1) if batch_first else x, sizes.lengths


def _stay(func: Any, args: Any, kwargs: Any) -> Any:
    """Leave a tensor on its device where it would go to the CPU, as lengths for packing do."""
    x, *rest = args
    if func is Tensor.cpu:
        return x
    kept = [a for a in rest if not _is_cpu(a)]
    named = {name: a for name, a in kwargs.items() if not _is_cpu(a)}
    return x.to(*kept, **named) if kept or named else x


def _is_cpu(a: Any) -> bool:
    return isinstance(a, str | torch.device) and torch.device(a).type == "cpu"
