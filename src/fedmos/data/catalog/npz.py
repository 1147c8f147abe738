"""Reader of NAME.npz: x_train, y_train, x_test, y_test, and optionally owner (of each training sample), owners, labels.

An npz file is a zip archive of arrays. Members are streamed by name; nothing is unpacked to disk or unpickled.
"""

from __future__ import annotations

import zipfile
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from .chunks import LONGEST_NAME, PARTS, Items, Names, Origin, SampleChunk, check_size, of_files, read_exactly, slices
from .entries import CatalogEntry
from .errors import reading

_HEADER = 4096
_NAME = 4 * LONGEST_NAME


def origin(path: Path, entry: CatalogEntry) -> Origin:
    """Return the origin of an npz file."""
    return of_files(path, [path], lambda: _read(path, entry))


class _Member:
    """An array in the archive, read sequentially."""

    def __init__(self, archive: zipfile.ZipFile, name: str, limit: int) -> None:
        try:
            info = archive.getinfo(f"{name}.npy")
        except KeyError:
            raise ValueError(f"it has no {name}") from None
        if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
            raise ValueError(f"{name} is compressed in a way that numpy does not use")  # its size cannot be limited
        check_size(name, info.file_size, limit + _HEADER)
        self.name, self.limit = name, limit
        self.stream = archive.open(info)
        self.shape, self.fortran, self.dtype = self._header()
        size = prod(self.shape) * self.dtype.itemsize
        check_size(name, size, limit)
        if self.stream.tell() + size != info.file_size:
            raise ValueError(f"{name} is not as long as its header says")

    def _header(self) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
        version = np.lib.format.read_magic(self.stream)
        if version not in ((1, 0), (2, 0)):
            raise ValueError(f"{self.name} has an unknown header")
        read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        shape, fortran, dtype = read(self.stream, max_header_size=_HEADER)
        if dtype.hasobject:
            raise ValueError(f"{self.name} holds pickled objects, which could run code when opened")
        if dtype.kind not in "uifU" or dtype.itemsize > (_NAME if dtype.kind == "U" else 8):
            raise ValueError(f"{self.name} is {dtype}, not numbers")
        if not 1 <= len(shape) <= 4 or any(d < 0 for d in shape):
            raise ValueError(f"{self.name} has the shape {shape}")
        return shape, bool(fortran and len(shape) > 1), dtype

    @property
    def row_bytes(self) -> int:
        return prod(self.shape[1:]) * self.dtype.itemsize

    def rows(self, count: int) -> np.ndarray:
        """Read the next rows."""
        raw = np.frombuffer(read_exactly(self.stream, count * self.row_bytes), self.dtype)
        return raw.reshape(count, *self.shape[1:]).astype(self.dtype.newbyteorder("="), copy=False)

    def whole(self) -> np.ndarray:
        """Read the whole array, in C or Fortran order."""
        rows = self.rows(self.shape[0])
        return rows.ravel().reshape(self.shape, order="F") if self.fortran else rows


def _read(path: Path, entry: CatalogEntry) -> Items:
    with reading(path), path.open("rb") as raw, zipfile.ZipFile(raw) as archive:
        owner, names = _names(archive, entry)
        yield names
        for part in PARTS:
            x, y = (_Member(archive, f"{letter}_{part}", entry.limit) for letter in "xy")
            if x.shape[0] != y.shape[0]:
                raise ValueError(f"{x.shape[0]} samples do not match {y.shape[0]} labels ({part})")
            if part == "train" and owner is not None and len(owner) != x.shape[0]:
                raise ValueError(f"{x.shape[0]} training samples do not match {len(owner)} owners")
            # An array in Fortran order cannot be read row by row.
            held = [member.whole() if member.fortran else None for member in (x, y)]
            for rows in slices(x.shape[0], max(x.row_bytes, y.row_bytes)):
                xs, ys = (
                    member.rows(rows.stop - rows.start) if array is None else array[rows]
                    for member, array in zip((x, y), held, strict=True)
                )
                yield SampleChunk(part, xs, ys, owner[rows] if owner is not None and part == "train" else None)
            for member in (x, y):
                if member.stream.read(1):
                    raise ValueError(f"{member.name} is longer than its header says")


def _names(archive: zipfile.ZipFile, entry: CatalogEntry) -> tuple[list[str] | None, Names]:
    """Return the name of each training sample's owner, and the names of owners and labels, where the file has them."""
    given = {name: whole_array(archive, name, entry.limit) for name in ("owner", "owners", "labels")}
    owner, listed, labels = given["owner"], given["owners"], given["labels"]
    if labels is not None and (labels.dtype.kind != "U" or labels.shape != (entry.classes,)):
        raise ValueError(f"labels must be {entry.classes} names, got {labels.dtype} of shape {labels.shape}")
    classes = None if labels is None else [str(label) for label in labels]
    if owner is None:
        return None, Names(labels=classes)
    if owner.ndim != 1 or owner.dtype.kind == "f":
        raise ValueError(f"owner must be one number or name per training sample, got {owner.dtype} of {owner.shape}")
    known, number = np.unique(owner, return_inverse=True)
    names = [str(name) for name in known]
    if listed is not None:
        if listed.ndim != 1 or listed.dtype.kind != "U" or owner.dtype.kind == "U":
            raise ValueError("owners must be the names of the owners 0, 1, …")
        if len(known) and (known[0] < 0 or known[-1] >= len(listed)):
            raise ValueError(f"owner must be 0 … {len(listed) - 1}, got {known[0]} … {known[-1]}")
        names = [str(name) for name in listed[known]]
    if len(set(names)) != len(names):
        raise ValueError("owners must have different names")
    return [names[i] for i in number], Names(classes, names)


def whole_array(archive: zipfile.ZipFile, name: str, limit: int) -> np.ndarray | None:
    """Return an array of the archive; None if it has none of this name."""
    return _Member(archive, name, limit).whole() if f"{name}.npy" in archive.namelist() else None
