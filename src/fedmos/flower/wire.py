"""What travels: a header of plain values, and vectors and numbers as the raw bytes of the run's dtype.

Nothing that arrives is deserialised by name: an array is accepted if its declared type, shape and length are the
expected ones, and then its bytes are the numbers. So there are as many bytes on the wire as the algorithm declares.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict
from torch import Tensor

from ..algorithm import Vectors
from ..core.formatting import format_value, one_line

PROTOCOL = 1
RAW = "fedmos.raw"
"""How arrays are serialised: little-endian numbers, and nothing else."""

HELLO, LOSSES, GRADIENTS = "query.hello", "query.losses", "query.gradients"
PREPARE, TRAIN, EVALUATE = "train.prepare", "train.work", "evaluate.loss"

_COMMON = {"protocol": int, "run": str, "round": int, "client": int}
_JOB = {
    "lr": float,
    "N": int,
    "S": int,
    "W": float,
    "p": float,
    "last": int,
    "width": int,
    "reports": str,
    "keep": bool,
}
_DOWN: dict[str, dict[str, type]] = {
    HELLO: {},
    LOSSES: {"batch": bool, "keep": bool},
    GRADIENTS: {"keep": bool},
    PREPARE: _JOB,
    TRAIN: _JOB,
    EVALUATE: {},
}
"""What the server says of a request, beside what all messages say."""
_UP: dict[str, type] = {"samples": int}
_HELLO_UP: dict[str, type] = {"samples": int, "name": str, "agreement": str}

_HEADER, _VECTORS, _NUMBERS = "fedmos", "vectors", "numbers"

Shapes = Mapping[str, tuple[int, ...]]


class RefusedError(ValueError):
    """A message that cannot be used, and why."""


def header_down(kind: str, content: RecordDict) -> dict[str, Any]:
    """What a request says."""
    return _header(content, _COMMON | _DOWN[kind])


def header_up(kind: str, content: RecordDict) -> dict[str, Any]:
    """What a reply says."""
    return _header(content, _COMMON | (_HELLO_UP if kind == HELLO else _UP))


def compose(
    header: Mapping[str, Any], vectors: ArrayRecord | None = None, numbers: ArrayRecord | None = None
) -> RecordDict:
    """A message's content; records that hold nothing are left out."""
    content = RecordDict({_HEADER: ConfigRecord({"protocol": PROTOCOL} | dict(header))})
    for key, record in ((_VECTORS, vectors), (_NUMBERS, numbers)):
        if record is not None and len(record):
            content[key] = record
    return content


def pack(tensors: Mapping[str, Tensor]) -> ArrayRecord:
    """Named tensors as they travel."""
    arrays = {}
    for name, v in tensors.items():
        a = v.detach().cpu().contiguous().numpy()
        little = a.astype(a.dtype.newbyteorder("<"), copy=False)
        arrays[name] = Array(dtype=_name(v.dtype), shape=tuple(v.shape), stype=RAW, data=little.tobytes())
    return ArrayRecord(arrays)


def vectors_in(content: RecordDict, shapes: Shapes, dtype: torch.dtype) -> Vectors:
    return _tensors(content, _VECTORS, shapes, dtype)


def numbers_in(content: RecordDict, shapes: Shapes, dtype: torch.dtype) -> Vectors:
    return _tensors(content, _NUMBERS, shapes, dtype)


def round_of(content: RecordDict) -> int:
    """The round of a message of our own."""
    header: Any = content[_HEADER]
    return int(header["round"])


def names_in(content: RecordDict) -> set[str]:
    """The names of the vectors that came."""
    record = content.get(_VECTORS)
    return set(record) if isinstance(record, ArrayRecord) else set()


def payload(content: RecordDict) -> int:
    """Bytes of vectors and numbers."""
    records = [record for record in content.values() if isinstance(record, ArrayRecord)]
    return sum(len(array.data) for record in records for array in record.values())


def check_finite(tensors: Vectors, norm_bound: float | None = None) -> None:
    for name, v in tensors.items():
        if not bool(v.isfinite().all()):
            raise RefusedError(f"'{name}' is not finite")
        if norm_bound is not None and (norm := float(v.double().norm())) > norm_bound:
            raise RefusedError(f"'{name}' has a norm of {norm:.4g}, over the bound of {norm_bound:.4g}")


def check_equal(found: Mapping[str, Any], **expected: Any) -> None:
    """Hold a header to what it must say."""
    for name, value in expected.items():
        if found[name] != value:
            raise RefusedError(f"its '{name}' is {format_value(found[name])} instead of {format_value(value)}")


def _header(content: RecordDict, fields: Mapping[str, type]) -> dict[str, Any]:
    unknown = set(content) - {_HEADER, _VECTORS, _NUMBERS}
    if unknown:
        raise RefusedError(f"it has records of unknown names: {_listed(unknown)}")
    record = content.get(_HEADER)
    if not isinstance(record, ConfigRecord):
        raise RefusedError("it has no header")
    if set(record) != set(fields):
        raise RefusedError(f"its header has the fields {_listed(record)} instead of {_listed(fields)}")
    for name, kind in fields.items():
        if type(record[name]) is not kind:
            raise RefusedError(f"'{name}' in its header must be {kind.__name__}, got {format_value(record[name])}")
    if record["protocol"] != PROTOCOL:
        spoken = format_value(record["protocol"])
        raise RefusedError(f"it speaks protocol {spoken} and not {PROTOCOL}; use one fedmos everywhere")
    return dict(record)


def _tensors(content: RecordDict, key: str, shapes: Shapes, dtype: torch.dtype) -> Vectors:
    record = content.get(key, ArrayRecord())
    if not isinstance(record, ArrayRecord):
        raise RefusedError(f"'{key}' must be arrays, got {type(record).__name__}")
    if set(record) != set(shapes):
        raise RefusedError(f"its {key} are {_listed(record)} instead of {_listed(shapes)}")
    return {name: _tensor(name, record[name], shape, dtype) for name, shape in shapes.items()}


def _tensor(name: str, array: Array, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    for what, found, expected in (
        ("serialised as", array.stype, RAW),
        ("of dtype", array.dtype, _name(dtype)),
        ("of shape", tuple(array.shape), shape),
    ):
        if found != expected:
            raise RefusedError(f"'{name}' must be {what} {expected}, got {one_line(str(found), 60)}")
    kind = np.dtype(_name(dtype)).newbyteorder("<")
    size = kind.itemsize * int(np.prod(shape, dtype=np.int64))
    if len(array.data) != size:
        raise RefusedError(f"'{name}' must have {size} bytes, got {len(array.data)}")
    numbers = np.frombuffer(array.data, dtype=kind).reshape(shape)
    return torch.from_numpy(numbers.astype(kind.newbyteorder("=")))


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _listed(names: Any) -> str:
    return one_line(", ".join(sorted(map(str, names))) or "none", 200)
