"""The catalog of named data sets: readers for the published file formats, the Hugging Face hub and the bundled text."""

from __future__ import annotations

import os
from dataclasses import dataclass

from . import store
from .entries import CATALOG, CatalogEntry
from .errors import InvalidDataError, UnreachableError
from .search import advice, locate
from .store import Stored

__all__ = ["CATALOG", "CatalogEntry", "CatalogResult", "InvalidDataError", "Stored", "UnreachableError", "find"]


@dataclass(frozen=True)
class CatalogResult:
    """The result of `find`."""

    stored: Stored
    """The arrays of the data set."""
    place: str
    """The file, folder or address where it was found."""
    status: str
    """Comparison with the published data; see `store.status`."""


def find(entry: CatalogEntry, root: str | os.PathLike[str] | None = None, online: bool = True) -> CatalogResult:
    """Search a data set and open it.

    Raises:
        FileNotFoundError: If it is not found. The message lists the searched places and how to get the data.
        InvalidDataError: If the files are invalid.
    """
    tried: list[str] = []
    origin = locate(entry, root, tried, online)
    if origin is not None:
        try:
            stored = store.load(entry, origin)
            return CatalogResult(stored, origin.place, store.status(entry, stored))
        except UnreachableError as error:
            tried.append(f"{origin.place}: {error}")
    places = "; ".join(tried) or "nothing was found"
    raise FileNotFoundError(f"Cannot load {entry.name!r} because {places}. To get it, {advice(entry)}")
