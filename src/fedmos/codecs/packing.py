"""Integers of a few bits, packed into bytes.

Entry i occupies the bits i·width … i·width + width − 1 of the little-endian bit sequence of a row. Integers of 1, 2 and
4 bits are joined in pairs until they fill a byte. For other widths, eight entries of a byte each are viewed as one
int64, whose bytes are pushed together in three steps.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import pad


def packed_length(count: int, width: int) -> int:
    """Return the number of bytes of `count` integers of `width` bits."""
    return (count * width + 7) // 8


def pack(codes: Tensor, width: int) -> Tensor:
    """Pack uint8 integers below 2^width, (…, n), into (…, ⌈n·width/8⌉) bytes."""
    length = packed_length(codes.shape[-1], width)
    if 8 % width == 0:
        codes = _padded(codes, length * 8 // width)
        while width < 8:
            codes, width = torch.add(codes[..., 0::2], codes[..., 1::2], alpha=1 << width), 2 * width
        return codes.contiguous()
    z = _padded(codes, -(-codes.shape[-1] // 8) * 8).contiguous().view(torch.int64)
    for lane in (8, 16, 32):
        gap, low, high = _lanes(lane, width)
        z = (z & low) | ((z >> gap) & high)
    # The bytes of each group of eight entries, without those that are empty now.
    groups = z.view(torch.uint8).unflatten(-1, (-1, 8))[..., :width]
    packed: Tensor = groups.flatten(-2)[..., :length].contiguous()
    return packed


def unpack(packed: Tensor, width: int, count: int) -> Tensor:
    """Return the `count` integers that `pack` was given, as uint8."""
    if 8 % width == 0:
        bits = 8
        while bits > width:
            bits //= 2
            packed = torch.stack((packed & ((1 << bits) - 1), packed >> bits), dim=-1).flatten(-2)
        return packed[..., :count]
    groups = _padded(packed, -(-count // 8) * width).unflatten(-1, (-1, width))
    z = pad(groups, (0, 8 - width)).view(torch.int64)
    for lane in (32, 16, 8):
        gap, low, high = _lanes(lane, width)
        z = (z & low) | ((z & high) << gap)
    return z.view(torch.uint8).flatten(-2)[..., :count]


def _lanes(lane: int, width: int) -> tuple[int, int, int]:
    """Return the step that joins two lanes: the gap between their contents, and the masks of both after joining."""
    filled = lane // 8 * width
    low = (1 << filled) - 1
    masks = sum(low << start for start in range(0, 64, 2 * lane))
    return lane - filled, masks, masks << filled


def _padded(v: Tensor, length: int) -> Tensor:
    """Append zeros up to a length."""
    return v if v.shape[-1] == length else pad(v, (0, length - v.shape[-1]))


def pack_indices(indices: Tensor, width: int) -> Tensor:
    """Pack int64 numbers below 2^width, (…, k), into (…, ⌈k·width/8⌉) bytes: first whole bytes, then the other bits."""
    whole, rest = divmod(width, 8)
    parts = indices.contiguous().view(torch.uint8).unflatten(-1, (-1, 8))
    packed = [parts[..., :whole].flatten(-2)]
    if rest:
        packed.append(pack(parts[..., whole].contiguous(), rest))
    return torch.cat(packed, dim=-1)


def unpack_indices(packed: Tensor, width: int, count: int) -> Tensor:
    """Return the `count` numbers that `pack_indices` was given."""
    whole, rest = divmod(width, 8)
    parts = [packed[..., : whole * count].unflatten(-1, (count, whole))] if whole else []
    if rest:
        parts.append(unpack(packed[..., whole * count :], rest, count).unsqueeze(-1))
    joined = torch.cat(parts, dim=-1)
    return pad(joined, (0, 8 - joined.shape[-1])).view(torch.int64).squeeze(-1)
