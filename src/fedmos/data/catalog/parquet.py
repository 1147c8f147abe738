"""Reader of parquet files named as on the hub: train-00000-of-00002.parquet, test-….parquet. Needs pyarrow."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ...core.validation import needs
from .chunks import PARTS, Origin, Part, check_size, of_files
from .entries import CatalogEntry
from .errors import invalid_data, reading
from .tables import SampleTable, items

FILES = "train-*.parquet and test-*.parquet"
_NAME = re.compile(r"(train|test)([-_.].*)?\.parquet")
_OF = re.compile(r"-of-(\d{1,6})\b")
_BATCH = 64 * 2**20
"""Maximum decoded size of a batch of rows, in bytes."""


def find(folder: Path, names: Mapping[str, Path], entry: CatalogEntry) -> Origin | None:
    """Find the training and test files in a folder or its sub-folders train and test. Returns None without training."""
    files: dict[Part, list[Path]] = {
        part: [names[n] for n in sorted(names) if (match := _NAME.fullmatch(n)) and match[1] == part]
        or sorted(p for p in (folder / part).glob("*.parquet") if p.is_file())
        for part in PARTS
    }
    if not files["train"]:
        return None
    for part, paths in files.items():
        of = {int(match[1]) for path in paths if (match := _OF.search(path.name))}
        if of and of != {len(paths)}:
            raise invalid_data(folder, f"it has {len(paths)} of the {max(of)} {part} files")
    return origin(folder, files, entry)


def origin(place: Path, files: Mapping[Part, Sequence[Path]], entry: CatalogEntry) -> Origin:
    """Return the origin of parquet files."""
    every = [path for part in PARTS for path in files.get(part, ())]
    return of_files(place, every, lambda: items(_ParquetTable(place, files, entry), entry))


class _ParquetTable(SampleTable):
    """Parquet files as a table. Declared sizes are checked before data are read."""

    def __init__(self, place: Path, files: Mapping[Part, Sequence[Path]], entry: CatalogEntry) -> None:
        self.place = str(place)
        self.files = {part: tuple(paths) for part, paths in files.items() if paths}
        self.parts = tuple(self.files)
        self.limit = entry.limit
        with self._open(self.files["train"][0]) as file:
            self.columns = tuple(file.schema_arrow.names)

    @contextmanager
    def _open(self, path: Path) -> Iterator[Any]:
        arrow, parquet = (needs(module, "pyarrow", "read parquet") for module in ("pyarrow", "pyarrow.parquet"))
        with reading(path):
            try:
                # Read pages on demand, not a whole row group (possibly the whole file) in advance.
                options = {"pre_buffer": False, "buffer_size": 2**20, "thrift_string_size_limit": 2**24}
                with parquet.ParquetFile(path, **options) as file:
                    yield file
            except arrow.ArrowException as error:  # some are not ValueErrors
                raise ValueError(str(error).split("\n")[0]) from error

    def rows(self, part: Part) -> int:
        total = 0
        for path in self.files[part]:
            with self._open(path) as file:
                total += file.metadata.num_rows
        return total

    def batches(self, part: Part, columns: Sequence[str], size: int) -> Iterator[Any]:
        for path in self.files[part]:
            with self._open(path) as file:
                missing = [name for name in columns if name not in file.schema_arrow.names]
                if missing:
                    raise ValueError(f"it has no column {missing[0]}")
                largest = self._largest(file.metadata, columns)
                # A value can be stored once and used in every row, so the largest chunk bounds a row, not a batch.
                yield from file.iter_batches(min(size, max(1, _BATCH // max(1, largest))), columns=list(columns))

    def _largest(self, metadata: Any, columns: Sequence[str]) -> int:
        """Return the size of the largest column chunk in bytes. Raises ValueError if the sum exceeds the limit."""
        chunks = [
            chunk.total_uncompressed_size
            for group in map(metadata.row_group, range(metadata.num_row_groups))
            for chunk in map(group.column, range(group.num_columns))
            if chunk.path_in_schema.split(".")[0] in columns
        ]
        check_size("the table", sum(chunks), self.limit)
        return max(chunks, default=0)
