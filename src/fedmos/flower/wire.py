"""The message format: a header of plain values, and vectors and numbers as the raw bytes of the run's dtype.

A coded vector is an array of bytes: the fields of its codec, one after another.

Received arrays are never deserialised by their declared type. An array is accepted only if its type, shape and length
are the expected ones; its bytes are then read as numbers. The number of bytes sent is the number that the algorithm
declares.
"""

from __future__ import annotations

import math
import warnings
import zlib
from collections.abc import Container, Iterable, Mapping
from typing import Any

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict
from torch import Tensor

from ..algorithm import Vectors
from ..core.formatting import format_value, one_line
from .client_errors import ClientErrorCode

PROTOCOL = 1
RAW = "fedmos.raw"
"""The serialisation type of arrays: little-endian numbers without a header."""
DEFLATED = "fedmos.deflated"
"""The serialisation type of coded vectors whose bytes are compressed by zlib."""
LARGE = 2**22
"""Bytes from which on a vector is not copied where that can be avoided."""
_AT_ONCE = 2**20
"""Numbers of a vector that are examined at once."""
_LEVEL = 1
"""Higher levels of zlib take several times as long and save a few hundredths more of encoded vectors."""

HELLO, LOSSES, GRADIENTS = "query.hello", "query.losses", "query.gradients"
PREPARE, TRAIN, EVALUATE = "train.prepare", "train.work", "evaluate.loss"
SCORES = "evaluate.own"
"""Evaluation of a client on its own test samples."""
REPORT, UPLOAD = "train.report", "train.upload"
"""Training in two messages, where the selector chooses between them: the reports first, the upload if asked."""

KEYS, SHARES, MASKED, UNMASK = "train.keys", "train.shares", "train.masked", "train.unmask"
"""Secure aggregation: training and public keys, encrypted shares, the masked upload, the shares that unmask the sum."""

MAX_WIDTH = 10**7
"""The largest 'width' of a request: for how many samples of another client a client makes its own work as wide."""

COMPATIBILITY_HASH = "agreement"
"""Header field of the compatibility hash; its name is part of protocol 1."""
INPUTS_HASH = "inputs"
"""Header field of the hash of a client's input columns; empty if it has no table, or names its inputs itself."""

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
_STORED = {"stored": str, "restart": str}
_JOB |= _STORED
_SESSION: dict[str, type] = {"session": str, "members": str}
_DOWN: dict[str, dict[str, type]] = {
    HELLO: {},
    LOSSES: {"batch": bool, "keep": bool},
    GRADIENTS: {"keep": bool},
    PREPARE: _JOB,
    TRAIN: _JOB,
    REPORT: _JOB,
    UPLOAD: {"reports": str},
    EVALUATE: {},
    SCORES: {"lr": float, "last_lr": float, "N": int, "S": int, "p": float, "last": int} | _STORED,
    KEYS: _JOB | {"phase": str, "session": str, "steps": list, "factors": list},
    SHARES: _SESSION,
    MASKED: _SESSION,
    UNMASK: _SESSION,
}
"""Header fields of each kind of request, in addition to `_COMMON`."""
KINDS = tuple(_DOWN)
"""The kinds of requests."""
_UP: dict[str, type] = {"samples": int}
_HELLO_UP: dict[str, type] = {"samples": int, "name": str, COMPATIBILITY_HASH: str, INPUTS_HASH: str}

_HEADER, _VECTORS, _NUMBERS = "fedmos", "vectors", "numbers"

Shapes = Mapping[str, tuple[int, ...]]


class RefusedError(ValueError):
    """A received message is invalid; the text gives the reason. A client sends the code only."""

    def __init__(self, text: str, code: ClientErrorCode = ClientErrorCode.INVALID_REQUEST) -> None:
        super().__init__(text)
        self.code = code


def header_down(kind: str, content: RecordDict) -> dict[str, Any]:
    """Validate and return the header of a request."""
    return _header(content, _COMMON | _DOWN[kind])


