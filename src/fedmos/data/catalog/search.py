"""Search of a data set in files, folders and on the hub."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from . import cifar, hub, idx, leaf, npz, parquet, plays
from .chunks import Origin
from .entries import CatalogEntry
from .errors import invalid_data
from .store import data_folder

Finder = Callable[[Path, Mapping[str, Path], CatalogEntry], Origin | None]


def _text(folder: Path, names: Mapping[str, Path], entry: CatalogEntry) -> Origin | None:
    found = names.get(f"{entry.name}.txt")
    return None if found is None else plays.origin(found)


_FINDERS: dict[str, tuple[Finder, str]] = {
    "parquet": (parquet.find, parquet.FILES),
    "idx": (idx.find, idx.FILES),
    "cifar10": (cifar.find, cifar.FILES["cifar10"]),
    "cifar100": (cifar.find, cifar.FILES["cifar100"]),
    "leaf": (leaf.find, leaf.FILES),
    "text": (_text, "shakespeare.txt"),
}
_INNER = ("raw", "data", "default")


def locate(
    entry: CatalogEntry, root: str | os.PathLike[str] | None, tried: list[str], online: bool = True
) -> Origin | None:
    """Return the first place with the data set, or None. The hub is returned without checking that it has the data.

    Args:
        entry: The data set.
        root: Search only this file, folder or data set of the hub.
        tried: A description of each place without the data set is appended to it.
        online: Whether the hub is contacted when the data are read.

    Raises:
        FileNotFoundError: If `root` does not exist.
        InvalidDataError: If the files are invalid.
    """
    root = root or None
    if root is not None and (named := on_hub(entry, os.fspath(root))) is not None:
        return named
    place = data_folder() if root is None else Path(root).expanduser()
    if root is not None and not place.exists():
        raise FileNotFoundError(f"Cannot load {entry.name!r} because {place} does not exist")
    if place.is_file():
        return _file(place, entry)
    found = _local(place, entry, given=root is not None, tried=tried)
    if found is not None or root is not None:
        return found
    if entry.name == "shakespeare":
        return plays.bundled()
    if entry.hub is None:
        tried.append("no data set of the hub with its natural clients is known; give one as root='hf://OWNER/NAME'")
        return None
    return hub.origin(entry, entry.hub, entry.config, online)


def on_hub(entry: CatalogEntry, place: str) -> Origin | None:
    """Return the origin of "hf://OWNER/NAME" or "hf://OWNER/NAME/CONFIGURATION", or None for other strings."""
    name = re.fullmatch(r"hf:/{1,2}([\w.-]+/[\w.-]+)(?:/([\w.-]+))?", place)
    return None if name is None else hub.origin(entry, name[1], name[2])


def _local(place: Path, entry: CatalogEntry, given: bool, tried: list[str]) -> Origin | None:
    folders = list(_folders(place, entry, given))
    for _, names in folders:
        if (path := names.get(f"{entry.name}.npz")) is not None and path.is_file():
            return npz.origin(path, entry)
    tried.append(f"{place / entry.name}.npz does not exist")
    for kind in entry.formats:
        find, files = _FINDERS[kind]
        for folder, names in folders:
            if (found := find(folder, names, entry)) is not None:
                return found
        tried.append(f"no {files} in {', '.join(str(folder) for folder, _ in folders) or place}")
    tried.extend(remark for _, names in folders if (remark := cifar.pickled(names, entry)) is not None)
    return None


def _folders(place: Path, entry: CatalogEntry, given: bool) -> Iterator[tuple[Path, dict[str, Path]]]:
    """Yield the folders that can contain the data set, and their contents by lower-case name.

    Sub-folders named after the data set come first, then the place itself, which can contain several data sets.
    """
    named = {*entry.folders, *_INNER, (entry.config or "").lower()}
    here = _names(place)
    for name in entry.folders:
        if (outer := here.get(name)) is not None and outer.is_dir():
            inside = _names(outer)
            yield outer, inside
            for inner in sorted(named & inside.keys()):
                if inside[inner].is_dir():
                    yield inside[inner], _names(inside[inner])
    if place.is_dir():
        yield place, here
    if given:
        for inner in sorted((named - set(entry.folders)) & here.keys()):
            if here[inner].is_dir():
                yield here[inner], _names(here[inner])


def _names(folder: Path) -> dict[str, Path]:
    """Return the files and folders in a folder by lower-case name; pipes are omitted because reading them can block."""
    try:
        return {path.name.lower(): path for path in sorted(folder.iterdir()) if path.is_file() or path.is_dir()}
    except OSError:
        return {}


def _file(path: Path, entry: CatalogEntry) -> Origin:
    """Return the origin of a single file. Raises InvalidDataError if its format is not supported."""
    suffix = path.suffix.lower()
    if suffix == ".npz":
        return npz.origin(path, entry)
    if suffix == ".parquet" and "parquet" in entry.formats:
        return parquet.origin(path, {"train": [path]}, entry)
    if suffix == ".json" and "leaf" in entry.formats:
        return leaf.origin(path, [path], entry)
    if suffix == ".txt" and "text" in entry.formats:
        return plays.origin(path)
    for kind in entry.formats:
        if kind in ("idx", "cifar10", "cifar100"):
            names = _names(path.parent)
            found = _FINDERS[kind][0](path.parent, names, entry)
            if found is not None and str(path.resolve()) in (file[0] for file in found.identity):
                return found
    remark = cifar.pickled({path.name.lower(): path}, entry)
    known = ", ".join([f"{entry.name}.npz", *(_FINDERS[kind][1] for kind in entry.formats)])
    raise invalid_data(path, remark or f"it is not one of the supported files of {entry.name}: {known}")


def advice(entry: CatalogEntry, fetch: bool = True) -> str:
    """Return instructions for getting the data set, for error messages."""
    folder = data_folder()
    files = " or ".join(_FINDERS[kind][1] for kind in entry.formats)
    columns = entry.columns
    layout = ""
    if entry.hub is None:
        wanted = [names[0] for names in (columns.owner, columns.input, columns.target) if names]
        layout = f" with the columns {', '.join(wanted)}"
    command = f"fedmos data get {entry.name}" + (" --from hf://OWNER/NAME" if entry.hub is None else "")
    return (f"fetch it with `{command}`; or " if fetch else "") + (
        f"put {entry.name}.npz (x_train, y_train, x_test, y_test) into {folder}, or {files}{layout} into "
        f"{folder / entry.folders[0]}; or name their folder in 'root' or $FEDMOS_DATA"
    )
