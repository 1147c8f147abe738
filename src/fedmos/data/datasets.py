"""Data sets by name, and generated problems.

Example:
    >>> digits = fm.datasets.load("digits")
    >>> digits
    Dataset(digits: 1438 training and 359 test samples)
"""

from __future__ import annotations

import os
from dataclasses import dataclass, replace

import numpy as np

from ..core.validation import path, require, suggest
from ..rng import Purpose, generator
from . import catalog, natural
from .dataset import Dataset
from .normalize import Normalize
from .synthetic import Quadratic, quadratic, synthetic

__all__ = ["Dataset", "Found", "FoundDataset", "Quadratic", "find", "load", "names", "quadratic", "synthetic"]


def load(name: str, root: str | os.PathLike[str] | None = None) -> Dataset:
    """Load a data set by name.

    "digits" is included in scikit-learn, "shakespeare" in fedmos. The others are searched in `$FEDMOS_DATA` (default
    ~/.cache/fedmos): NAME.npz with x_train, y_train, x_test and y_test (and optionally owner); then parquet files, IDX
    files, CIFAR's binary files or LEAF's files there or in a sub-folder named after the data set; then on the Hugging
    Face hub. Tables with natural clients, e.g. "heart_disease", are fetched with `fedmos data get NAME`.

    The data set is decoded once into `$FEDMOS_DATA/store` and memory-mapped from there.

    Args:
        name: One of `names()`.
        root: Search only this file, folder, or data set of the hub ("hf://OWNER/NAME").

    Returns:
        A `Dataset`.

    Raises:
        ValueError: If the name is unknown or the files are invalid.
        FileNotFoundError: If the data set is not found. The message lists the searched places and how to get the data.

    Example:
        >>> fm.datasets.load("digits").x_train.shape
        (1438, 1, 8, 8)
    """
    return find(name, root).dataset


def names() -> list[str]:
    """Return the names that `load` accepts.

    Example:
        >>> "mnist" in fm.datasets.names()
        True
    """
    return ["digits", *catalog.CATALOG, *natural.NATURAL]


@dataclass(frozen=True)
class FoundDataset:
    """The result of `find`.

    Example:
        >>> found = fm.datasets.find("digits")
        >>> type(found.dataset).__name__, found.place
        ('Dataset', 'scikit-learn')
    """

    dataset: Dataset
    """The data set."""
    place: str
    """The file, folder or address where it was found."""
    status: str
    """Comparison with the published data: "as published", "differs", "other sizes" or "not known"."""


Found = FoundDataset
"""The earlier name of `FoundDataset`."""


def find(name: str, root: str | os.PathLike[str] | None = None, online: bool = True) -> FoundDataset:
    """Load a data set and report where it was found and whether it is the published one.

    Args:
        name: One of `names()`.
        root: Search only this file, folder, or data set of the hub ("hf://OWNER/NAME").
        online: Whether the Hugging Face hub is searched.

    Returns:
        A `FoundDataset`.

    Raises:
        ValueError: If the name is unknown or the files are invalid.
        FileNotFoundError: If the data set is not found.

    Example:
        >>> fm.datasets.find("digits").place
        'scikit-learn'
    """
    if name not in names():
        raise ValueError(f"load: 'name' must be one of {', '.join(names())}, got {name!r}{suggest(name, names())}")
    if root is not None:
        require("load", "root", root, path)
    if name == "digits":
        if root is not None:
            raise ValueError(f"load: 'root' must be left out for digits, which comes with scikit-learn, got {root!r}")
        return FoundDataset(_digits(), "scikit-learn", "not known")
    if name in natural.NATURAL:
        return _natural(natural.NATURAL[name], root)
    entry = catalog.CATALOG[name]
    found = catalog.find(entry, root, online)
    return FoundDataset(_dataset(entry, found.stored), found.place, found.status)


def _dataset(entry: catalog.CatalogEntry, stored: catalog.Stored) -> Dataset:
    """Return the arrays of the store as a `Dataset`."""
    arrays, normalize = stored.arrays, entry.normalize
    if stored.fractions and normalize is not None:
        normalize = replace(normalize, scale=1.0)
    return Dataset(
        entry.name,
        arrays["x_train"],
        arrays["y_train"],
        arrays.get("x_test"),
        arrays.get("y_test"),
        normalize=normalize,
        owner=arrays.get("owner"),
        owners=stored.owners,
        labels=stored.labels,
    )


def _natural(table: natural.NaturalTable, root: str | os.PathLike[str] | None) -> FoundDataset:
    """Return a naturally federated table; its test samples, where it has some, are the clients' and the server's."""
    path, arrays = natural.find(table, root)
    held, x_test = arrays.held_out, arrays.x_test
    dataset = Dataset(
        table.name,
        arrays.x,
        arrays.y,
        arrays.x[held] if held is not None and x_test is None else x_test,
        None if held is None else arrays.y[held],
        owner=arrays.owner,
        owners=arrays.owners,
        held_out=held,
    )
    return FoundDataset(dataset, str(path), table.status(arrays))


def _digits() -> Dataset:
    """Return 1,797 handwritten digits of 8×8 pixels; a fifth, drawn with a fixed seed, are test samples."""
    from sklearn.datasets import load_digits

    x, y = load_digits(return_X_y=True)
    x = x.astype(np.uint8).reshape(-1, 1, 8, 8)
    order = generator(0, Purpose.SPLIT).permutation(len(y))
    test, train = order[: len(y) // 5], order[len(y) // 5 :]
    return Dataset("digits", x[train], y[train], x[test], y[test], Normalize(mean=0.3053, std=0.3763, scale=16.0))