def header_up(kind: str, content: RecordDict) -> dict[str, Any]:
    """Validate and return the header of a reply."""
    return _header(content, _COMMON | (_HELLO_UP if kind == HELLO else _UP))


def compose(
    header: Mapping[str, Any], vectors: ArrayRecord | None = None, numbers: ArrayRecord | None = None
) -> RecordDict:
    """Build the content of a message; empty records are omitted."""
    content = RecordDict({_HEADER: ConfigRecord({"protocol": PROTOCOL} | dict(header))})
    for key, record in ((_VECTORS, vectors), (_NUMBERS, numbers)):
        if record is not None and len(record):
            content[key] = record
    return content


def pack(tensors: Mapping[str, Tensor], compress: bool = False) -> ArrayRecord:
    """Serialise named tensors; with `compress`, encoded ones are compressed where that makes them shorter.

    The result shares the memory of large tensors.
    """
    record = ArrayRecord()
    for name, v in tensors.items():
        values = v.detach().cpu().contiguous().numpy()
        little_endian: Any = values.astype(values.dtype.newbyteorder("<"), copy=False).reshape(-1).view(np.uint8)
        data: Any = memoryview(little_endian) if little_endian.nbytes >= LARGE else little_endian.tobytes()
        stype = RAW
        if compress and v.dtype == torch.uint8 and len(shorter := zlib.compress(data, _LEVEL)) < len(data):
            data, stype = shorter, DEFLATED
        array = Array(dtype=_dtype_name(v.dtype), shape=tuple(v.shape), stype=stype, data=b"")
        array.data = data
        record[name] = array
    return record


def vectors_in(content: RecordDict, shapes: Shapes, dtype: torch.dtype, coded: Container[str] = ()) -> Vectors:
    """Validate and deserialise the vectors of a message: exactly those in `shapes`. Those in `coded` are bytes."""
    return _tensors(content, _VECTORS, shapes, dtype, coded)


def numbers_in(content: RecordDict, shapes: Shapes, dtype: torch.dtype) -> Vectors:
    """Validate and deserialise the numbers of a message: exactly those in `shapes`."""
    return _tensors(content, _NUMBERS, shapes, dtype)


def round_of(content: RecordDict) -> int:
    """Return the round of a message that this process composed."""
    header: Any = content[_HEADER]
    return int(header["round"])


def names_in(content: RecordDict) -> set[str]:
    """Return the names of the vectors in a message."""
    record = content.get(_VECTORS)
    return set(record) if isinstance(record, ArrayRecord) else set()


def payload(content: RecordDict) -> int:
    """Return the number of bytes of a message's vectors and numbers."""
    records = [record for record in content.values() if isinstance(record, ArrayRecord)]
    return sum(len(array.data) for record in records for array in record.values())


def overhead(content: RecordDict) -> int:
    """Return the bytes that Flower sends of a message's content beside its vectors and numbers."""
    # With one byte of each array: to copy all of them would take as long as sending them.
    light, data = RecordDict(dict(content)), 0
    for key, record in content.items():
        if isinstance(record, ArrayRecord):
            light[key] = ArrayRecord(
                {name: Array(a.dtype, a.shape, a.stype, bytes([n % 256])) for n, (name, a) in enumerate(record.items())}
            )
            data += len(record)
    return sum(len(part.deflate()) for part in _nested_objects(light).values()) - data


def _nested_objects(part: Any) -> dict[str, Any]:
    """Return a record and the objects in it, by their id: Flower sends equal objects once."""
    found = {part.object_id: part}
    for child in (part.children or {}).values():
        found |= _nested_objects(child)
    return found


def check_finite(tensors: Vectors, norm_bound: float | None = None) -> None:
    """Refuse tensors with a non-finite value, or with a norm over the bound."""
    for name, v in tensors.items():
        if not all(bool(part.isfinite().all()) for part in v.flatten().split(_AT_ONCE)):
            raise RefusedError(f"'{name}' is not finite")
        if norm_bound is not None and (norm := norm_of(v)) > norm_bound:
            raise RefusedError(f"'{name}' has a norm of {norm:.4g}, over the bound of {norm_bound:.4g}")


