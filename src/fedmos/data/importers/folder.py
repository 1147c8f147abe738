"""Folders of images: CLIENT/CLASS/image, or CLASS/image."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np

from ...core.validation import Rule, count, none, require
from ..dataset import Dataset
from ..images import decode, measure
from ..normalize import Normalize
from ..store import allocate

_IMAGES = {".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".ppm", ".pgm"}
_SIZE = Rule(
    "an integer ≥ 1 or (height, width)",
    lambda v: count.test(v) or (isinstance(v, tuple | list) and len(v) == 2 and all(count.test(d) for d in v)),
)

File = tuple[tuple[str, ...], Path]
"""The names of the folders of an image below the base folder, and the path of the image."""


def dataset_from_folder(root: str | os.PathLike[str], size: int | tuple[int, int] | None = None) -> Dataset:
    """Read the images in sorted order of their paths; see `FederatedData.from_folder`.

    The innermost folder is the class, and a folder around it the owner; between them may be folders "train" and "test".
    """
    require("from_folder", "size", size, _SIZE | none)
    if size is not None:
        size = (int(size), int(size)) if count.test(size) else (int(size[0]), int(size[1]))  # type: ignore[arg-type, index]
    root = Path(root)
    train, test = _find_images(root)
    held_out = None
    if len(train[0][0]) == 3:  # CLIENT/train/CLASS and CLIENT/test/CLASS
        held_out = np.array([folders[1] == "test" for folders, _ in train])
        train = [((folders[0], folders[2]), path) for folders, path in train]
    labels = sorted({folders[-1] for folders, _ in train})
    unknown = sorted({folders[-1] for folders, _ in test} - set(labels))
    if unknown:
        raise ValueError(f"Cannot read {root} because test images have a class that training images lack: {unknown[0]}")
    shape = _common_shape([path for _, path in train + test], size)
    x, x_test = (_pixels([path for _, path in files], shape, size) for files in (train, test))
    number = {label: i for i, label in enumerate(labels)}
    y, y_test = (np.array([number[folders[-1]] for folders, _ in files], np.int64) for files in (train, test))
    owner = owners = test_owner = None
    if len(train[0][0]) == 2:
        owners, owner = np.unique([folders[0] for folders, _ in train], return_inverse=True)
        if {len(folders) for folders, _ in test} == {2} and {folders[0] for folders, _ in test} == set(owners):
            test_owner = np.searchsorted(owners, [folders[0] for folders, _ in test])
    return Dataset(
        root.name,
        x,
        y,
        x_test if test else None,
        y_test if test else None,
        normalize=Normalize(mean=0.5, std=0.5),
        owner=owner,
        owners=None if owners is None else owners.tolist(),
        labels=labels,
        held_out=held_out,
        test_owner=test_owner,
    )


def _find_images(root: Path) -> tuple[list[File], list[File]]:
    """Return the training and test images. Raises an error if the folders are not laid out as described."""
    if not root.is_dir():
        raise FileNotFoundError(f"Cannot read {root} because it is not a folder")
    base = root / "train" if (root / "train").is_dir() else root
    train = _files(base, root)
    test = _files(root / "test", root) if base != root and (root / "test").is_dir() else []
    depths = {len(folders) for folders, _ in train}
    divided = depths == {3} and {folders[1] for folders, _ in train} <= {"train", "test"}
    if depths not in ({1}, {2}) and not divided:
        raise ValueError(
            f"Cannot read {root} because its images do not all lie in CLASS/image or in CLIENT/CLASS/image; "
            + ("there are none" if not train else f"folders are {sorted(depths)} deep")
            + (", and not all are CLIENT/train/CLASS or CLIENT/test/CLASS" if 3 in depths else "")
        )
    for folders, path in test:
        if not folders:
            raise ValueError(f"Cannot read {path} because it lies in no folder that names its class")
    return train, test


def _files(base: Path, root: Path) -> list[File]:
    """Return every image below `base`. Raises ValueError for a link that leads out of `root`."""
    inside = root.resolve()
    found = []
    for folder, folders, files in os.walk(base):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for name in folders:
            _check_inside(Path(folder) / name, inside)
        for name in sorted(files):
            path = Path(folder) / name
            if name.startswith(".") or path.suffix.lower() not in _IMAGES:
                continue
            _check_inside(path, inside)
            found.append((path.relative_to(base).parts[:-1], path))
    return found


def _check_inside(path: Path, inside: Path) -> None:
    """Raise ValueError if the path resolves to a place outside of the folder."""
    if not path.resolve().is_relative_to(inside):
        raise ValueError(f"Cannot read {path} because it is a link that leads out of {inside}")


def _common_shape(paths: list[Path], size: tuple[int, int] | None) -> tuple[int, int, int]:
    """Return (channels, height, width) of all images: three channels if any image has colours."""
    colours = False
    sizes: dict[tuple[int, int], Path] = {}
    for path in paths:
        try:
            coloured, image_size = measure(path)
        except ValueError as error:
            raise ValueError(f"Cannot read {path} because it is {error}") from None
        colours |= coloured
        sizes.setdefault(image_size, path)
    if size is None and len(sizes) > 1:
        (one, a), (other, b) = list(sizes.items())[:2]
        raise ValueError(
            f"Cannot stack images of different size ({a} is {one[0]}×{one[1]}, {b} {other[0]}×{other[1]}); give 'size'"
        )
    return (3 if colours else 1, *(size or next(iter(sizes))))


def _pixels(paths: list[Path], shape: tuple[int, int, int], size: tuple[int, int] | None) -> np.ndarray:
    x = allocate((len(paths), *shape))
    for i, path in enumerate(paths):
        try:
            x[i] = decode(path, size)  # a grey image broadcasts to three channels
        except ValueError as error:
            raise ValueError(f"Cannot read {path} because it is {error}") from None
    return x
