"""The store: every data set once more as plain arrays, memory-mapped, so that a second load takes no time or memory.

`$FEDMOS_DATA/store/NAME-KEY/` holds x_train.npy, y_train.npy, … and meta.json. It is made in a temporary folder and
renamed, so it is whole or absent; it is made anew when its source has changed or anything about it looks wrong.
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
from typing import IO, Any

import numpy as np

from .canonical import canonical
from .chunks import LONGEST_NAME, Chunk, Names, Origin, check_size
from .errors import unsound
from .published import Source

FORMAT = 2
"""Part of every store's key: count up when what is stored changes."""

_MADE = ("x_train", "y_train", "x_test", "y_test")
_HEADER = 4096
_DAY = 86_400

log = logging.getLogger("fedmos")


def data_folder() -> Path:
    """`$FEDMOS_DATA`, by default ~/.cache/fedmos."""
    return Path(os.environ.get("FEDMOS_DATA") or Path.home() / ".cache" / "fedmos").expanduser()


@dataclass(frozen=True)
class Stored:
    """A data set's arrays, and what is known about them."""

    arrays: Mapping[str, np.ndarray]
    """x_train and y_train; x_test and y_test, and owner, where there are any."""
    owners: Sequence[str] | None
    labels: Sequence[str] | None
    fractions: bool
    """Whether pixels are 0 … 1 instead of 0 … 255."""
    checksum: str


class _Column:
    """One array on its way to a file, or to memory if there is no path."""

    def __init__(self, path: Path | None) -> None:
        self.path = path
        self.rows = 0
        self.row: tuple[int, ...] = ()
        self.dtype: np.dtype[Any] | None = None
        self.digest = hashlib.sha256()
        self.parts: list[np.ndarray] = []
        self.file: IO[bytes] | None = None

    def append(self, rows: np.ndarray) -> None:
        rows = np.ascontiguousarray(rows)
        if self.dtype is None:
            self.row, self.dtype = rows.shape[1:], rows.dtype
            if self.path is not None:
                self.file = self.path.open("wb")
                self._header(self.file)
        if (rows.shape[1:], rows.dtype) != (self.row, self.dtype):
            raise ValueError(
                f"samples must be alike, got {rows.dtype} of shape {rows.shape[1:]} after {self.dtype} of {self.row}"
            )
        self.rows += len(rows)
        raw = rows.reshape(-1).view(np.uint8).data
        self.digest.update(raw)
        if self.file is None:
            self.parts.append(rows)
        else:
            self.file.write(raw)

    def _header(self, file: IO[bytes]) -> int:
        """Write the header for the rows so far; numpy leaves room, so that its length does not depend on them."""
        assert self.dtype is not None
        file.seek(0)
        shape = (self.rows, *self.row)
        description = np.lib.format.dtype_to_descr(self.dtype)
        np.lib.format.write_array_header_1_0(file, {"descr": description, "fortran_order": False, "shape": shape})
        return file.tell()

    def close(self) -> None:
        if self.file is not None:
            with self.file as file:
                self._header(file)
            self.file = None

    def meta(self) -> dict[str, Any]:
        assert self.dtype is not None
        return {"dtype": self.dtype.str, "shape": [self.rows, *self.row], "sha256": self.digest.hexdigest()}