def norm_of(v: Tensor) -> float:
    """Return the Euclidean norm of a tensor, in float64, without a copy of all of it."""
    return math.sqrt(sum(float(part.double().square().sum()) for part in v.detach().flatten().split(_AT_ONCE)))


def check_equal(header: Mapping[str, Any], **expected: Any) -> None:
    """Refuse a header whose fields differ from the expected values."""
    for name, value in expected.items():
        if header[name] != value:
            raise RefusedError(f"its '{name}' is {format_value(header[name])} instead of {format_value(value)}")


def _header(content: RecordDict, fields: Mapping[str, type]) -> dict[str, Any]:
    unknown = set(content) - {_HEADER, _VECTORS, _NUMBERS}
    if unknown:
        raise RefusedError(f"it has records of unknown names: {_join(unknown)}")
    record = content.get(_HEADER)
    if not isinstance(record, ConfigRecord):
        raise RefusedError("it has no header")
    if set(record) != set(fields):
        raise RefusedError(f"its header has the fields {_join(record)} instead of {_join(fields)}")
    for name, kind in fields.items():
        if type(record[name]) is not kind:
            raise RefusedError(f"'{name}' in its header must be {kind.__name__}, got {format_value(record[name])}")
    if record["protocol"] != PROTOCOL:
        version = format_value(record["protocol"])
        raise RefusedError(f"it uses protocol {version} instead of {PROTOCOL}; use the same fedmos version everywhere")
    return dict(record)


def _tensors(content: RecordDict, key: str, shapes: Shapes, dtype: torch.dtype, coded: Container[str] = ()) -> Vectors:
    record = content.get(key, ArrayRecord())
    if not isinstance(record, ArrayRecord):
        raise RefusedError(f"'{key}' must be arrays, got {type(record).__name__}")
    if set(record) != set(shapes):
        raise RefusedError(f"its {key} are {_join(record)} instead of {_join(shapes)}")
    return {
        name: _tensor(name, record[name], shape, torch.uint8 if name in coded else dtype)
        for name, shape in shapes.items()
    }


def _tensor(name: str, array: Array, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    deflated = dtype == torch.uint8 and array.stype == DEFLATED
    for relation, actual, expected in (
        ("serialised as", array.stype, DEFLATED if deflated else RAW),
        ("of dtype", array.dtype, _dtype_name(dtype)),
        ("of shape", tuple(array.shape), shape),
    ):
        if actual != expected:
            raise RefusedError(f"'{name}' must be {relation} {expected}, got {one_line(str(actual), 60)}")
    little_endian = np.dtype(_dtype_name(dtype)).newbyteorder("<")
    size = little_endian.itemsize * int(np.prod(shape, dtype=np.int64))
    data = _inflated(name, array.data, size) if deflated else array.data
    if len(data) != size:
        raise RefusedError(f"'{name}' must have {size} bytes, got {len(data)}")
    values = np.frombuffer(data, dtype=little_endian).reshape(shape)
    with warnings.catch_warnings():
        # The tensor shares the memory of the message, which is read-only: nothing changes received tensors in place.
        warnings.simplefilter("ignore", UserWarning)
        return torch.from_numpy(values.astype(little_endian.newbyteorder("="), copy=False))


def _inflated(name: str, data: bytes, size: int) -> bytes:
    """Return the bytes that were compressed, and no more than one byte more than expected, whatever was sent."""
    stream = zlib.decompressobj()
    try:
        found = stream.decompress(data, size + 1)
    except zlib.error as error:
        raise RefusedError(f"'{name}' cannot be decompressed: {error}") from None
    if not stream.eof or stream.unused_data:
        raise RefusedError(f"'{name}' must be {size} bytes, compressed, and nothing else")
    return found


def _dtype_name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _join(names: Iterable[object]) -> str:
    return one_line(", ".join(sorted(map(str, names))) or "none", 200)
