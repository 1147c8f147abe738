"""Data sets by name, ready to be partitioned."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace

import numpy as np

from ..core.validation import suggest
from ..rng import Purpose, generator
from . import catalog
from .dataset import Dataset
from .normalize import Normalize
from .synthetic import Quadratic, quadratic, synthetic

__all__ = ["Dataset", "Found", "FoundDataset", "Quadratic", "find", "load", "names", "quadratic", "synthetic"]


def load(name: str, root: str | os.PathLike[str] | None = None) -> Dataset:
    """A data set by name; `names()` lists them.

    "digits" comes with scikit-learn, "shakespeare" with fedmos. The others are looked for in `$FEDMOS_DATA` (default
    ~/.cache/fedmos): NAME.npz with x_train, y_train, x_test and y_test (and maybe owner); then parquet, IDX, CIFAR's
    binary or LEAF's files there or in a sub-folder named after the set; then on the Hugging Face hub. `root` names a
    file or folder instead, or a set of the hub's as "hf://OWNER/NAME"; then nothing else is searched.

    What is found is decoded once into `$FEDMOS_DATA/store` and memory-mapped from there.
    """
    return find(name, root).dataset


def names() -> list[str]:
    """What `load` knows."""
    return ["digits", *catalog.CATALOG]


@dataclass(frozen=True)
class FoundDataset:
    """A data set, where it was found, and whether it is the published one: "as published", "differs", …"""

    dataset: Dataset
    place: str
    status: str


Found = FoundDataset
"""The earlier name of `FoundDataset`."""


def find(name: str, root: str | os.PathLike[str] | None = None, online: bool = True) -> FoundDataset:
    """`load`, and what else is known of the set; `online=False` leaves the hub alone."""
    if name not in names():
        raise ValueError(f"load: 'name' must be one of {', '.join(names())}, got {name!r}{suggest(name, names())}")
    if name == "digits":
        if root:
            raise ValueError(f"load: 'root' must be left out for digits, which comes with scikit-learn, got {root!r}")
        return FoundDataset(_digits(), "scikit-learn", "not known")
    entry = catalog.CATALOG[name]
    found = catalog.find(entry, root, online)
    stored, normalize = found.stored, entry.normalize
    if stored.fractions and normalize is not None:
        normalize = replace(normalize, scale=1.0)
    arrays = stored.arrays
    dataset = Dataset(
        name,
        arrays["x_train"],
        arrays["y_train"],
        arrays.get("x_test"),
        arrays.get("y_test"),
        normalize=normalize,
        owner=arrays.get("owner"),
        owners=stored.owners,
        labels=stored.labels,
    )
    return FoundDataset(dataset, found.place, found.status)


def _digits() -> Dataset:
    """1,797 handwritten digits of 8×8 pixels; one in five, drawn with a fixed seed, is for testing."""
    from sklearn.datasets import load_digits

    x, y = load_digits(return_X_y=True)
    x = x.astype(np.uint8).reshape(-1, 1, 8, 8)
    order = generator(0, Purpose.SPLIT).permutation(len(y))
    test, train = order[: len(y) // 5], order[len(y) // 5 :]
    return Dataset("digits", x[train], y[train], x[test], y[test], Normalize(mean=0.3053, std=0.3763, scale=16.0))
