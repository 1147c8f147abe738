"""One sentence for every file that cannot be used: "Cannot load PATH because …"."""

from __future__ import annotations

import struct
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


class InvalidDataError(ValueError):
    """A file that is not what it should be."""


class UnreachableError(Exception):
    """Data that would have to be fetched, and why they were not."""


def invalid_data(place: str | Path, why: str) -> InvalidDataError:
    return InvalidDataError(f"Cannot load {place} because it is not a valid data set: {why}")


_FAULTS = (
    ValueError,
    LookupError,
    EOFError,
    OSError,
    RuntimeError,  # encrypted archives, unknown compressions, nesting too deep
    OverflowError,
    zipfile.BadZipFile,
    zlib.error,
    struct.error,
)


@contextmanager
def reading(place: str | Path) -> Iterator[None]:
    """Whatever goes wrong inside is the file's fault, and told as such."""
    try:
        yield
    except InvalidDataError:
        raise
    except _FAULTS as error:
        if isinstance(error, OSError) and error.strerror:
            raise InvalidDataError(f"Cannot load {place} because it cannot be read: {error.strerror}") from error
        raise invalid_data(place, str(error).strip("'") or type(error).__name__) from error
