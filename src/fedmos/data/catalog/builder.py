"""Builds the arrays of a data set from the chunks of a reader, and validates every row on the way."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any

import numpy as np

from .canonical import canonical
from .chunks import LONGEST_NAME, Names, SampleChunk, check_size
from .entries import CatalogEntry

_SAMPLE_ARRAYS = ("x_train", "y_train", "x_test", "y_test")


class ArrayWriter:
    """Appends rows to one array, in a .npy file or, without a path, in memory."""

    def __init__(self, path: Path | None) -> None:
        self.path = path
        self.rows = 0
        self.row_shape: tuple[int, ...] = ()
        self.dtype: np.dtype[Any] | None = None
        self.digest = hashlib.sha256()
        self.parts: list[np.ndarray] = []
        self.file: IO[bytes] | None = None

    def append(self, rows: np.ndarray) -> None:
        """Append rows; the first call fixes their shape and dtype."""
        rows = np.ascontiguousarray(rows)
        if self.dtype is None:
            self.row_shape, self.dtype = rows.shape[1:], rows.dtype
            if self.path is not None:
                self.file = self.path.open("wb")
                self._write_header(self.file)
        if (rows.shape[1:], rows.dtype) != (self.row_shape, self.dtype):
            raise ValueError(
                f"samples must be alike, got {rows.dtype} of shape {rows.shape[1:]} after {self.dtype} of "
                f"{self.row_shape}"
            )
        self.rows += len(rows)
        raw = rows.reshape(-1).view(np.uint8).data
        self.digest.update(raw)
        if self.file is None:
            self.parts.append(rows)
        else:
            self.file.write(raw)

    def _write_header(self, file: IO[bytes]) -> int:
        """Write the .npy header for the rows so far; numpy pads it, so its length does not depend on them."""
        assert self.dtype is not None
        file.seek(0)
        shape = (self.rows, *self.row_shape)
        description = np.lib.format.dtype_to_descr(self.dtype)
        np.lib.format.write_array_header_1_0(file, {"descr": description, "fortran_order": False, "shape": shape})
        return file.tell()

    def close(self) -> None:
        """Write the final header and close the file."""
        if self.file is not None:
            with self.file as file:
                self._write_header(file)
            self.file = None

    def meta(self) -> dict[str, Any]:
        """Return the dtype, shape and SHA-256 of the array, for meta.json."""
        assert self.dtype is not None
        return {"dtype": self.dtype.str, "shape": [self.rows, *self.row_shape], "sha256": self.digest.hexdigest()}


class ArrayBuilder:
    """Collects the items of a reader in one `ArrayWriter` per array."""

    def __init__(self, entry: CatalogEntry, folder: Path | None) -> None:
        self.entry = entry
        self.writers = {name: ArrayWriter(folder and folder / f"{name}.npy") for name in (*_SAMPLE_ARRAYS, "owner")}
        self.owner_numbers: dict[str, int] = {}
        self.labels: Sequence[str] | None = entry.labels
        self.size = 0
        self.low, self.high = np.inf, -np.inf

    def add(self, item: SampleChunk | Names) -> None:
        """Add one item of a reader. Raises ValueError if it is invalid."""
        if isinstance(item, Names):
            self.labels = item.labels or self.labels
            self.owner_numbers |= {name: i for i, name in enumerate(item.owners or ())}
        elif len(item.x):
            self._add_rows(item)

    def _add_rows(self, chunk: SampleChunk) -> None:
        self.size += chunk.x.nbytes
        check_size("the decoded set", self.size, self.entry.limit)
        x, y = canonical(chunk, self.entry)
        if x.dtype.kind == "f":
            self.low, self.high = min(self.low, float(x.min())), max(self.high, float(x.max()))
        self.writers[f"x_{chunk.part}"].append(x)
        self.writers[f"y_{chunk.part}"].append(y)
        if chunk.owner is not None and chunk.part == "train":
            numbers = [self._number(name) for name in chunk.owner]
            self.writers["owner"].append(np.array(numbers, dtype=np.int64))

    def _number(self, owner: str) -> int:
        if owner not in self.owner_numbers:
            if len(owner) > LONGEST_NAME:
                raise ValueError(f"an owner's name must be at most {LONGEST_NAME} characters long, got {len(owner)}")
            self.owner_numbers[owner] = len(self.owner_numbers)
        return self.owner_numbers[owner]

    def finish(self) -> dict[str, Any]:
        """Validate the arrays as a whole and return their description for meta.json."""
        rows = {name: writer.rows for name, writer in self.writers.items()}
        train, test = self.writers["x_train"], self.writers["x_test"]
        if not rows["x_train"] or not (rows["x_test"] or self.entry.kind == "characters"):
            raise ValueError(f"it has {rows['x_train']} training and {rows['x_test']} test samples")
        if rows["x_test"] and (train.row_shape, train.dtype) != (test.row_shape, test.dtype):
            raise ValueError(
                f"training samples are {train.dtype} of shape {train.row_shape}, test samples {test.dtype} of "
                f"{test.row_shape}"
            )
        if rows["owner"] not in (0, rows["x_train"]):
            raise ValueError(f"{rows['x_train']} training samples do not match {rows['owner']} owners")
        if self.high > 255 or self.low < 0:
            raise ValueError(
                f"images of fractions must be in 0 … 1 or 0 … 255, got {self.low:g} … {self.high:g}; use uint8 pixels"
            )
        arrays = {name: writer.meta() for name, writer in self.writers.items() if writer.rows}
        return {
            "arrays": arrays,
            "checksum": checksum(arrays),
            "owners": list(self.owner_numbers) if rows["owner"] else None,
            "labels": None if self.labels is None else list(self.labels),
            "fractions": train.dtype == np.float32 and self.high <= 1,
        }

    def arrays(self) -> dict[str, np.ndarray]:
        """Return the arrays of a builder without a folder."""
        return {name: np.concatenate(writer.parts) for name, writer in self.writers.items() if writer.rows}

    def close(self) -> None:
        """Close the files of all arrays."""
        for writer in self.writers.values():
            writer.close()


def checksum(arrays: Mapping[str, Mapping[str, Any]]) -> str:
    """Return the SHA-256 that identifies a published data set.

    It hashes one line "NAME DTYPE SHAPE SHA256" for each of x_train, y_train, x_test and y_test, in this order, where
    SHA256 is that of the array's bytes in the layout of the store: images uint8 (n, channels, height, width), labels
    int64.

    Args:
        arrays: dtype, shape and sha256 of each array, as in meta.json.
    """
    lines = (
        f"{name} {a['dtype']} {tuple(a['shape'])} {a['sha256']}\n"
        for name, a in ((name, arrays[name]) for name in _SAMPLE_ARRAYS if name in arrays)
    )
    return hashlib.sha256("".join(lines).encode()).hexdigest()