class _Maker:
    """Takes a reader's items and makes the arrays, checking every row on the way."""

    def __init__(self, source: Source, folder: Path | None) -> None:
        self.source = source
        self.columns = {name: _Column(folder and folder / f"{name}.npy") for name in (*_MADE, "owner")}
        self.numbers: dict[str, int] = {}
        self.labels: Sequence[str] | None = source.labels
        self.size = 0
        self.low, self.high = np.inf, -np.inf

    def take(self, item: Chunk | Names) -> None:
        if isinstance(item, Names):
            self.labels = item.labels or self.labels
            self.numbers |= {name: i for i, name in enumerate(item.owners or ())}
        elif len(item.x):
            self._rows(item)

    def _rows(self, chunk: Chunk) -> None:
        self.size += chunk.x.nbytes
        check_size("the decoded set", self.size, self.source.limit)
        x, y = canonical(chunk, self.source)
        if x.dtype.kind == "f":
            self.low, self.high = min(self.low, float(x.min())), max(self.high, float(x.max()))
        self.columns[f"x_{chunk.part}"].append(x)
        self.columns[f"y_{chunk.part}"].append(y)
        if chunk.owner is not None and chunk.part == "train":
            numbers = [self._number(name) for name in chunk.owner]
            self.columns["owner"].append(np.array(numbers, dtype=np.int64))

    def _number(self, owner: str) -> int:
        if owner not in self.numbers:
            if len(owner) > LONGEST_NAME:
                raise ValueError(f"an owner's name must be at most {LONGEST_NAME} letters long, got {len(owner)}")
            self.numbers[owner] = len(self.numbers)
        return self.numbers[owner]

    def finish(self) -> dict[str, Any]:
        """What goes into meta.json."""
        rows = {name: column.rows for name, column in self.columns.items()}
        train, test = self.columns["x_train"], self.columns["x_test"]
        if not rows["x_train"] or not (rows["x_test"] or self.source.kind == "characters"):
            raise ValueError(f"it has {rows['x_train']} training and {rows['x_test']} test samples")
        if rows["x_test"] and (train.row, train.dtype) != (test.row, test.dtype):
            raise ValueError(
                f"training samples are {train.dtype} of shape {train.row}, test samples {test.dtype} of {test.row}"
            )
        if rows["owner"] not in (0, rows["x_train"]):
            raise ValueError(f"{rows['x_train']} training samples do not go with {rows['owner']} owners")
        if self.high > 255 or self.low < 0:
            raise ValueError(
                f"images of fractions must be in 0 … 1 or 0 … 255, got {self.low:g} … {self.high:g}; use uint8 pixels"
            )
        arrays = {name: column.meta() for name, column in self.columns.items() if column.rows}
        return {
            "arrays": arrays,
            "checksum": checksum(arrays),
            "owners": list(self.numbers) if rows["owner"] else None,
            "labels": None if self.labels is None else list(self.labels),
            "fractions": train.dtype == np.float32 and self.high <= 1,
        }


def checksum(arrays: Mapping[str, Mapping[str, Any]]) -> str:
    """The SHA-256 that tells published data from others.

    It is that of one line "NAME DTYPE SHAPE SHA256" for each of x_train, y_train, x_test and y_test, in this order,
    where SHA256 is that of the array's bytes in our layout: images uint8 (n, channels, height, width), labels int64.
    """
    lines = (
        f"{name} {a['dtype']} {tuple(a['shape'])} {a['sha256']}\n"
        for name, a in ((name, arrays[name]) for name in _MADE if name in arrays)
    )
    return hashlib.sha256("".join(lines).encode()).hexdigest()


def status(source: Source, stored: Stored) -> str:
    """Whether these are the published data: "as published", "differs", "other sizes" or "not known"."""
    if source.checksum is None:
        return "not known"
    if stored.checksum == source.checksum:
        return "as published"
    sizes = tuple(len(stored.arrays.get(name, ())) for name in ("x_train", "x_test"))
    alike = sizes == (source.train, source.test) and stored.arrays["x_train"].shape[1:] == source.shape
    return "differs" if alike else "other sizes"


def load(source: Source, origin: Origin) -> Stored:
    """The set from the store, which is made if need be; from memory where nothing can be written."""
    shelf = data_folder() / "store"
    key = hashlib.sha256(json.dumps([FORMAT, origin.identity]).encode()).hexdigest()[:16]
    folder = shelf / f"{source.name}-{key}"
    stored = _open(folder, origin)
    if stored is None:
        stored = _made(source, origin, shelf, folder)
    _remark(source, origin, stored)
    return stored


def _made(source: Source, origin: Origin, shelf: Path, folder: Path) -> Stored:
    try:
        with workshop(shelf) as making:
            make(source, origin, making)
            _move(making, folder, origin)
        _tidy(shelf, folder, source, origin)
        stored = _open(folder, origin)
        if stored is not None:
            return stored
        why = "it does not read as it was written"
    except OSError as error:  # the source's own trouble arrives as UnsoundError
        why = error.strerror or str(error)
    log.info("%s is kept in memory because %s cannot be used: %s", source.name, shelf, why)
    return _in_memory(source, origin)


@contextlib.contextmanager
def workshop(shelf: Path) -> Iterator[Path]:
    """A temporary folder beside the stores, so that what is made there can be renamed."""
    shelf.mkdir(parents=True, exist_ok=True)
    making = shelf / f".making-{uuid.uuid4().hex}"
    making.mkdir()
    try:
        yield making
    finally:
        shutil.rmtree(making, ignore_errors=True)


