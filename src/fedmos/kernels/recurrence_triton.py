"""The time loops of recurrent layers of a cohort on a GPU, as Triton kernels: one launch per step.

A program owns some units of some samples of one client. It computes the products with its rows of the weights for all
gates, then applies the formulas of the layer to them, so that what lies between two steps passes through memory once.
The backward pass is arranged likewise: a program of step t computes the gradients of its units of h_t, from those of
all gates of step t + 1, then those of its units' gates.

Shapes and names are those of `recurrence_ops`, without projections. All tensors are float32. Tensors with T steps are
stored client by client, which is the order of the products before and after the loop.
"""

from __future__ import annotations

# mypy: ignore-errors
# Triton has no types, and its kernels are not quite Python.
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from .recurrence_ops import Forward, Gradients, empty_steps, nothing

SAMPLES, UNITS, SUMMANDS, WARPS = 32, 16, 32, 4
"""The tiles of a program. Where it has more samples than units, warps share the samples, and no two do the same."""
STAGES = 3
"""Pipeline stages: number of tiles of each factor in shared memory at once, on some GPUs one fewer."""

# What changes from step to step must not be a constant of the compiled kernel.
_CHANGING = ["t", "T", "s", "S", "B"]


@triton.jit
def _tanh(x):
    """tanh x: a polynomial near 0, where 1 - exp(-2 |x|) has few correct digits."""
    square = x * x
    p = -5.70498872745e-3 * square + 2.06390887954e-2
    p = (p * square - 5.37397155531e-2) * square + 1.33314422036e-1
    p = (p * square - 3.33332819422e-1) * square * x + x
    e = tl.exp(-2 * tl.abs(x))
    far = (1 - e) / (1 + e)
    return tl.where(tl.abs(x) < 0.625, p, tl.where(x < 0, -far, far))


