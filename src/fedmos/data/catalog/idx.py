"""Reader of the IDX format of MNIST: a magic number, the dimensions and the bytes; images and labels in two files."""

from __future__ import annotations

import gzip
from collections.abc import Mapping
from math import prod
from pathlib import Path
from typing import IO

import numpy as np

from .chunks import PARTS, Items, Origin, Part, SampleChunk, check_size, of_files, read_exactly, slices
from .entries import CatalogEntry
from .errors import invalid_data, reading

_STEMS = {"train": "train", "test": "t10k"}
FILES = "train-images-idx3-ubyte[.gz], train-labels-idx1-ubyte, t10k-images-idx3-ubyte and t10k-labels-idx1-ubyte"


def find(folder: Path, names: Mapping[str, Path], entry: CatalogEntry) -> Origin | None:
    """Find the four files. Returns None if there are none; raises InvalidDataError if some are missing.

    Args:
        folder: The folder.
        names: Its files by lower-case name.
        entry: The data set.
    """
    wanted = [(part, what, d) for part in PARTS for what, d in (("images", 3), ("labels", 1))]
    found = {(part, what): _first(names, part, what, d) for part, what, d in wanted}
    if not any(found.values()):
        return None
    missing = [f"{_STEMS[part]}-{what}-idx{d}-ubyte" for part, what, d in wanted if not found[part, what]]
    if missing:
        raise invalid_data(folder, f"{', '.join(missing)} is missing")
    files = {key: path for key, path in found.items() if path is not None}
    return of_files(folder, list(files.values()), lambda: _read(files, entry))


def _first(names: Mapping[str, Path], part: Part, what: str, dimensions: int) -> Path | None:
    spellings = (f"{_STEMS[part]}-{what}{dot}idx{dimensions}-ubyte{gz}" for gz in ("", ".gz") for dot in "-.")
    return next((names[name] for name in spellings if name in names), None)


def _read(files: Mapping[tuple[Part, str], Path], entry: CatalogEntry) -> Items:
    for part in PARTS:
        images, labels = files[part, "images"], files[part, "labels"]
        with _open(images) as xs, _open(labels) as ys, reading(images):
            with reading(labels):
                (count,) = header(ys, 1, entry.limit)
            shape = header(xs, 3, entry.limit)
            if shape[0] != count:
                raise ValueError(f"it has {shape[0]} images for the {count} labels in {labels}")
            yield from images_and_labels(part, xs, ys, shape)


def images_and_labels(part: Part, xs: IO[bytes], ys: IO[bytes], shape: tuple[int, ...]) -> Items:
    """Yield the images and labels after the headers. Raises ValueError if more bytes follow."""
    pixels = prod(shape[1:])
    for rows in slices(shape[0], pixels):
        count = rows.stop - rows.start
        x = np.frombuffer(read_exactly(xs, count * pixels), np.uint8).reshape(count, *shape[1:])
        yield SampleChunk(part, x, np.frombuffer(read_exactly(ys, count), np.uint8))
    if xs.read(1) or ys.read(1):
        raise ValueError("the file is longer than its header declares")


def header(stream: IO[bytes], dimensions: int, limit: int) -> tuple[int, ...]:
    """Read the header and return the dimensions. Raises ValueError if it is invalid or too large."""
    if read_exactly(stream, 4) != bytes((0, 0, 8, dimensions)):
        raise ValueError(f"it does not begin like an IDX file of bytes in {dimensions} dimensions")
    shape = tuple(int.from_bytes(read_exactly(stream, 4), "big") for _ in range(dimensions))
    check_size("the array", prod(shape), limit)
    return shape


def _open(path: Path) -> IO[bytes]:
    with reading(path):
        return gzip.open(path, "rb") if path.suffix.lower() == ".gz" else path.open("rb")  # type: ignore[return-value]
