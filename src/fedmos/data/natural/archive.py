"""Fetching a naturally federated table to NAME.npz, and loading it from there."""

from __future__ import annotations

import os
import zipfile
from pathlib import Path
from typing import Any

import numpy as np

from ..catalog.errors import UnreachableError, invalid_data, reading
from ..catalog.npz import whole_array
from ..catalog.store import data_folder, temporary_folder
from .sources import FileSource, LocalFolder
from .table import NaturalArrays, NaturalTable

_REQUIRED = ("x", "y", "owner", "owners")
_LIMIT = 256 * 2**20


def fetch(table: NaturalTable, place: str | None = None) -> Path:
    """Fetch a table, convert it and write it to `$FEDMOS_DATA`.

    Args:
        table: The table.
        place: A folder with its files; by default they are downloaded.

    Returns:
        The path of the file.

    Raises:
        ConnectionError: If no source has the files. The message lists the reasons.
        ValueError: If the files are not the published ones.
    """
    reasons = []
    for source in _sources(table, place):
        try:
            return _save(table, _converted(table, source))
        except UnreachableError as error:
            reasons.append(f"{source.place} {error}")
    files = ", ".join(table.files)
    raise ConnectionError(
        f"Cannot fetch {table.name!r} because {'; '.join(reasons)}. Put {files} into a folder and run "
        f"fedmos data get {table.name} --from FOLDER"
    )


def _sources(table: NaturalTable, place: str | None) -> tuple[FileSource, ...]:
    if place is None:
        return table.sources
    folder = Path(place).expanduser()
    if not folder.is_dir():
        raise ValueError(f"data get: '--from' must be a folder with {', '.join(table.files)}, got {place!r}")
    return (LocalFolder(folder),)


def _converted(table: NaturalTable, source: FileSource) -> NaturalArrays:
    files = source.read(table.files)
    with reading(source.place):
        arrays = table.convert(files)
        found = len(arrays.y), len(arrays.owners)
        if found != (table.samples, table.clients):
            wanted = f"{table.samples:,} samples of {table.clients:,} clients"
            raise ValueError(f"it has {found[0]:,} samples of {found[1]:,} clients, not {wanted}")
        if table.status(arrays) == "differs":
            raise ValueError("its content is not that of the published table")
    return arrays


def _save(table: NaturalTable, arrays: NaturalArrays) -> Path:
    """Write the archive, complete or not at all."""
    folder = data_folder()
    given: dict[str, Any] = {"x": arrays.x, "y": arrays.y, "owner": arrays.owner, "owners": np.array(arrays.owners)}
    if arrays.held_out is not None:
        given["held_out"] = arrays.held_out.astype(np.uint8)
    if arrays.x_test is not None:
        given["x_test"] = arrays.x_test
    with temporary_folder(folder / "store") as temporary:
        made = temporary / f"{table.name}.npz"
        np.savez_compressed(made, **given)
        os.replace(made, folder / made.name)
    return folder / f"{table.name}.npz"


def find(table: NaturalTable, root: str | os.PathLike[str] | None = None) -> tuple[Path, NaturalArrays]:
    """Return the path and the arrays of a table that has been fetched.

    Args:
        table: The table.
        root: The file NAME.npz or its folder; by default `$FEDMOS_DATA`.

    Raises:
        FileNotFoundError: If it has not been fetched.
        InvalidDataError: If the file is damaged.
    """
    place = data_folder() if root is None else Path(root).expanduser()
    path = place / f"{table.name}.npz" if place.is_dir() or root is None else place
    if not path.is_file():
        raise FileNotFoundError(
            f"Cannot load {table.name!r} because {path} does not exist. To get it, run fedmos data get {table.name}"
        )
    with reading(path), path.open("rb") as raw, zipfile.ZipFile(raw) as archive:
        found = {name: whole_array(archive, name, _LIMIT) for name in (*_REQUIRED, "held_out", "x_test")}
    return path, _checked(path, found)


def _checked(path: Path, found: dict[str, np.ndarray | None]) -> NaturalArrays:
    x, y, owner, owners = (found[name] for name in _REQUIRED)
    held = None if found["held_out"] is None else found["held_out"] != 0
    if x is None or y is None or owner is None or owners is None:
        raise invalid_data(path, "x, y, owner and owners must all be there")
    arrays = NaturalArrays(x, y, owner, [str(name) for name in owners], held, found["x_test"])
    error = _inconsistency(arrays)
    if error is not None:
        raise invalid_data(path, error)
    return arrays


def _inconsistency(arrays: NaturalArrays) -> str | None:
    columns = [arrays.y, arrays.owner, *([] if arrays.held_out is None else [arrays.held_out])]
    if not len(arrays.x) or any(len(column) != len(arrays.x) for column in columns):
        return "its arrays have different lengths"
    if arrays.owner.dtype.kind not in "iu" or arrays.owner.min() < 0 or arrays.owner.max() >= len(arrays.owners):
        return f"owner must be 0 … {len(arrays.owners) - 1}"
    if arrays.x_test is not None and (arrays.held_out is None or len(arrays.x_test) != arrays.held_out.sum()):
        return "x_test must have the samples that are held out"
    if not all(np.isfinite(values).all() for values in (arrays.x, arrays.y)):
        return "x and y must be finite"
    return None
