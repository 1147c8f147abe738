"""Where data sets come from: files in the formats they are published in, the hub, and the text that comes along."""

from __future__ import annotations

import os
from dataclasses import dataclass

from . import store
from .errors import UnreachableError, UnsoundError
from .published import SOURCES, Source
from .search import advice, locate
from .store import Stored

__all__ = ["SOURCES", "Found", "Source", "Stored", "UnreachableError", "UnsoundError", "find"]


@dataclass(frozen=True)
class Found:
    """A data set, where it was found, and whether it is the published one."""

    stored: Stored
    place: str
    status: str


def find(source: Source, root: str | os.PathLike[str] | None = None, online: bool = True) -> Found:
    """Look for a data set and open it; FileNotFoundError says where it was looked for, and how to get it."""
    tried: list[str] = []
    origin = locate(source, root, tried, online)
    if origin is not None:
        try:
            stored = store.load(source, origin)
            return Found(stored, origin.place, store.status(source, stored))
        except UnreachableError as error:
            tried.append(f"{origin.place}: {error}")
    places = "; ".join(tried) or "nothing was found"
    raise FileNotFoundError(f"Cannot load {source.name!r} because {places}. To get it, {advice(source)}")
