"""The time loops of recurrent layers of a cohort, as operators that tracing and compiling treat as opaque.

A step is one batched product over all clients and a few elementwise operations, and so is a step of the backward pass:
the factors of the chain rule, and the gradients of weights, are computed for all steps at once. On a GPU, in float32
and without a projection, a step is one Triton kernel (`recurrence_triton`).

Shapes: T steps, N = clients · directions, B samples, H units, R outputs (H without a projection), and G = gates · H.
`gates` (T, N, B, G) is what inputs and biases contribute to the gates; `h` (N, B, R) and `c` (N, B, H) are the initial
states; `w` (N, G, R) are the recurrent weights. A tensor that a kind does not have is empty: `c` is (N, B, 0), `bias`
(N, 0) where it is part of `gates`, and `projection` (N, R, H) is (N, 0, 0). Gates are in PyTorch's order.
"""

from __future__ import annotations

import torch
from torch import Tensor

from .operators import Operator

GATES = {"lstm": 4, "gru": 3, "rnn_tanh": 1, "rnn_relu": 1}
"""The number of gates of each kind of layer."""

Forward = tuple[Tensor, Tensor, Tensor]
Gradients = tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]


@Operator("recurrence")
def _recurrence(kind: str, gates: Tensor, h: Tensor, c: Tensor, w: Tensor, bias: Tensor, projection: Tensor) -> Forward:
    """Return the outputs (T, N, B, R), the cell states (T, N, B, H or 0), and what the backward pass needs."""
    if _own_kernel(gates, projection):
        from . import recurrence_triton

        return recurrence_triton.forward(kind, gates, h, c, w, bias)
    if kind == "lstm":
        return _lstm(gates, h, c, w, projection)
    if kind == "gru":
        return _gru(gates, h, w, bias)
    return _rnn(kind, gates, h, w)


