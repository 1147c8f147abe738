"""Errors of the catalog, with one template: "Cannot load PATH because …"."""

from __future__ import annotations

import struct
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


class InvalidDataError(ValueError):
    """A file is invalid."""


class UnreachableError(Exception):
    """Data cannot be downloaded; the message is the reason."""


def invalid_data(place: str | Path, reason: str) -> InvalidDataError:
    """Return an InvalidDataError for a file or folder."""
    return InvalidDataError(f"Cannot load {place} because it is not a valid data set: {reason}")


_READ_ERRORS = (
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
    """Turn exceptions that an invalid file causes into InvalidDataError."""
    try:
        yield
    except InvalidDataError:
        raise
    except _READ_ERRORS as error:
        if isinstance(error, OSError) and error.strerror:
            raise InvalidDataError(f"Cannot load {place} because it cannot be read: {error.strerror}") from error
        raise invalid_data(place, str(error).strip("'") or type(error).__name__) from error
