"""Convolutions with separate weights per client, as Triton kernels: implicit matrix products over the client axis.

A cohort's convolution has a weight tensor per client, which libraries treat as a grouped convolution: one slow launch
per client if channels are few, with layout conversions before and after. Here a program computes a tile of one client's
product  patches (rows × taps) · weights (taps × channels).  Rows are (sample, output row, output column), taps are
(kernel row, kernel column, input channel); patches are never materialised. Images can have any strides; channels last
is the fast layout and that of the outputs (`layout.py`). Strides are compile-time constants, so that the compiler can
vectorise loads.
"""

from __future__ import annotations

# mypy: ignore-errors
# Triton has no types, and its kernels are not quite Python.
from collections.abc import Sequence
from functools import lru_cache

import torch
import triton
import triton.language as tl
from torch import Tensor

from .convolution_ops import padding
from .layout import empty_images
from .tiles import STAGES, forward_tiles, weight_tiles


@triton.jit
def _forward(
    x,
    w,
    out,
    x_m: tl.constexpr,
    x_b: tl.constexpr,
    x_c: tl.constexpr,
    x_h: tl.constexpr,
    x_w: tl.constexpr,
    out_m: tl.constexpr,
    out_row: tl.constexpr,
    rows: tl.constexpr,
    C: tl.constexpr,
    H: tl.constexpr,
    W: tl.constexpr,
    OH: tl.constexpr,
    OW: tl.constexpr,
    CO: tl.constexpr,
    KH: tl.constexpr,
    KW: tl.constexpr,
    stride: tl.constexpr,
    pad_h: tl.constexpr,
    pad_w: tl.constexpr,
    dilation: tl.constexpr,
    PRECISION: tl.constexpr,
    BR: tl.constexpr,
    BT: tl.constexpr,
    BO: tl.constexpr,
):
    """out[m, row, co] = Σ_tap x[m, patch(row, tap)] · w[m, co, tap].

    `dilation` inserts zeros into the input, so that the kernel also computes the gradient of a strided convolution.
    """
    T: tl.constexpr = KH * KW * C
    WIDE: tl.constexpr = C % BT == 0  # a block of taps belongs to one kernel position
    m = tl.program_id(2).to(tl.int64)
    r = tl.program_id(0) * BR + tl.arange(0, BR)
    o = tl.program_id(1) * BO + tl.arange(0, BO)
    b, at = r // (OH * OW), r % (OH * OW)
    top, left = (at // OW) * stride - pad_h, (at % OW) * stride - pad_w
    # The address of a patch element is the sum of an offset of its row and an offset of its tap.
    x_row = x + m * x_m + b.to(tl.int64) * x_b
    if dilation == 1:
        x_row += top * x_h + left * x_w
    w_m = w + m * T * CO
    sums = tl.zeros((BR, BO), dtype=tl.float32)
    for i in range((T + BT - 1) // BT):
        t = i * BT + tl.arange(0, BT)
        if WIDE:
            position = i // (C // BT)
            c = (i % (C // BT)) * BT + tl.arange(0, BT)
            kh, kw = position // KW, position % KW
            x_tap = c * x_c + (kh * x_h + kw * x_w)
            h, v = (top + kh)[:, None], (left + kw)[:, None]
            inside = (r < rows)[:, None]
        else:
            kh, kw, c = t // C // KW, t // C % KW, t % C
            x_tap = c * x_c + kh * x_h + kw * x_w
            h, v = top[:, None] + kh[None, :], left[:, None] + kw[None, :]
            inside = (r < rows)[:, None] & (t < T)[None, :]
        if dilation == 1:
            if pad_h > 0 or pad_w > 0:
                inside = inside & (h >= 0) & (v >= 0) & (h < H) & (v < W)
            patch = tl.load(x_row[:, None] + x_tap[None, :], mask=inside, other=0.0)
        else:
            inside = inside & (h >= 0) & (v >= 0) & (h % dilation == 0) & (v % dilation == 0)
            h, v = h // dilation, v // dilation
            inside = inside & (h < H) & (v < W)
            patch = tl.load(x_row[:, None] + (c * x_c)[None, :] + h * x_h + v * x_w, mask=inside, other=0.0)
        if CO % BO == 0 and T % BT == 0:
            weight = tl.load(w_m + o[:, None] * T + t[None, :])
        else:
            weight = tl.load(w_m + o[:, None] * T + t[None, :], mask=(o < CO)[:, None] & (t < T)[None, :], other=0.0)
        sums = tl.dot(patch, tl.trans(weight), sums, input_precision=PRECISION)
    place = (r.to(tl.int64) * out_row + m * out_m)[:, None] + o[None, :]
    tl.store(out + place, sums.to(out.dtype.element_ty), mask=(r < rows)[:, None] & (o < CO)[None, :])


@triton.jit
def _weight(
    x,
    dy,
    out,
    x_m: tl.constexpr,
    x_b: tl.constexpr,
    x_c: tl.constexpr,
    x_h: tl.constexpr,
    x_w: tl.constexpr,
    dy_m: tl.constexpr,
    dy_b: tl.constexpr,
    dy_c: tl.constexpr,
    dy_h: tl.constexpr,
    dy_w: tl.constexpr,
    rows: tl.constexpr,
    C: tl.constexpr,
    H: tl.constexpr,
    W: tl.constexpr,
    OH: tl.constexpr,
    OW: tl.constexpr,
    CO: tl.constexpr,
    KH: tl.constexpr,
    KW: tl.constexpr,
    stride: tl.constexpr,
    pad_h: tl.constexpr,
    pad_w: tl.constexpr,
    share: tl.constexpr,
    PRECISION: tl.constexpr,
    BR: tl.constexpr,
    BT: tl.constexpr,
    BO: tl.constexpr,
):
    """out[s, m, tap, co] = Σ_row x[m, patch(row, tap)] · dy[m, row, co] over the s-th share of the rows.

    If channels are few, out is [s, m, co, channel, kernel row, kernel column], the layout of the weights.
    """
    T: tl.constexpr = KH * KW * C
    WIDE: tl.constexpr = C % BT == 0
    o_blocks: tl.constexpr = (CO + BO - 1) // BO
    m = tl.program_id(2).to(tl.int64)
    s = tl.program_id(1) // o_blocks
    t = tl.program_id(0) * BT + tl.arange(0, BT)
    o = (tl.program_id(1) % o_blocks) * BO + tl.arange(0, BO)
    if WIDE:
        position = tl.program_id(0) // (C // BT)
        c = (tl.program_id(0) % (C // BT)) * BT + tl.arange(0, BT)
        kh, kw = position // KW, position % KW
        x_tap = x + m * x_m + c * x_c + (kh * x_h + kw * x_w)
    else:
        kh, kw, c = t // C // KW, t // C % KW, t % C
        x_tap = x + m * x_m + c * x_c + kh * x_h + kw * x_w
        stored = c * (KH * KW) + kh * KW + kw
        kh, kw = kh[None, :], kw[None, :]
    sums = tl.zeros((BT, BO), dtype=tl.float32)
    for r0 in range(0, share, BR):
        r = s * share + r0 + tl.arange(0, BR)
        real = r < rows
        b, at = (r // (OH * OW)).to(tl.int64), r % (OH * OW)
        oh, ow = at // OW, at % OW
        top, left = oh * stride - pad_h, ow * stride - pad_w
        x_row = b * x_b + top * x_h + left * x_w
        inside = real[:, None]
        if not WIDE:
            inside = inside & (t < T)[None, :]
        if pad_h > 0 or pad_w > 0:
            h, v = top[:, None] + kh, left[:, None] + kw
            inside = inside & (h >= 0) & (v >= 0) & (h < H) & (v < W)
        patch = tl.load(x_tap[None, :] + x_row[:, None], mask=inside, other=0.0)
        place = dy + m * dy_m + b * dy_b + oh * dy_h + ow * dy_w
        if CO % BO == 0:
            change = tl.load(place[:, None] + o[None, :] * dy_c, mask=real[:, None], other=0.0)
        else:
            change = tl.load(place[:, None] + o[None, :] * dy_c, mask=real[:, None] & (o < CO)[None, :], other=0.0)
        sums = tl.dot(tl.trans(patch), change, sums, input_precision=PRECISION)
    if WIDE:
        place = ((s * tl.num_programs(2) + m) * T + t.to(tl.int64))[:, None] * CO + o[None, :]
    else:
        place = (s * tl.num_programs(2) + m) * CO * T + o[None, :] * T + stored[:, None]
    tl.store(out + place, sums, mask=(t < T)[:, None] & (o < CO)[None, :])


@lru_cache
def _shared_memory(device: torch.device) -> int:
    """Return the bytes of shared memory per program."""
    if device.type == "cpu":  # Triton's interpreter has no limit
        return 2**31
    return triton.runtime.driver.active.utils.get_device_properties(device.index)["max_shared_mem"]


def _product(
    x: Tensor,
    taps: Tensor,
    size: tuple[int, int],
    kernel: Sequence[int],
    stride: int,
    pads: Sequence[int],
    dilation: int,
    precision: str,
) -> Tensor:
    """Convolve x (M, B, C, H, W) with weights `taps` (M, CO, KH·KW·C) to (B, M, CO, OH, OW)."""
    M, B, C, H, W = x.shape
    CO, (OH, OW) = taps.shape[1], size
    rows, T = B * OH * OW, kernel[0] * kernel[1] * C
    out = empty_images(x, B, M, CO, OH, OW)
    BR, BT, BO, warps = forward_tiles(x, CO, rows, T, max(pads))
    grid = (triton.cdiv(rows, BR), triton.cdiv(CO, BO), M)
    _forward[grid](
        x, taps, out, *x.stride(), out.stride(1), out.stride(4), rows, C, H, W, OH, OW, CO, *kernel, stride, *pads,
        dilation, PRECISION=precision, BR=BR, BT=BT, BO=BO, num_warps=warps,
        num_stages=2 if C % 16 and T >= 128 else STAGES,
    )  # fmt: skip
    return out


def forward(x: Tensor, w: Tensor, stride: int, pad: int, precision: str) -> Tensor:
    """Convolve the images of each client: x (M, B, C, H, W), w (M, CO, C, KH, KW)."""
    (M, CO), kernel = w.shape[:2], w.shape[3:]
    pads = padding(kernel, pad)
    size = tuple((n + 2 * p - k) // stride + 1 for n, p, k in zip(x.shape[3:], pads, kernel, strict=True))
    taps = w.permute(0, 1, 3, 4, 2).reshape(M, CO, -1).contiguous()
    return _product(x, taps, size, kernel, stride, pads, 1, precision)


def input_gradient(dy: Tensor, w: Tensor, size: tuple[int, int], stride: int, pad: int, precision: str) -> Tensor:
    """Return the gradient of inputs of height and width `size`: a convolution of dy with flipped weights."""
    M, _, C, *kernel = w.shape
    taps = w.flip(3, 4).permute(0, 2, 3, 4, 1).reshape(M, C, -1).contiguous()
    pads = [k - 1 - p for k, p in zip(kernel, padding(kernel, pad), strict=True)]
    return _product(dy, taps, size, kernel, 1, pads, stride, precision)


def weight_gradient(x: Tensor, dy: Tensor, kernel: Sequence[int], stride: int, pad: int, precision: str) -> Tensor:
    """Return the gradient of the weights, (M, CO, C, KH, KW). Shares of the rows are summed in a fixed order."""
    M, B, C, H, W = x.shape
    CO, OH, OW = dy.shape[2:]
    T, rows = kernel[0] * kernel[1] * C, B * OH * OW
    BR, BT, BO, shares = weight_tiles(x, CO, rows, T, _shared_memory(x.device))
    share = triton.cdiv(triton.cdiv(rows, shares), BR) * BR
    shares = triton.cdiv(rows, share)
    out = torch.empty((shares, M, T * CO), dtype=torch.float32, device=x.device)
    grid = (triton.cdiv(T, BT), triton.cdiv(CO, BO) * shares, M)
    _weight[grid](
        x, dy, out, *x.stride(), *dy.stride(), rows, C, H, W, OH, OW, CO, *kernel, stride, *padding(kernel, pad), share,
        PRECISION=precision, BR=BR, BT=BT, BO=BO, num_warps=4, num_stages=STAGES,
    )  # fmt: skip
    total = (out[0] if shares == 1 else out.sum(0)).to(x.dtype)
    if C % BT:  # few channels
        return total.view(M, CO, C, *kernel)
    return total.view(M, *kernel, C, CO).permute(0, 4, 3, 1, 2).contiguous()
