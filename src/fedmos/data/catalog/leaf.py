"""Reader of LEAF's Shakespeare: JSON files with `users` and `user_data`, undivided (all_data) or as train and test."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from . import characters
from .chunks import PARTS, Items, Origin, Part, SampleChunk, check_size, of_files
from .entries import CatalogEntry
from .errors import reading

FILES = "LEAF's all_data/*.json, or train/*.json and test/*.json"


def find(folder: Path, names: Mapping[str, Path], entry: CatalogEntry) -> Origin | None:
    """Find LEAF's folders in a folder. Returns None if there are none."""
    inside = {
        name: sorted(path for path in (folder / name).glob("*.json") if path.is_file()) for name in ("all_data", *PARTS)
    }
    if inside["train"] and inside["test"]:
        files = {part: inside[part] for part in PARTS}
        return of_files(folder, [*files["train"], *files["test"]], lambda: _divided(files, entry))
    return origin(folder, inside["all_data"], entry) if inside["all_data"] else None


def origin(place: Path, files: Sequence[Path], entry: CatalogEntry) -> Origin:
    """Return the origin of files with undivided data; the reader divides the samples in time."""
    return of_files(place, files, lambda: _whole(files, entry))


def _divided(files: Mapping[Part, Sequence[Path]], entry: CatalogEntry) -> Items:
    for part in PARTS:
        for path in files[part]:
            for user, x, y in _users(path, entry):
                yield SampleChunk(part, x, y, [user] * len(y))


def _whole(files: Sequence[Path], entry: CatalogEntry) -> Items:
    for path in files:
        for user, x, y in _users(path, entry):
            train, test = characters.in_time(len(y))
            spans: tuple[tuple[Part, slice], ...] = (("train", slice(0, train)), ("test", slice(test, None)))
            for part, span in spans:
                yield SampleChunk(part, x[span], y[span], [user] * len(y[span]))


def _users(path: Path, entry: CatalogEntry) -> Iterator[tuple[str, Any, Any]]:
    with reading(path):
        check_size("the file", path.stat().st_size, entry.limit)
        content = json.loads(path.read_bytes())
        data = content.get("user_data") if isinstance(content, dict) else None
        if not isinstance(data, dict):
            raise ValueError("it has no user_data")
        for user, samples in data.items():
            x, y = (_texts(samples, key, user) for key in "xy")
            if len(x) != len(y):
                raise ValueError(f"user {user!r} has {len(x)} inputs for {len(y)} targets")
            yield user, characters.encode(x, entry.shape[0]), characters.encode(y, 1)


def _texts(samples: Any, key: str, user: str) -> list[str]:
    texts = samples.get(key) if isinstance(samples, dict) else None
    if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
        raise ValueError(f"{key} of user {user!r} is not a list of texts")
    return texts
