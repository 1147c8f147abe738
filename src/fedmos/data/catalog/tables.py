"""Conversion of rows of a table (parquet files or a data set of the hub) to samples: images, characters or words."""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from ..images import decode
from . import characters, words
from .chunks import PARTS, Items, Names, Part, SampleChunk, check_size, rows_at_once
from .entries import CatalogEntry
from .errors import reading

_ROWS = 4096
_BATCH = 256 * 2**20
"""Maximum decoded size of a batch of images, in bytes."""


class SampleTable(ABC):
    """A table that can be read repeatedly, in batches of rows."""

    place: str
    parts: tuple[Part, ...]
    columns: tuple[str, ...]

    @abstractmethod
    def rows(self, part: Part) -> int:
        """Return the number of rows of a part."""

    @abstractmethod
    def batches(self, part: Part, columns: Sequence[str], size: int) -> Iterator[Any]:
        """Yield pyarrow record batches of at most `size` rows with the given columns."""


def items(table: SampleTable, entry: CatalogEntry) -> Items:
    """Yield the samples of a table. Without a test part, some samples of every owner are held out for testing."""
    with reading(table.place):
        rows = sum(table.rows(part) for part in table.parts)
        check_size(f"a set of {rows:,} samples", rows * entry.row_bytes, entry.limit)
        yield from {"images": _images, "characters": _characters, "words": _words}[entry.kind](table, entry)


def _pick(table: SampleTable, names: Sequence[str]) -> str:
    """Return the first of a column's possible names that the table has. Raises ValueError if there is none."""
    found = next((name for name in names if name in table.columns), None)
    if found is None:
        raise ValueError(f"it has no column {names[0]} (its columns: {', '.join(table.columns)})")
    return found


def _owner_column(table: SampleTable, entry: CatalogEntry) -> str | None:
    return _pick(table, entry.columns.owner) if entry.columns.owner else None


def _images(table: SampleTable, entry: CatalogEntry) -> Items:
    image, label = _pick(table, entry.columns.input), _pick(table, entry.columns.target)
    owner = _owner_column(table, entry)
    size = min(1024, rows_at_once(entry.row_bytes))
    for part, batch, owners in _divided(table, [image, label], owner, size, _one_in_ten):
        yield SampleChunk(part, _decoded(batch.column(image), entry), _integers(batch.column(label), label), owners)


def _decoded(column: Any, entry: CatalogEntry) -> np.ndarray:
    """Decode images; each is bytes, or a struct of bytes and a path as on the hub."""
    size = (entry.shape[1], entry.shape[2]) if entry.resize else None
    images: list[np.ndarray] = []
    for i, cell in enumerate(column.to_pylist()):
        raw = cell.get("bytes") if isinstance(cell, dict) else cell
        if not isinstance(raw, bytes):
            path = cell.get("path") if isinstance(cell, dict) else None
            raise ValueError(
                f"an image is only named ({path!r}), and files named by data are never opened"
                if path
                else f"row {i} of a batch holds no image"
            )
        image = decode(raw, size, gray=entry.shape[0] == 1)
        images.append(np.repeat(image, 3, 0) if len(image) < entry.shape[0] == 3 else image)
        if image.shape[1:] != images[0].shape[1:]:
            raise ValueError(f"images must be alike, got {image.shape[1:]} after {images[0].shape[1:]} pixels")
        if i == 0:
            check_size(f"a batch of {image.shape[1:]} pixels each", len(column) * image.nbytes, _BATCH)
    return np.stack(images) if images else np.empty((0, *entry.shape), np.uint8)


def _integers(column: Any, name: str) -> np.ndarray:
    values = None if column.null_count else column.to_numpy(zero_copy_only=False)
    if values is None or values.dtype.kind not in "ui":
        raise ValueError(f"column {name} must hold a whole number in every row, got {column.type}")
    return np.asarray(values)


def _strings(column: Any, name: str) -> list[str]:
    values = column.to_pylist()
    if not all(isinstance(value, str) for value in values):
        raise ValueError(f"column {name} must hold a text in every row, got {column.type}")
    return list(values)


def _characters(table: SampleTable, entry: CatalogEntry) -> Items:
    text, following = _pick(table, entry.columns.input), _pick(table, entry.columns.target)
    owner = _owner_column(table, entry)
    rule: PartRule = _one_in_ten
    if "test" not in table.parts and owner is not None:
        held: Counter[str] = Counter()
        for batch in table.batches("train", [owner], _ROWS):
            held.update(map(str, batch.column(owner).to_pylist()))
        rule = _InTime(held)
    for part, batch, owners in _divided(table, [text, following], owner, _ROWS, rule):
        x = characters.encode(_strings(batch.column(text), text), entry.shape[0])
        y = characters.encode(_strings(batch.column(following), following), 1)
        yield SampleChunk(part, x, y, owners)


def _words(table: SampleTable, entry: CatalogEntry) -> Items:
    text, owner = _pick(table, entry.columns.input), _owner_column(table, entry)

    def sentences() -> Iterator[tuple[Part, list[list[str]], list[str] | None]]:
        for part, batch, owners in _divided(table, [text], owner, _ROWS, _one_in_ten):
            yield part, [words.tokens(cell) for cell in batch.column(text).to_pylist()], owners

    vocabulary = words.Vocabulary.of(batch for part, batch, _ in sentences() if part == "train")
    yield Names(labels=vocabulary.labels)
    for part, batch, owners in sentences():
        x, y = vocabulary.encode(batch, entry.shape[0])
        yield SampleChunk(part, x, y, owners)


PartRule = Callable[[str, int], Part | None]
"""Returns the part of the k-th sample of an owner, or None to drop the sample."""


def _divided(
    table: SampleTable, columns: Sequence[str], owner: str | None, size: int, rule: PartRule
) -> Iterator[tuple[Part, Any, list[str] | None]]:
    """Yield the part, rows and owners of batches; if the table has no test part, `rule` divides the rows."""
    wanted = [*columns, owner] if owner else list(columns)
    if "test" not in table.parts and owner is None:
        raise ValueError("it has no part for testing (test-*.parquet)")
    seen: Counter[str] = Counter()
    for part in table.parts:
        for batch in table.batches(part, wanted, size):
            owners = None if owner is None else _owners(batch.column(owner), owner)
            if "test" in table.parts or owners is None:
                yield part, batch, owners
                continue
            goes = []
            for name in owners:
                goes.append(rule(name, seen[name]))
                seen[name] += 1
            for to in PARTS:
                chosen = [i for i, p in enumerate(goes) if p == to]
                if chosen:
                    yield to, batch.take(chosen), [owners[i] for i in chosen]


def _owners(column: Any, name: str) -> list[str]:
    if column.null_count:
        raise ValueError(f"column {name} must hold the owner of every sample, got missing values")
    return [str(value) for value in column.to_pylist()]


def _one_in_ten(owner: str, k: int) -> Part:
    """Assign one of every ten samples of an owner to the test part, at a position hashed from the owner and the ten."""
    digest = hashlib.sha256(f"{owner}/{k // 10}".encode("utf-8", "surrogatepass")).digest()
    return "test" if k % 10 == digest[0] % 10 else "train"


class _InTime:
    """Assigns an owner's first samples to training and the last ones to testing, as LEAF divides Shakespeare."""

    def __init__(self, held: Counter[str]) -> None:
        self.spans = {owner: characters.in_time(n) for owner, n in held.items()}

    def __call__(self, owner: str, k: int) -> Part | None:
        train, test = self.spans[owner]
        return "train" if k < train else "test" if k >= test else None
