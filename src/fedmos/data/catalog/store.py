"""The store: every data set as plain memory-mapped arrays, so that loading it again needs no time and no memory.

`$FEDMOS_DATA/store/NAME-KEY/` holds x_train.npy, y_train.npy, … and meta.json. A store is written to a temporary folder
that is then renamed, so it is complete or absent. It is rebuilt if its origin has changed or the store is damaged.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import os
import shutil
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from .builder import ArrayBuilder
from .chunks import Origin
from .entries import CatalogEntry
from .errors import invalid_data

FORMAT = 2
"""Part of the key of every store; increment it when the stored arrays change."""

_MAX_HEADER = 4096
_DAY = 86_400

log = logging.getLogger("fedmos")


def data_folder() -> Path:
    """Return `$FEDMOS_DATA`, by default ~/.cache/fedmos."""
    return Path(os.environ.get("FEDMOS_DATA") or Path.home() / ".cache" / "fedmos").expanduser()


@dataclass(frozen=True)
class Stored:
    """The arrays of a data set and their description."""

    arrays: Mapping[str, np.ndarray]
    """x_train and y_train; where they exist, x_test, y_test and owner."""
    owners: Sequence[str] | None
    labels: Sequence[str] | None
    fractions: bool
    """Whether pixels are in 0 … 1 instead of 0 … 255."""
    checksum: str


def status(entry: CatalogEntry, stored: Stored) -> str:
    """Compare with the published data: "as published", "differs", "other sizes" or "not known"."""
    if entry.checksum is None:
        return "not known"
    if stored.checksum == entry.checksum:
        return "as published"
    sizes = tuple(len(stored.arrays.get(name, ())) for name in ("x_train", "x_test"))
    same_sizes = sizes == (entry.train, entry.test) and stored.arrays["x_train"].shape[1:] == entry.shape
    return "differs" if same_sizes else "other sizes"


def load(entry: CatalogEntry, origin: Origin) -> Stored:
    """Open the data set in the store and build the store first if needed; use memory if the disk is not writable."""
    root = data_folder() / "store"
    key = hashlib.sha256(json.dumps([FORMAT, origin.identity]).encode()).hexdigest()[:16]
    folder = root / f"{entry.name}-{key}"
    stored = _open(folder, origin)
    if stored is None:
        stored = _build_and_open(entry, origin, root, folder)
    _log_status(entry, origin, stored)
    return stored


def _build_and_open(entry: CatalogEntry, origin: Origin, root: Path, folder: Path) -> Stored:
    try:
        with temporary_folder(root) as temporary:
            build(entry, origin, temporary)
            _move(temporary, folder, origin)
        _remove_stale(root, folder, entry, origin)
        stored = _open(folder, origin)
        if stored is not None:
            return stored
        reason = "the written files cannot be read"
    except OSError as error:  # errors of the origin are InvalidDataError
        reason = error.strerror or str(error)
    log.info("%s is kept in memory because %s cannot be used: %s", entry.name, root, reason)
    return _in_memory(entry, origin)


@contextlib.contextmanager
def temporary_folder(root: Path) -> Iterator[Path]:
    """Create a temporary folder next to the stores, on the same file system, so that it can be renamed."""
    root.mkdir(parents=True, exist_ok=True)
    folder = root / f".making-{uuid.uuid4().hex}"
    folder.mkdir()
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def build(entry: CatalogEntry, origin: Origin, folder: Path) -> None:
    """Read the data set into .npy files and meta.json in `folder`."""
    builder = ArrayBuilder(entry, folder)
    try:
        _fill(builder, origin)
    finally:
        builder.close()
    with _invalid_data_errors(origin):
        meta = builder.finish()
    meta |= {"format": FORMAT, "name": entry.name, "place": origin.place, "identity": origin.identity}
    (folder / "meta.json").write_text(json.dumps(meta), encoding="utf-8")


def _fill(builder: ArrayBuilder, origin: Origin) -> None:
    for item in origin.read():
        with _invalid_data_errors(origin):
            builder.add(item)


@contextlib.contextmanager
def _invalid_data_errors(origin: Origin) -> Iterator[None]:
    """Raise InvalidDataError for a ValueError; an OSError of the store itself passes through."""
    try:
        yield
    except ValueError as error:
        raise invalid_data(origin.place, str(error)) from error


def _in_memory(entry: CatalogEntry, origin: Origin) -> Stored:
    builder = ArrayBuilder(entry, None)
    _fill(builder, origin)
    with _invalid_data_errors(origin):
        meta = builder.finish()
    return Stored(builder.arrays(), meta["owners"], meta["labels"], meta["fractions"], meta["checksum"])


def _open(folder: Path, origin: Origin) -> Stored | None:
    """Open the store in `folder`. Returns None if it is missing, outdated or damaged."""
    try:
        meta = json.loads((folder / "meta.json").read_text(encoding="utf-8"))
        if meta["format"] != FORMAT or meta["identity"] != origin.identity:
            return None
        arrays = {name: _array(folder / f"{name}.npy", about) for name, about in meta["arrays"].items()}
        return Stored(arrays, meta["owners"], meta["labels"], meta["fractions"], meta["checksum"])
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        return None


def _array(path: Path, about: Mapping[str, Any]) -> np.ndarray:
    # Copy-on-write: writing to the array changes neither the file nor the arrays of other processes.
    array: np.ndarray = np.load(path, mmap_mode="c", allow_pickle=False, max_header_size=_MAX_HEADER)
    if (array.dtype.str, list(array.shape)) != (about["dtype"], about["shape"]):
        raise ValueError(f"{path} does not match meta.json")
    if path.stat().st_size != getattr(array, "offset", -1) + array.nbytes:
        raise ValueError(f"{path} has the wrong size")
    small = array.ndim == 1 and path.stem != "owner"
    return np.array(array) if small else array


def _move(temporary: Path, folder: Path, origin: Origin) -> None:
    """Rename a complete store to its final name, unless another process has done so already."""
    try:
        temporary.rename(folder)
    except OSError:
        if _open(folder, origin) is None:  # `folder` holds a damaged store
            shutil.rmtree(folder, ignore_errors=True)
            temporary.rename(folder)


def _remove_stale(root: Path, current: Path, entry: CatalogEntry, origin: Origin) -> None:
    """Remove stores of earlier versions of the same files and temporary folders of killed processes."""
    paths = [file[0] for file in origin.identity]
    for folder in set(root.glob(f"{entry.name}-*")) - {current}:
        with contextlib.suppress(OSError, ValueError, LookupError, TypeError):
            meta = json.loads((folder / "meta.json").read_text(encoding="utf-8"))
            if [file[0] for file in meta["identity"]] == paths:
                shutil.rmtree(folder, ignore_errors=True)
    for folder in root.glob(".making-*"):
        with contextlib.suppress(OSError):
            if time.time() - folder.stat().st_mtime > _DAY:
                shutil.rmtree(folder, ignore_errors=True)


def _log_status(entry: CatalogEntry, origin: Origin, stored: Stored) -> None:
    """Log a message if the data are not the published data set."""
    result = status(entry, stored)
    if result == "differs":
        log.warning(
            "%s from %s has the published sizes but not the published content (SHA-256 %s…, expected %s…)",
            entry.name,
            origin.place,
            stored.checksum[:12],
            (entry.checksum or "")[:12],
        )
    elif result == "other sizes":
        sizes = {name: stored.arrays[name].shape for name in ("x_train", "x_test") if name in stored.arrays}
        log.info("%s from %s is not the whole published set: %s", entry.name, origin.place, sizes)
