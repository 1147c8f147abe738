"""Files that are there as a whole or not at all."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

_BLOCK = 2**22


class StorageError(OSError):
    """Something could not be written or read, in one sentence."""


class Stamp(NamedTuple):
    """A file that is to be found as it was written."""

    name: str
    """Relative to the folder of all checkpoints."""
    bytes: int
    sha256: str


@contextmanager
def explained(deed: str, advice: str) -> Iterator[None]:
    """Turn an error of the operating system into a sentence."""
    try:
        yield
    except OSError as error:
        if isinstance(error, StorageError):
            raise
        raise StorageError(f"Cannot {deed} because of an error: {error.strerror or error}; {advice}") from error


def write_synced(path: Path, content: Iterable[bytes]) -> tuple[int, str]:
    """A new file, on the disk for good when this returns; its size and SHA-256."""
    size, sha = 0, hashlib.sha256()
    with open(path, "wb", buffering=0) as file:
        for part in content:
            _write_all(file.fileno(), part)
            size += len(part)
            sha.update(part)
        os.fsync(file.fileno())
    return size, sha.hexdigest()


def replace_file(path: Path, content: bytes, writer: str = "") -> None:
    """Put a file in the place of another; at no moment is there half of it. Several writers need different names."""
    new = path.with_name(f".{path.name}{writer}.partial")
    try:
        write_synced(new, [content])
        os.replace(new, path)
    except BaseException:
        with suppress(OSError):
            new.unlink(missing_ok=True)
        raise
    sync_folder(path.parent)


def sync_folder(path: Path) -> None:
    """Bring the names in a folder to the disk. Some systems cannot, and need not."""
    if os.name == "nt":
        return
    number = os.open(path, os.O_RDONLY)
    try:
        os.fsync(number)
    finally:
        os.close(number)


def digest(path: Path) -> tuple[int, str]:
    """Size and SHA-256 of a file."""
    size, sha = 0, hashlib.sha256()
    with open(path, "rb", buffering=0) as file:
        while block := file.read(_BLOCK):
            size += len(block)
            sha.update(block)
    return size, sha.hexdigest()


class Lines:
    """A text file that grows by whole lines; one that does not fit is taken back."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)

    def add(self, text: str) -> None:
        before = os.fstat(self._file).st_size
        try:
            _write_all(self._file, f"{text}\n".encode())
        except BaseException:
            with suppress(OSError):
                os.ftruncate(self._file, before)
            raise

    def close(self) -> None:
        os.close(self._file)


def _write_all(file: int, content: bytes) -> None:
    rest = memoryview(content)
    while rest:
        rest = rest[os.write(file, rest) :]