@_recurrence.register_fake
def _(kind: str, gates: Tensor, h: Tensor, c: Tensor, w: Tensor, bias: Tensor, projection: Tensor) -> Forward:
    T, N, B, G = gates.shape
    sizes = h.shape[-1], c.shape[-1], {"lstm": G, "gru": G // 3 * 4}.get(kind, 0)
    if _own_kernel(gates, projection):
        outputs, cells, kept = (empty_steps(gates, T, N, B, size) for size in sizes)
    else:
        outputs, cells, kept = (gates.new_empty((T, N, B, size)) for size in sizes)
    return outputs, cells, kept


def _lstm(gates: Tensor, h: Tensor, c: Tensor, w: Tensor, projection: Tensor) -> Forward:
    """Keep the activated gates i, f, g, o."""
    gates, (T, H) = _copy(gates), (len(gates), c.shape[-1])
    outputs, cells = gates.new_empty((T, *h.shape)), gates.new_empty((T, *c.shape))
    for t in range(T):
        gates[t].baddbmm_(h, w.mT)
        i, f, g, o = gates[t].split(H, -1)
        gates[t, ..., : 2 * H].sigmoid_()
        g.tanh_()
        o.sigmoid_()
        c = torch.mul(f, c, out=cells[t]).addcmul_(i, g)
        if projection.numel():
            h = torch.bmm(c.tanh().mul_(o), projection.mT, out=outputs[t])
        else:
            h = torch.tanh(c, out=outputs[t]).mul_(o)
    return outputs, cells, gates


def _gru(gates: Tensor, h: Tensor, w: Tensor, bias: Tensor) -> Forward:
    """Keep the activated gates r, z, n, and what the state contributes to n before it is multiplied by r."""
    T, N, B, G = gates.shape
    H = G // 3
    recurrent = _copy(bias[:, None].expand(T, N, B, G))
    outputs, kept = gates.new_empty((T, *h.shape)), gates.new_empty((T, N, B, 4 * H))
    for t in range(T):
        recurrent[t].baddbmm_(h, w.mT)
        r, z, n, _ = kept[t].split(H, -1)
        torch.add(gates[t, ..., : 2 * H], recurrent[t, ..., : 2 * H], out=kept[t, ..., : 2 * H]).sigmoid_()
        torch.addcmul(gates[t, ..., 2 * H :], r, recurrent[t, ..., 2 * H :], out=n).tanh_()
        h = torch.lerp(n, h, z, out=outputs[t])
    kept[..., 3 * H :] = recurrent[..., 2 * H :]
    return outputs, gates.new_empty((T, N, B, 0)), kept


def _rnn(kind: str, gates: Tensor, h: Tensor, w: Tensor) -> Forward:
    outputs = _copy(gates)
    for t in range(len(gates)):
        outputs[t].baddbmm_(h, w.mT)
        h = outputs[t].tanh_() if kind == "rnn_tanh" else outputs[t].relu_()
    return outputs, gates.new_empty((*gates.shape[:3], 0)), gates.new_empty((*gates.shape[:3], 0))


@Operator("recurrence_backward")
def _recurrence_backward(
    kind: str,
    trained: bool,
    d_outputs: Tensor,
    d_cells: Tensor,
    h: Tensor,
    c: Tensor,
    w: Tensor,
    projection: Tensor,
    outputs: Tensor,
    cells: Tensor,
    kept: Tensor,
) -> Gradients:
    """Return the gradients of gates, h, c and, if `trained`, of w, bias and projection; without, these are empty."""
    if _own_kernel(outputs, projection):
        from . import recurrence_triton

        return recurrence_triton.backward(kind, trained, d_outputs, d_cells, h, c, w, outputs, cells, kept)
    if kind == "lstm":
        return _lstm_backward(trained, d_outputs, d_cells, h, c, w, projection, outputs, cells, kept)
    if kind == "gru":
        return _gru_backward(trained, d_outputs, h, w, outputs, kept)
    return _rnn_backward(kind, trained, d_outputs, h, w, outputs)


@_recurrence_backward.register_fake
def _(
    kind: str,
    trained: bool,
    d_outputs: Tensor,
    d_cells: Tensor,
    h: Tensor,
    c: Tensor,
    w: Tensor,
    projection: Tensor,
    outputs: Tensor,
    cells: Tensor,
    kept: Tensor,
) -> Gradients:
    (T, N, B, _), G = outputs.shape, w.shape[1]
    own = _own_kernel(outputs, projection)
    gates = empty_steps(outputs, T, N, B, G) if own else outputs.new_empty((T, N, B, G))
    dh, dc = outputs.new_empty(h.shape), outputs.new_empty(c.shape)
    if not trained:
        return gates, dh, dc, *nothing(w)
    bias = outputs.new_empty((N, G if kind == "gru" else 0))
    return gates, dh, dc, outputs.new_empty(w.shape), bias, outputs.new_empty(projection.shape)


def _lstm_backward(
    trained: bool,
    d_outputs: Tensor,
    d_cells: Tensor,
    h: Tensor,
    c: Tensor,
    w: Tensor,
    projection: Tensor,
    outputs: Tensor,
    cells: Tensor,
    kept: Tensor,
) -> Gradients:
    i, f, g, o = kept.chunk(4, -1)
    tanh_c = cells.tanh()
    # The derivatives of i, f, g with respect to c, and of o and c with respect to the unprojected output.
    by_c = torch.stack([g * i * (1 - i), _shifted(c, cells) * f * (1 - f), i * (1 - g * g)], -2)
    by_h, c_by_h = tanh_c * o * (1 - o), o * (1 - tanh_c * tanh_c)
    dh, dc = _with_start(d_outputs), _with_start(d_cells)
    d_gates = kept.new_empty((*cells.shape[:3], 4, cells.shape[-1]))
    for t in reversed(range(len(cells))):
        d = torch.bmm(dh[t + 1], projection) if projection.numel() else dh[t + 1]
        dc[t + 1].addcmul_(d, c_by_h[t])
        torch.mul(dc[t + 1].unsqueeze(-2), by_c[t], out=d_gates[t, ..., :3, :])
        torch.mul(d, by_h[t], out=d_gates[t, ..., 3, :])
        dc[t].addcmul_(dc[t + 1], f[t])
        dh[t].baddbmm_(d_gates[t].flatten(-2), w)
    dg = d_gates.flatten(-2)
    # Copies, because an operator must not return parts of one tensor.
    states = dh[0].clone(), dc[0].clone()
    if not trained:
        return dg, *states, *nothing(w)
    dp = _weight_gradient(dh[1:], tanh_c * o) if projection.numel() else torch.empty_like(projection)
    return dg, *states, _weight_gradient(dg, _shifted(h, outputs)), dg.new_empty((len(w), 0)), dp


def _gru_backward(trained: bool, d_outputs: Tensor, h: Tensor, w: Tensor, outputs: Tensor, kept: Tensor) -> Gradients:
    r, z, n, state_n = kept.chunk(4, -1)
    before = _shifted(h, outputs)
    # The derivatives of r, z and n with respect to the output; of what the state contributes to n, another factor r.
    by_n = (1 - z) * (1 - n * n)
    by_h = torch.stack([by_n * state_n * r * (1 - r), (before - n) * z * (1 - z), by_n * r], -2)
    dh = _with_start(d_outputs)
    d_state = torch.empty_like(by_h)
    for t in reversed(range(len(outputs))):
        torch.mul(dh[t + 1].unsqueeze(-2), by_h[t], out=d_state[t])
        dh[t].addcmul_(dh[t + 1], z[t]).baddbmm_(d_state[t].flatten(-2), w)
    dg = torch.cat([d_state[..., :2, :].flatten(-2), dh[1:] * by_n], -1)
    states = dh[0].clone(), h.new_empty((*h.shape[:2], 0))
    if not trained:
        return dg, *states, *nothing(w)
    ds = d_state.flatten(-2)
    return dg, *states, _weight_gradient(ds, before), ds.sum((0, 2)), w.new_empty((len(w), 0, 0))


def _rnn_backward(kind: str, trained: bool, d_outputs: Tensor, h: Tensor, w: Tensor, outputs: Tensor) -> Gradients:
    slope = 1 - outputs * outputs if kind == "rnn_tanh" else (outputs > 0).to(outputs.dtype)
    dh, dg = _with_start(d_outputs), torch.empty_like(outputs)
    for t in reversed(range(len(outputs))):
        torch.mul(dh[t + 1], slope[t], out=dg[t])
        dh[t].baddbmm_(dg[t], w)
    states = dh[0].clone(), h.new_empty((*h.shape[:2], 0))
    if not trained:
        return dg, *states, *nothing(w)
    dw = _weight_gradient(dg, _shifted(h, outputs))
    return dg, *states, dw, w.new_empty((len(w), 0)), w.new_empty((len(w), 0, 0))


def _own_kernel(x: Tensor, projection: Tensor) -> bool:
    """Return whether a step is one Triton kernel."""
    return x.device.type == "cuda" and x.dtype == torch.float32 and not projection.numel()


def empty_steps(like: Tensor, T: int, N: int, B: int, size: int) -> Tensor:
    """Allocate numbers of all steps (T, N, B, size), stored client by client, as our own kernels return them."""
    return like.new_empty_strided((T, N, B, size), (B * size, T * B * size, size, 1))


def nothing(w: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return what stands for the gradients of weights that are not trained."""
    return w.new_empty((len(w), 0)), w.new_empty((len(w), 0)), w.new_empty((len(w), 0))


def _copy(x: Tensor) -> Tensor:
    return x.clone(memory_format=torch.contiguous_format)


def _shifted(first: Tensor, rest: Tensor) -> Tensor:
    """Return the states before each step: `first`, then all but the last of `rest`."""
    return torch.cat([first.unsqueeze(0), rest[:-1]])


def _with_start(gradients: Tensor) -> Tensor:
    """Return a copy with zeros for the initial state in front."""
    return torch.cat([torch.zeros_like(gradients[:1]), gradients])


def _weight_gradient(d: Tensor, x: Tensor) -> Tensor:
    """Return Σ_t d_tᵀ x_t as one batched product, (N, G, R), for d (T, N, B, G) and x (T, N, B, R)."""
    return torch.bmm(d.transpose(0, 1).flatten(1, 2).mT, x.transpose(0, 1).flatten(1, 2))