@triton.jit
def _own(B, H: tl.constexpr, BB: tl.constexpr, BH: tl.constexpr):
    """Return the client n of this program, its samples b as a row, and its units j as a column."""
    units = tl.cdiv(H, BH)
    samples = tl.cdiv(B, BB)
    p = tl.program_id(0)
    b = (p // units % samples) * BB + tl.arange(0, BB)[None, :]
    j = (p % units) * BH + tl.arange(0, BH)[:, None]
    return (p // (units * samples)).to(tl.int64), b, j


@triton.jit
def _products(
    x,
    w,
    b,
    j,
    B,
    H: tl.constexpr,
    GATES: tl.constexpr,
    X_GATE: tl.constexpr,
    W_ROW: tl.constexpr,
    W_GATE: tl.constexpr,
    PRECISION: tl.constexpr,
    BB: tl.constexpr,
    BH: tl.constexpr,
    BK: tl.constexpr,
):
    """Return Σ_k w[j, gate, k] · x[b, gate, k] of up to four gates.

    Args:
        x: The addresses of the samples' numbers, (1, BB).
        w: The address of the client's weights.
        X_GATE: The distance between gates in x; 0 if all gates share x.
        W_ROW: The distance between units in w.
        W_GATE: The distance between gates in w.
    """
    sums_0 = tl.zeros((BH, BB), dtype=tl.float32)
    sums_1 = tl.zeros((BH, BB), dtype=tl.float32)
    sums_2 = tl.zeros((BH, BB), dtype=tl.float32)
    sums_3 = tl.zeros((BH, BB), dtype=tl.float32)
    rows = w + j * W_ROW
    for first in range(0, H, BK):
        k, k_x = first + tl.arange(0, BK)[None, :], first + tl.arange(0, BK)[:, None]
        in_w, in_x = j < H, b < B
        if H % BK != 0:
            in_w, in_x = in_w & (k < H), in_x & (k_x < H)
        u = tl.load(x + k_x, mask=in_x, other=0.0)
        v = tl.load(rows + k, mask=in_w, other=0.0)
        sums_0 = tl.dot(v, u, sums_0, input_precision=PRECISION)
        if GATES > 1:
            if X_GATE > 0:
                u = tl.load(x + X_GATE + k_x, mask=in_x, other=0.0)
            v = tl.load(rows + W_GATE + k, mask=in_w, other=0.0)
            sums_1 = tl.dot(v, u, sums_1, input_precision=PRECISION)
        if GATES > 2:
            if X_GATE > 0:
                u = tl.load(x + 2 * X_GATE + k_x, mask=in_x, other=0.0)
            v = tl.load(rows + 2 * W_GATE + k, mask=in_w, other=0.0)
            sums_2 = tl.dot(v, u, sums_2, input_precision=PRECISION)
        if GATES > 3:
            if X_GATE > 0:
                u = tl.load(x + 3 * X_GATE + k_x, mask=in_x, other=0.0)
            v = tl.load(rows + 3 * W_GATE + k, mask=in_w, other=0.0)
            sums_3 = tl.dot(v, u, sums_3, input_precision=PRECISION)
    return sums_0, sums_1, sums_2, sums_3


# Forward. `before` and `c_before` hold the states before the step at (n, s) of (N, S): the initial ones or step t - 1.


@triton.jit(do_not_specialize=_CHANGING)
def _lstm(
    gates, before, c_before, w, outputs, cells, kept, t, T, s, S, B,
    H: tl.constexpr, PRECISION: tl.constexpr, BB: tl.constexpr, BH: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """c[t] = σ(f) c[t-1] + σ(i) tanh(g)  and  h[t] = σ(o) tanh(c[t]),  where (i, f, g, o) = gates[t] + W h[t-1]."""
    n, b, j = _own(B, H, BB, BH)
    real = (j < H) & (b < B)
    row = (n * T + t) * B + b
    row_before = (n * S + s) * B + b
    own, own_gates = row * H + j, row * (4 * H) + j
    x_i = tl.load(gates + own_gates, mask=real, other=0.0)
    x_f = tl.load(gates + own_gates + H, mask=real, other=0.0)
    x_g = tl.load(gates + own_gates + 2 * H, mask=real, other=0.0)
    x_o = tl.load(gates + own_gates + 3 * H, mask=real, other=0.0)
    c = tl.load(c_before + row_before * H + j, mask=real, other=0.0)
    h_i, h_f, h_g, h_o = _products(
        before + row_before * H, w + n * (4 * H * H), b, j, B, H, 4, 0, H, H * H, PRECISION, BB, BH, BK
    )
    i, f, g, o = tl.sigmoid(x_i + h_i), tl.sigmoid(x_f + h_f), _tanh(x_g + h_g), tl.sigmoid(x_o + h_o)
    c = f * c + i * g
    tl.store(outputs + own, o * _tanh(c), mask=real)
    tl.store(cells + own, c, mask=real)
    tl.store(kept + own_gates, i, mask=real)
    tl.store(kept + own_gates + H, f, mask=real)
    tl.store(kept + own_gates + 2 * H, g, mask=real)
    tl.store(kept + own_gates + 3 * H, o, mask=real)


@triton.jit(do_not_specialize=_CHANGING)
def _gru(
    gates, before, bias, w, outputs, kept, t, T, s, S, B,
    H: tl.constexpr, PRECISION: tl.constexpr, BB: tl.constexpr, BH: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """h[t] = n + σ(z) (h[t-1] - n)  with  n = tanh(gates_n[t] + σ(r) u_n),  where u = W h[t-1] + bias.

    r and z are gates[t] + u. u_n is kept beside the activated gates.
    """
    n, b, j = _own(B, H, BB, BH)
    real = (j < H) & (b < B)
    row = (n * T + t) * B + b
    row_before = (n * S + s) * B + b
    own_gates, own_kept = row * (3 * H) + j, row * (4 * H) + j
    x_r = tl.load(gates + own_gates, mask=real, other=0.0)
    x_z = tl.load(gates + own_gates + H, mask=real, other=0.0)
    x_n = tl.load(gates + own_gates + 2 * H, mask=real, other=0.0)
    own_bias = bias + n * (3 * H) + j
    b_r = tl.load(own_bias, mask=j < H, other=0.0)
    b_z = tl.load(own_bias + H, mask=j < H, other=0.0)
    b_n = tl.load(own_bias + 2 * H, mask=j < H, other=0.0)
    h = tl.load(before + row_before * H + j, mask=real, other=0.0)
    h_r, h_z, h_n, _ = _products(
        before + row_before * H, w + n * (3 * H * H), b, j, B, H, 3, 0, H, H * H, PRECISION, BB, BH, BK
    )
    r, z, u_n = tl.sigmoid(x_r + (h_r + b_r)), tl.sigmoid(x_z + (h_z + b_z)), h_n + b_n
    new = _tanh(x_n + r * u_n)
    tl.store(outputs + row * H + j, new + z * (h - new), mask=real)
    tl.store(kept + own_kept, r, mask=real)
    tl.store(kept + own_kept + H, z, mask=real)
    tl.store(kept + own_kept + 2 * H, new, mask=real)
    tl.store(kept + own_kept + 3 * H, u_n, mask=real)


@triton.jit(do_not_specialize=_CHANGING)
def _rnn(
    gates, before, w, outputs, t, T, s, S, B,
    H: tl.constexpr, TANH: tl.constexpr, PRECISION: tl.constexpr, BB: tl.constexpr, BH: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """h[t] = tanh(gates[t] + W h[t-1]), or its positive part."""
    n, b, j = _own(B, H, BB, BH)
    real = (j < H) & (b < B)
    row = (n * T + t) * B + b
    row_before = (n * S + s) * B + b
    x = tl.load(gates + row * H + j, mask=real, other=0.0)
    sums, _, _, _ = _products(before + row_before * H, w + n * (H * H), b, j, B, H, 1, 0, H, 0, PRECISION, BB, BH, BK)
    x += sums
    h = _tanh(x) if TANH else tl.where(x < 0, 0.0, x)  # NaN stays
    tl.store(outputs + row * H + j, h, mask=real)


# Backward. The gradient of h[t] has a part from its use as output, and a part from the gates of step t + 1, which the
# last step lacks. `w` (N, H, gates, H) are the weights with the state's axis in front. `after` holds what else step
# t + 1 contributes, and `carried` what this step does.


@triton.jit(do_not_specialize=_CHANGING)
def _lstm_backward(
    d_outputs, d_cells, after, c_before, w, cells, kept, d_gates, carried, t, T, s, S, B,
    H: tl.constexpr, LAST: tl.constexpr, PRECISION: tl.constexpr, BB: tl.constexpr, BH: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """dh = d_outputs[t] + Wᵀ d_gates[t+1]  and  dc = d_cells[t] + after + dh o (1 - tanh² c);  dc f is carried.

    The gradients of the gates are those of c and of h by the arguments of the activated gates.
    """
    n, b, j = _own(B, H, BB, BH)
    real = (j < H) & (b < B)
    row = (n * T + t) * B + b
    own, own_gates = row * H + j, row * (4 * H) + j
    own_state = (n * B + b) * H + j
    dh = tl.load(d_outputs + own, mask=real, other=0.0)
    dc = tl.load(d_cells + own, mask=real, other=0.0) + tl.load(after + own_state, mask=real, other=0.0)
    tanh_c = _tanh(tl.load(cells + own, mask=real, other=0.0))
    c = tl.load(c_before + ((n * S + s) * B + b) * H + j, mask=real, other=0.0)
    i = tl.load(kept + own_gates, mask=real, other=0.0)
    f = tl.load(kept + own_gates + H, mask=real, other=0.0)
    g = tl.load(kept + own_gates + 2 * H, mask=real, other=0.0)
    o = tl.load(kept + own_gates + 3 * H, mask=real, other=0.0)
    if not LAST:
        by_i, by_f, by_g, by_o = _products(
            d_gates + (row + B) * (4 * H), w + n * (4 * H * H), b, j, B, H, 4, H, 4 * H, H, PRECISION, BB, BH, BK
        )
        dh += (by_i + by_f) + (by_g + by_o)
    dc += dh * o * (1 - tanh_c * tanh_c)
    tl.store(d_gates + own_gates, dc * g * i * (1 - i), mask=real)
    tl.store(d_gates + own_gates + H, dc * c * f * (1 - f), mask=real)
    tl.store(d_gates + own_gates + 2 * H, dc * i * (1 - g * g), mask=real)
    tl.store(d_gates + own_gates + 3 * H, dh * tanh_c * o * (1 - o), mask=real)
    tl.store(carried + own_state, dc * f, mask=real)


@triton.jit(do_not_specialize=_CHANGING)
def _gru_backward(
    d_outputs, after, before, w, kept, d_gates, d_state, carried, t, T, s, S, B,
    H: tl.constexpr, LAST: tl.constexpr, PRECISION: tl.constexpr, BB: tl.constexpr, BH: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """dh = d_outputs[t] + after + Wᵀ d_state[t+1], of which dh z is carried.

    `d_state` are the gradients of u, `d_gates` those of the gates, which differ in n by the factor r.
    """
    n, b, j = _own(B, H, BB, BH)
    real = (j < H) & (b < B)
    row = (n * T + t) * B + b
    own, own_gates, own_kept = row * H + j, row * (3 * H) + j, row * (4 * H) + j
    own_state = (n * B + b) * H + j
    dh = tl.load(d_outputs + own, mask=real, other=0.0) + tl.load(after + own_state, mask=real, other=0.0)
    h = tl.load(before + ((n * S + s) * B + b) * H + j, mask=real, other=0.0)
    r = tl.load(kept + own_kept, mask=real, other=0.0)
    z = tl.load(kept + own_kept + H, mask=real, other=0.0)
    new = tl.load(kept + own_kept + 2 * H, mask=real, other=0.0)
    u_n = tl.load(kept + own_kept + 3 * H, mask=real, other=0.0)
    if not LAST:
        by_r, by_z, by_n, _ = _products(
            d_state + (row + B) * (3 * H), w + n * (3 * H * H), b, j, B, H, 3, H, 3 * H, H, PRECISION, BB, BH, BK
        )
        dh += (by_r + by_z) + by_n
    d_n = dh * (1 - z) * (1 - new * new)
    d_r, d_z = d_n * u_n * r * (1 - r), dh * (h - new) * z * (1 - z)
    tl.store(d_gates + own_gates, d_r, mask=real)
    tl.store(d_gates + own_gates + H, d_z, mask=real)
    tl.store(d_gates + own_gates + 2 * H, d_n, mask=real)
    tl.store(d_state + own_gates, d_r, mask=real)
    tl.store(d_state + own_gates + H, d_z, mask=real)
    tl.store(d_state + own_gates + 2 * H, d_n * r, mask=real)
    tl.store(carried + own_state, dh * z, mask=real)


@triton.jit(do_not_specialize=_CHANGING)
def _rnn_backward(
    d_outputs, w, outputs, d_gates, t, T, B,
    H: tl.constexpr, LAST: tl.constexpr, TANH: tl.constexpr,
    PRECISION: tl.constexpr, BB: tl.constexpr, BH: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """d_gates[t] = (d_outputs[t] + Wᵀ d_gates[t+1]) · slope of the activation."""
    n, b, j = _own(B, H, BB, BH)
    real = (j < H) & (b < B)
    row = (n * T + t) * B + b
    own = row * H + j
    dh = tl.load(d_outputs + own, mask=real, other=0.0)
    h = tl.load(outputs + own, mask=real, other=0.0)
    if not LAST:
        sums, _, _, _ = _products(
            d_gates + (row + B) * H, w + n * (H * H), b, j, B, H, 1, 0, H, 0, PRECISION, BB, BH, BK
        )
        dh += sums
    if TANH:
        dh *= 1 - h * h
    else:
        dh *= (h > 0).to(tl.float32)
    tl.store(d_gates + own, dh, mask=real)


def forward(kind: str, gates: Tensor, h: Tensor, c: Tensor, w: Tensor, bias: Tensor) -> Forward:
    """Return what `torch.ops.fedmos.recurrence` returns."""
    (T, N, B, _), H = gates.shape, h.shape[-1]
    gates, h, c, w, bias = _stored(gates), h.contiguous(), c.contiguous(), w.contiguous(), bias.contiguous()
    outputs, cells = empty_steps(gates, T, N, B, H), empty_steps(gates, T, N, B, c.shape[-1])
    kept = empty_steps(gates, T, N, B, 0 if kind.startswith("rnn") else 4 * H)
    grid, how = _launch(N, B, H)
    for t in range(T):
        step = (t, T, *((t - 1, T) if t else (0, 1)), B)
        before, c_before = (outputs, cells) if t else (h, c)
        if kind == "lstm":
            _lstm[grid](gates, before, c_before, w, outputs, cells, kept, *step, **how)
        elif kind == "gru":
            _gru[grid](gates, before, bias, w, outputs, kept, *step, **how)
        else:
            _rnn[grid](gates, before, w, outputs, *step, TANH=kind == "rnn_tanh", **how)
    return outputs, cells, kept


def backward(
    kind: str,
    trained: bool,
    d_outputs: Tensor,
    d_cells: Tensor,
    h: Tensor,
    c: Tensor,
    w: Tensor,
    outputs: Tensor,
    cells: Tensor,
    kept: Tensor,
) -> Gradients:
    """Return what `torch.ops.fedmos.recurrence_backward` returns."""
    (T, N, B, H), G = outputs.shape, w.shape[1]
    d_outputs, d_cells, outputs, cells, kept = map(_stored, (d_outputs, d_cells, outputs, cells, kept))
    h, c, columns = h.contiguous(), c.contiguous(), w.mT.contiguous()
    d_gates = empty_steps(outputs, T, N, B, G)
    d_state = empty_steps(outputs, T, N, B, G) if kind == "gru" else d_gates
    after, carried = torch.zeros_like(h), torch.empty_like(h)
    grid, how = _launch(N, B, H)
    for t in reversed(range(T)):
        step, how["LAST"] = (t, T, *((t - 1, T) if t else (0, 1)), B), t + 1 == T
        before, c_before = (outputs, cells) if t else (h, c)
        if kind == "lstm":
            _lstm_backward[grid](
                d_outputs, d_cells, after, c_before, columns, cells, kept, d_gates, carried, *step, **how
            )
        elif kind == "gru":
            _gru_backward[grid](
                d_outputs, after, before, columns, kept, d_gates, d_state, carried, *step, **how
            )  # fmt: skip
        else:
            tanh = kind == "rnn_tanh"
            _rnn_backward[grid](d_outputs, columns, outputs, d_gates, t, T, B, TANH=tanh, **how)
        after, carried = carried, after
    dh, dc = torch.bmm(d_state[0], w), after if kind == "lstm" else torch.empty_like(c)
    if kind == "gru":
        dh += after
    if not trained:
        return d_gates, dh, dc, *nothing(w)
    rows = d_state.transpose(0, 1).flatten(1, 2)
    before = torch.cat([h.unsqueeze(1), outputs.transpose(0, 1)[:, :-1]], 1).flatten(1, 2)
    d_bias = rows.sum(1) if kind == "gru" else w.new_empty((N, 0))
    return d_gates, dh, dc, torch.bmm(rows.mT, before), d_bias, w.new_empty((N, 0, 0))


def _stored(x: Tensor) -> Tensor:
    """Return x (T, N, …) as it is or copied, stored client by client."""
    return x.transpose(0, 1).contiguous().transpose(0, 1)


def _launch(N: int, B: int, H: int) -> tuple[tuple[int], dict[str, Any]]:
    """Return the grid and the constants of a kernel."""
    # Three products in tf32 are as exact as float32.
    precision = "tf32" if torch.backends.cuda.matmul.allow_tf32 else "tf32x3"
    tile = {"BB": SAMPLES, "BH": UNITS, "BK": SUMMANDS, "num_warps": WARPS, "num_stages": STAGES}
    return (N * triton.cdiv(B, SAMPLES) * triton.cdiv(H, UNITS),), {"H": H, "PRECISION": precision} | tile
