"""Files that are written completely or not at all."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

_BLOCK = 2**22


class StorageError(OSError):
    """A file could not be written or read. The message is one sentence."""


class FileRecord(NamedTuple):
    """The name, size and hash of a file, by which damage is detected."""

    name: str
    """Path relative to the folder of all checkpoints."""
    bytes: int
    sha256: str


@contextmanager
def storage_errors(action: str, advice: str) -> Iterator[None]:
    """Turn errors of the operating system into a `StorageError`: "Cannot `action` because of …; `advice`"."""
    try:
        yield
    except OSError as error:
        if isinstance(error, StorageError):
            raise
        raise StorageError(f"Cannot {action} because of an error: {error.strerror or error}; {advice}") from error


def write_synced(path: Path, content: Iterable[bytes | memoryview], mode: int = 0o666) -> tuple[int, str]:
    """Write a new file and flush it to the disk; return its size and SHA-256."""
    size, sha = 0, hashlib.sha256()
    with open(path, "wb", buffering=0, opener=lambda name, flags: os.open(name, flags, mode)) as file:
        for part in content:
            _write_all(file.fileno(), part)
            size += len(part)
            sha.update(part)
        os.fsync(file.fileno())
    return size, sha.hexdigest()


def replace_file(path: Path, content: bytes, writer: str = "") -> None:
    """Replace a file atomically: readers see the old content or the new one.

    Args:
        path: the file.
        content: its new content.
        writer: a name that distinguishes concurrent writers of one file.
    """
    new = path.with_name(f".{path.name}{writer}.partial")
    try:
        write_synced(new, [content])
        os.replace(new, path)
    except BaseException:
        with suppress(OSError):
            new.unlink(missing_ok=True)
        raise
    sync_folder(path.parent)


def create_file(path: Path, content: bytes, writer: str = "", mode: int = 0o666) -> bool:
    """Create a file that is whole from its first moment; returns False if there is one already.

    Args:
        path: the file.
        content: its content.
        writer: a name that distinguishes concurrent writers of one file.
        mode: its permissions, without those that the umask takes away.
    """
    new = path.with_name(f".{path.name}{writer}.partial")
    try:
        write_synced(new, [content], mode)
        os.link(new, path)
    except FileExistsError:
        return False
    finally:
        with suppress(OSError):
            new.unlink(missing_ok=True)
    sync_folder(path.parent)
    return True


def sync_folder(path: Path) -> None:
    """Flush the entries of a folder to the disk. Windows neither supports nor needs it."""
    if os.name == "nt":
        return
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def is_occupied(path: Path) -> bool:
    """Return whether a path is a file, or a folder that is not empty."""
    return path.exists() and not (path.is_dir() and not any(path.iterdir()))


def hash_file(path: Path) -> tuple[int, str]:
    """Return the size and SHA-256 of a file."""
    size, sha = 0, hashlib.sha256()
    with open(path, "rb", buffering=0) as file:
        while block := file.read(_BLOCK):
            size += len(block)
            sha.update(block)
    return size, sha.hexdigest()


class AppendOnlyFile:
    """A text file to which whole lines are appended. A line that cannot be written completely is removed again."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)

    def append(self, text: str) -> None:
        """Append a line.

        Raises:
            OSError: if the disk is full; the file is then as before.
        """
        before = os.fstat(self._file).st_size
        try:
            _write_all(self._file, f"{text}\n".encode())
        except BaseException:
            with suppress(OSError):
                os.ftruncate(self._file, before)
            raise

    def close(self) -> None:
        os.close(self._file)


def _write_all(file: int, content: bytes | memoryview) -> None:
    rest = memoryview(content)
    while rest:
        rest = rest[os.write(file, rest) :]