def make(source: Source, origin: Origin, folder: Path) -> None:
    """Read everything into `folder`."""
    maker = _Maker(source, folder)
    try:
        _fill(maker, origin)
    finally:
        for column in maker.columns.values():
            column.close()
    with _blaming(origin):
        meta = maker.finish()
    meta |= {"format": FORMAT, "name": source.name, "place": origin.place, "identity": origin.identity}
    (folder / "meta.json").write_text(json.dumps(meta), encoding="utf-8")


def _fill(maker: _Maker, origin: Origin) -> None:
    for item in origin.read():
        with _blaming(origin):
            maker.take(item)


@contextlib.contextmanager
def _blaming(origin: Origin) -> Iterator[None]:
    """A value that will not do is the data's fault; a file that cannot be written is not."""
    try:
        yield
    except ValueError as error:
        raise unsound(origin.place, str(error)) from error


def _in_memory(source: Source, origin: Origin) -> Stored:
    maker = _Maker(source, None)
    _fill(maker, origin)
    with _blaming(origin):
        meta = maker.finish()
    arrays = {name: np.concatenate(column.parts) for name, column in maker.columns.items() if column.rows}
    return Stored(arrays, meta["owners"], meta["labels"], meta["fractions"], meta["checksum"])


def _open(folder: Path, origin: Origin) -> Stored | None:
    """The store in `folder`, or None if it is missing or not to be trusted."""
    try:
        meta = json.loads((folder / "meta.json").read_text(encoding="utf-8"))
        if meta["format"] != FORMAT or meta["identity"] != origin.identity:
            return None
        arrays = {name: _array(folder / f"{name}.npy", about) for name, about in meta["arrays"].items()}
        return Stored(arrays, meta["owners"], meta["labels"], meta["fractions"], meta["checksum"])
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        return None


def _array(path: Path, about: Mapping[str, Any]) -> np.ndarray:
    # Copy-on-write: whoever writes into the array changes neither the file nor anybody else's copy.
    array: np.ndarray = np.load(path, mmap_mode="c", allow_pickle=False, max_header_size=_HEADER)
    if (array.dtype.str, list(array.shape)) != (about["dtype"], about["shape"]):
        raise ValueError(f"{path} is not what meta.json says")
    if path.stat().st_size != getattr(array, "offset", -1) + array.nbytes:
        raise ValueError(f"{path} has the wrong size")
    small = array.ndim == 1 and path.stem != "owner"
    return np.array(array) if small else array


def _move(made: Path, folder: Path, origin: Origin) -> None:
    """Put a finished store in its place, unless another process was faster."""
    try:
        made.rename(folder)
    except OSError:
        if _open(folder, origin) is None:  # a broken one is in the way
            shutil.rmtree(folder, ignore_errors=True)
            made.rename(folder)


def _tidy(shelf: Path, kept: Path, source: Source, origin: Origin) -> None:
    """Remove stores of earlier versions of the same files, and what killed processes left half made."""
    paths = [entry[0] for entry in origin.identity]
    for folder in set(shelf.glob(f"{source.name}-*")) - {kept}:
        with contextlib.suppress(OSError, ValueError, LookupError, TypeError):
            meta = json.loads((folder / "meta.json").read_text(encoding="utf-8"))
            if [entry[0] for entry in meta["identity"]] == paths:
                shutil.rmtree(folder, ignore_errors=True)
    for folder in shelf.glob(".making-*"):
        with contextlib.suppress(OSError):
            if time.time() - folder.stat().st_mtime > _DAY:
                shutil.rmtree(folder, ignore_errors=True)


def _remark(source: Source, origin: Origin, stored: Stored) -> None:
    """Say so if these are not the data that everybody else calls by this name."""
    verdict = status(source, stored)
    if verdict == "differs":
        log.warning(
            "%s from %s has the published sizes but not the published content (SHA-256 %s…, expected %s…)",
            source.name,
            origin.place,
            stored.checksum[:12],
            (source.checksum or "")[:12],
        )
    elif verdict == "other sizes":
        sizes = {name: stored.arrays[name].shape for name in ("x_train", "x_test") if name in stored.arrays}
        log.info("%s from %s is not the whole published set: %s", source.name, origin.place, sizes)
