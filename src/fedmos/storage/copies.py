"""Copies of run folders that travel between machines: the names of all files, and the contents of those that changed.

The lock and temporary files are left out. Files of checkpoints never change once they exist, and a checkpoint counts
only with its manifest, which is written last. So a copy can be continued like the folder it was made of.
"""

from __future__ import annotations

from pathlib import Path, PurePosixPath
from typing import NamedTuple

from ..engine.client_store import SCRATCH
from .files import replace_file

_MANIFEST = "manifest.json"


class FolderCopy(NamedTuple):
    """The state of a folder."""

    names: list[str]
    """All files, relative to the folder."""
    files: dict[str, bytes]
    """Contents by name, of all files or of those that have changed."""


class FolderReader:
    """Reads a folder again and again; each time returns the files that have changed.

    Args:
        folder: The folder. A run may be writing to it.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._seen: dict[str, tuple[int, int]] = {}

    def changes(self) -> FolderCopy | None:
        """Return the files that have changed since the last call; None if none has, or files vanished meanwhile."""
        found = _stamps(self._folder)
        changed = [name for name, stamp in found.items() if self._seen.get(name) != stamp]
        if not changed and len(found) == len(self._seen):
            return None
        try:
            files = {name: (self._folder / name).read_bytes() for name in changed}
        except OSError:  # an old checkpoint was removed meanwhile
            return None
        if set(_stamps(self._folder)) != set(found):
            return None
        self._seen = found
        return FolderCopy(list(found), files)


def read_folder(folder: Path) -> FolderCopy:
    """Return a copy of a folder that is not written to; an empty one if there is no folder."""
    names = list(_stamps(folder))
    return FolderCopy(names, {name: (folder / name).read_bytes() for name in names})


def write_folder(folder: Path, copy: FolderCopy) -> bool:
    """Bring a folder into the state of a copy, checkpoints in an order in which one is complete at any time.

    Returns:
        False, and the folder is as before, if neither the folder nor the copy has the content of a file.
    """
    here = set(_stamps(folder))
    if not set(copy.names) <= here | set(copy.files):
        return False
    if copy.names:  # what marks the folder of a run
        (folder / "checkpoints").mkdir(parents=True, exist_ok=True)
        (folder / "lock").touch()
    for name in sorted(copy.files, key=lambda name: (PurePosixPath(name).name == _MANIFEST, name)):
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_file(path, copy.files[name])
    removed = here - set(copy.names)
    for name in sorted(removed, key=lambda name: (PurePosixPath(name).name != _MANIFEST, name)):
        (folder / name).unlink(missing_ok=True)
    for parent in {(folder / name).parent for name in removed} - {folder}:
        if not any(parent.iterdir()):
            parent.rmdir()
    return True


def _stamps(folder: Path) -> dict[str, tuple[int, int]]:
    """Return size and time of change of the files of a folder by name, sorted."""
    found = {}
    for path in sorted(folder.rglob("*")):
        parts = path.relative_to(folder).parts
        if parts == ("lock",) or any(part.startswith((".", SCRATCH)) for part in parts):
            continue
        try:
            if path.is_file():
                stat = path.stat()
                found["/".join(parts)] = (stat.st_size, stat.st_mtime_ns)
        except OSError:  # removed meanwhile
            continue
    return found
