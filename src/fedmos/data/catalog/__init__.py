"""Where data sets come from: files in the formats they are published in, the hub, and the text that comes along."""

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
    """A data set, where it was found, and whether it is the published one."""

    stored: Stored
    place: str
    status: str


def find(entry: CatalogEntry, root: str | os.PathLike[str] | None = None, online: bool = True) -> CatalogResult:
    """Look for a data set and open it; FileNotFoundError says where it was looked for, and how to get it."""
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
