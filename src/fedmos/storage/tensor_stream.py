"""Tensors in the safetensors format, written piece by piece: the file is never whole in memory."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

import safetensors.torch
import torch
from torch import Tensor

_DTYPES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}
_ALIGNMENT = 8
_PIECE = 2**24


def encode_tensors(tensors: Mapping[str, Tensor]) -> Iterator[bytes | memoryview]:
    """Yield the bytes of a safetensors file; tensors of other dtypes than the common ones are encoded at once."""
    if any(v.dtype not in _DTYPES for v in tensors.values()):
        yield safetensors.torch.save({name: v.contiguous().clone() for name, v in tensors.items()})
        return
    # Larger numbers first, so that each tensor is aligned.
    ordered = sorted(tensors.items(), key=lambda entry: (-entry[1].dtype.itemsize, entry[0]))
    header: dict[str, Any] = {}
    end = 0
    for name, v in ordered:
        start, end = end, end + v.numel() * v.dtype.itemsize
        header[name] = {"dtype": _DTYPES[v.dtype], "shape": list(v.shape), "data_offsets": [start, end]}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % _ALIGNMENT)
    yield len(text).to_bytes(8, "little")
    yield text
    for _, v in ordered:
        values: Any = v.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy()
        data = memoryview(values)
        for start in range(0, len(data), _PIECE):
            yield data[start : start + _PIECE]
