"""Where a data set may lie, in the order in which places are looked at."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from . import cifar, hub, idx, leaf, npz, parquet, plays
from .chunks import Origin
from .errors import unsound
from .published import Source
from .store import data_folder

Finder = Callable[[Path, Mapping[str, Path], Source], Origin | None]


def _text(folder: Path, names: Mapping[str, Path], source: Source) -> Origin | None:
    found = names.get(f"{source.name}.txt")
    return None if found is None else plays.origin(found, source)


_FINDERS: dict[str, tuple[Finder, str]] = {
    "parquet": (parquet.find, parquet.FILES),
    "idx": (idx.find, idx.FILES),
    "cifar10": (cifar.find, cifar.FILES["cifar10"]),
    "cifar100": (cifar.find, cifar.FILES["cifar100"]),
    "leaf": (leaf.find, leaf.FILES),
    "text": (_text, "shakespeare.txt"),
}
_INNER = ("raw", "data", "default")


def locate(source: Source, root: str | os.PathLike[str] | None, tried: list[str], online: bool = True) -> Origin | None:
    """The first place that has the set; what was tried in vain is added to `tried`.

    With `root`, only that is looked at. Whether the hub has it shows when it is read.
    """
    root = root or None
    if root is not None and (named := on_hub(source, os.fspath(root))) is not None:
        return named
    place = data_folder() if root is None else Path(root).expanduser()
    if root is not None and not place.exists():
        raise FileNotFoundError(f"Cannot load {source.name!r} because {place} does not exist")
    if place.is_file():
        return _file(place, source)
    found = _local(place, source, given=root is not None, tried=tried)
    if found is not None or root is not None:
        return found
    if source.name == "shakespeare":
        return plays.bundled(source)
    if source.hub is None:
        tried.append(
            "no set of the hub's with this name and natural clients is known; name one with root='hf://OWNER/NAME'"
        )
        return None
    return hub.origin(source, source.hub, source.config, online)


def on_hub(source: Source, place: str) -> Origin | None:
    """hf://OWNER/NAME or hf://OWNER/NAME/CONFIGURATION, or None if it does not look like either."""
    name = re.fullmatch(r"hf:/{1,2}([\w.-]+/[\w.-]+)(?:/([\w.-]+))?", place)
    return None if name is None else hub.origin(source, name[1], name[2])


def _local(place: Path, source: Source, given: bool, tried: list[str]) -> Origin | None:
    folders = list(_folders(place, source, given))
    for _, names in folders:
        if (path := names.get(f"{source.name}.npz")) is not None and path.is_file():
            return npz.origin(path, source)
    tried.append(f"{place / source.name}.npz does not exist")
    for kind in source.formats:
        find, files = _FINDERS[kind]
        for folder, names in folders:
            if (found := find(folder, names, source)) is not None:
                return found
        tried.append(f"no {files} in {', '.join(str(folder) for folder, _ in folders) or place}")
    tried.extend(remark for _, names in folders if (remark := cifar.pickled(names, source)) is not None)
    return None


def _folders(place: Path, source: Source, given: bool) -> Iterator[tuple[Path, dict[str, Path]]]:
    """Folders that may hold the set, and what is in them by name in small letters.

    Sub-folders that are named after the set come first, then the place itself, which may hold several sets.
    """
    named = {*source.folders, *_INNER, (source.config or "").lower()}
    here = _names(place)
    for name in source.folders:
        if (outer := here.get(name)) is not None and outer.is_dir():
            inside = _names(outer)
            yield outer, inside
            for inner in sorted(named & inside.keys()):
                if inside[inner].is_dir():
                    yield inside[inner], _names(inside[inner])
    if place.is_dir():
        yield place, here
    if given:
        for inner in sorted((named - set(source.folders)) & here.keys()):
            if here[inner].is_dir():
                yield here[inner], _names(here[inner])


def _names(folder: Path) -> dict[str, Path]:
    """What is in a folder by name in small letters: files and folders only, since reading a pipe could take forever."""
    try:
        return {path.name.lower(): path for path in sorted(folder.iterdir()) if path.is_file() or path.is_dir()}
    except OSError:
        return {}


def _file(path: Path, source: Source) -> Origin:
    """A single file that the user named."""
    suffix = path.suffix.lower()
    if suffix == ".npz":
        return npz.origin(path, source)
    if suffix == ".parquet" and "parquet" in source.formats:
        return parquet.origin(path, {"train": [path]}, source)
    if suffix == ".json" and "leaf" in source.formats:
        return leaf.origin(path, [path], source)
    if suffix == ".txt" and "text" in source.formats:
        return plays.origin(path, source)
    for kind in source.formats:
        if kind in ("idx", "cifar10", "cifar100"):
            names = _names(path.parent)
            found = _FINDERS[kind][0](path.parent, names, source)
            if found is not None and str(path.resolve()) in (entry[0] for entry in found.identity):
                return found
    remark = cifar.pickled({path.name.lower(): path}, source)
    known = ", ".join([f"{source.name}.npz", *(_FINDERS[kind][1] for kind in source.formats)])
    raise unsound(path, remark or f"it is none of the files that {source.name} comes in: {known}")


def advice(source: Source, fetch: bool = True) -> str:
    """How to get the set."""
    folder = data_folder()
    files = " or ".join(_FINDERS[kind][1] for kind in source.formats)
    columns = source.columns
    layout = ""
    if source.hub is None:
        wanted = [names[0] for names in (columns.owner, columns.input, columns.target) if names]
        layout = f" with the columns {', '.join(wanted)}"
    command = f"fedmos data get {source.name}" + (" --from hf://OWNER/NAME" if source.hub is None else "")
    return (f"fetch it with `{command}`; or " if fetch else "") + (
        f"put {source.name}.npz (x_train, y_train, x_test, y_test) into {folder}, or {files}{layout} into "
        f"{folder / source.folders[0]}; or name their folder in 'root' or $FEDMOS_DATA"
    )
