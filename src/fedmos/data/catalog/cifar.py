"""Reader of CIFAR's binary version: records of one or two label bytes and 3,072 pixels in three colour planes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from .chunks import PARTS, Items, Origin, Part, SampleChunk, check_size, of_files, read_exactly, slices
from .entries import CatalogEntry
from .errors import invalid_data, reading

_PIXELS = 3 * 32 * 32
_FILES: dict[str, dict[Part, tuple[str, ...]]] = {
    "cifar10": {"train": tuple(f"data_batch_{i}.bin" for i in range(1, 6)), "test": ("test_batch.bin",)},
    "cifar100": {"train": ("train.bin",), "test": ("test.bin",)},
}
FILES = {"cifar10": "data_batch_1.bin … data_batch_5.bin and test_batch.bin", "cifar100": "train.bin and test.bin"}
_PICKLES = {
    "cifar10": ("cifar-10-batches-py", "data_batch_1", "cifar-10-python.tar.gz"),
    "cifar100": ("cifar-100-python", "cifar-100-python.tar.gz"),
}


def find(folder: Path, names: Mapping[str, Path], entry: CatalogEntry) -> Origin | None:
    """Find the files of the binary version. Returns None if there are none; raises InvalidDataError if some miss."""
    wanted = _FILES[entry.name]
    if not any(name in names for part in PARTS for name in wanted[part]):
        return None
    missing = [name for part in PARTS for name in wanted[part] if name not in names]
    if missing:
        raise invalid_data(folder, f"{', '.join(missing)} is missing")
    files = {part: [names[name] for name in wanted[part]] for part in PARTS}
    return of_files(folder, [*files["train"], *files["test"]], lambda: _read(files, entry))


def pickled(names: Mapping[str, Path], entry: CatalogEntry) -> str | None:
    """Return a hint if the files are CIFAR's Python version, which is not supported, else None."""
    found = next((names[name] for name in _PICKLES.get(entry.name, ()) if name in names), None)
    if found is None:
        return None
    number = entry.name.removeprefix("cifar")
    return (
        f"{found} is CIFAR-{number}'s Python version, a pickle, which could run code when opened; "
        f"get the binary version, cifar-{number}-binary.tar.gz"
    )


def _read(files: Mapping[Part, Sequence[Path]], entry: CatalogEntry) -> Items:
    record = entry.label_bytes + _PIXELS
    for part in PARTS:
        for path in files[part]:
            with reading(path), path.open("rb") as stream:
                size = path.stat().st_size
                check_size("the file", size, entry.limit)
                if size % record or not size:
                    raise ValueError(f"its {size} bytes are not a number of records of {record} bytes")
                for rows in slices(size // record, record):
                    count = rows.stop - rows.start
                    raw = np.frombuffer(read_exactly(stream, count * record), np.uint8).reshape(count, record)
                    x = raw[:, entry.label_bytes :].reshape(count, 3, 32, 32)
                    yield SampleChunk(part, x, raw[:, entry.label_bytes - 1])
