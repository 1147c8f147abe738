"""Reader of tables in R packages: a database of serialised objects, `Rdata.rdb`, with its index, `Rdata.rdx`.

It reads vectors, lists, factors and data frames in R's binary format (XDR, versions 2 and 3) and nothing that could
contain code.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Sequence
from typing import Any

import numpy as np

from ..catalog.chunks import check_size

_LARGEST = 256 * 2**20
_DEEPEST = 100
_MISSING = -(2**31)
"""R's missing integer."""

_NULL, _GLOBAL, _REFERENCE, _ALTERNATIVE = 254, 253, 255, 238
_SYMBOL, _PAIRS, _CHARACTERS, _LOGICALS, _INTEGERS, _REALS, _STRINGS, _LIST = 1, 2, 9, 10, 13, 14, 16, 19

Frame = dict[str, np.ndarray]
"""The columns of a table; a factor is an array of its labels."""


class _Vector:
    """A vector or list of R with its attributes."""

    def __init__(self, values: Any, attributes: dict[str, Any]) -> None:
        self.values, self.attributes = values, attributes


def read_table(index: bytes, database: bytes, name: str, columns: Sequence[str]) -> Frame:
    """Return some columns of a data frame of a package.

    Args:
        index: The content of Rdata.rdx.
        database: The content of Rdata.rdb.
        name: The name of the data frame.
        columns: The names of the columns.

    Raises:
        ValueError: If the files are damaged, have no such data frame, or a column has missing values.
    """
    variables = _named(_named(_parse(_inflated(index, zlib.MAX_WBITS | 16)))["variables"])
    if name not in variables:
        raise ValueError(f"it has no table {name}, but {', '.join(sorted(variables))}")
    offset, length = (int(v) for v in variables[name].values)
    found = _named(_parse(_entry(database[offset : offset + length])))
    table = {column: _column(column, found[column]) for column in columns}
    if len({len(column) for column in table.values()}) > 1:
        raise ValueError(f"the columns of {name} have different lengths")
    return table


def _entry(raw: bytes) -> bytes:
    """Decompress an entry of the database: its size, then zlib data."""
    (size,) = struct.unpack(">I", raw[:4])
    check_size("an object of R", size, _LARGEST)
    return _inflated(raw[4:], zlib.MAX_WBITS)


def _inflated(raw: bytes, bits: int) -> bytes:
    inflater = zlib.decompressobj(bits)
    data = inflater.decompress(raw, _LARGEST)
    if inflater.unconsumed_tail:
        raise ValueError(f"an object of R is larger than {_LARGEST >> 20} MiB")
    return data


def _named(vector: _Vector) -> dict[str, _Vector]:
    return dict(zip(vector.attributes["names"].values, vector.values, strict=True))


def _column(name: str, column: _Vector) -> np.ndarray:
    values = np.asarray(column.values)
    if "levels" in column.attributes:
        if len(values) and values.min() < 1:
            raise ValueError(f"the column {name} has missing values")
        levels = np.array(column.attributes["levels"].values)
        return levels.take(values - 1)
    if (values.dtype.kind == "i" and (values == _MISSING).any()) or (
        values.dtype.kind == "f" and np.isnan(values).any()
    ):
        raise ValueError(f"the column {name} has missing values")
    return values


def _parse(raw: bytes) -> _Vector:
    if raw[:2] != b"X\n":
        raise ValueError("it is not serialised in R's binary format")
    reader = _Reader(raw[2:])
    version = reader.integer()
    if version not in (2, 3):
        raise ValueError(f"it has version {version} of R's format, not 2 or 3")
    reader.take(8)  # versions of R
    if version == 3:
        reader.take(reader.integer())  # the encoding
    found = reader.item()
    if not isinstance(found, _Vector):
        raise ValueError("it is not a vector or list of R")
    return found


class _Reader:
    """Reads items from a stream, one after another."""

    def __init__(self, raw: bytes) -> None:
        self._raw, self._at, self._depth = raw, 0, 0
        self._symbols: list[str] = []

    def take(self, n: int) -> bytes:
        """Return the next n bytes."""
        if n < 0 or self._at + n > len(self._raw):
            raise ValueError("an object of R ends early")
        self._at += n
        return self._raw[self._at - n : self._at]

    def integer(self) -> int:
        """Return the next number."""
        return int.from_bytes(self.take(4), "big", signed=True)

    def item(self) -> Any:
        """Return the next item: a vector, a string, or None."""
        self._depth += 1
        if self._depth > _DEEPEST:
            raise ValueError("objects of R are nested too deeply")
        try:
            return self._item(self.integer())
        finally:
            self._depth -= 1

    def _item(self, flags: int) -> Any:
        kind, attributed, tagged = flags & 255, bool(flags & 512), bool(flags & 1024)
        if kind in (_NULL, _GLOBAL):
            return None
        if kind == _REFERENCE:
            return self._symbols[(flags >> 8) - 1 if flags >> 8 else self.integer() - 1]
        if kind == _SYMBOL:
            self._symbols.append(self.item())
            return self._symbols[-1]
        if kind == _CHARACTERS:
            length = self.integer()
            return "" if length == -1 else self.take(length).decode("latin-1" if flags >> 12 & 4 else "utf-8")
        if kind == _PAIRS:
            return self._pairs(attributed, tagged)
        if kind == _ALTERNATIVE:
            return self._alternative()
        values = self._values(kind)
        return _Vector(values, self._attributes(self.item()) if attributed else {})

    def _values(self, kind: int) -> Any:
        if kind not in (_LOGICALS, _INTEGERS, _REALS, _STRINGS, _LIST):
            raise ValueError(f"objects of R of type {kind} are not read")
        n = self.integer()
        if kind in (_LOGICALS, _INTEGERS):
            return np.frombuffer(self.take(4 * n), ">i4").astype(np.int64)
        if kind == _REALS:
            return np.frombuffer(self.take(8 * n), ">f8").astype(np.float64)
        return [self.item() for _ in range(n)]

    def _pairs(self, attributed: bool, tagged: bool) -> list[tuple[str, Any]]:
        """Return the pairs of a list of attributes; it is a chain of items."""
        pairs = []
        while True:
            if attributed:
                self.item()
            tag = self.item() if tagged else ""
            pairs.append((tag, self.item()))
            flags = self.integer()
            if flags & 255 != _PAIRS:
                return pairs
            attributed, tagged = bool(flags & 512), bool(flags & 1024)

    def _alternative(self) -> _Vector:
        """Return a vector in a short form: 1:n, or a vector in a wrapper."""
        name = self.item()[0][1]
        state, attributes = self.item(), self._attributes(self.item())
        if name in ("compact_intseq", "compact_realseq"):
            length, first, step = (float(v) for v in state.values)
            return _Vector((first + step * np.arange(int(length))).astype(np.int64), attributes)
        if name.startswith("wrap_"):
            inner = state.values[0] if isinstance(state, _Vector) else state[0][1]
            return _Vector(inner.values, inner.attributes | attributes)
        raise ValueError(f"vectors of R in the form {name} are not read")

    @staticmethod
    def _attributes(pairs: list[tuple[str, Any]] | None) -> dict[str, Any]:
        return dict(pairs or ())
