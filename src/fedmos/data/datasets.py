"""Data sets: arrays in memory, ready to be partitioned."""

from __future__ import annotations

import os
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np

from ..rng import Purpose, generator
from ..validate import suggest
from .dataset import Dataset
from .federated import Normalize
from .synthetic import Quadratic, quadratic, synthetic

__all__ = ["Dataset", "Quadratic", "load", "names", "quadratic", "synthetic"]


_NORMALIZE = {
    "mnist": Normalize(mean=0.1307, std=0.3081),
    "fmnist": Normalize(mean=0.2860, std=0.3530),
    "cifar10": Normalize(mean=0.5, std=0.5),
}


def load(name: str, root: str | os.PathLike[str] | None = None) -> Dataset:
    """A data set by name: "digits" (comes with scikit-learn), "mnist", "fmnist" or "cifar10".

    The last three are read from NAME.npz with x_train, y_train, x_test and y_test, in `root`,
    `$FEDMOS_DATA` or ~/.cache/fedmos.
    """
    if name not in names():
        raise ValueError(f"load: 'name' must be one of {', '.join(names())}, got {name!r}{suggest(name, names())}")
    return _BUILT_IN[name]() if name in _BUILT_IN else _from_npz(name, root)


def names() -> list[str]:
    return [*_BUILT_IN, *_NORMALIZE]


def _digits() -> Dataset:
    """1,797 handwritten digits of 8×8 pixels; one in five, drawn with a fixed seed, is for testing."""
    from sklearn.datasets import load_digits

    x, y = load_digits(return_X_y=True)
    x = x.astype(np.uint8).reshape(-1, 1, 8, 8)
    order = generator(0, Purpose.SPLIT).permutation(len(y))
    test, train = order[: len(y) // 5], order[len(y) // 5 :]
    return Dataset("digits", x[train], y[train], x[test], y[test], Normalize(mean=0.3053, std=0.3763, scale=16.0))


_BUILT_IN: dict[str, Callable[[], Dataset]] = {"digits": _digits}


def _from_npz(name: str, root: str | os.PathLike[str] | None) -> Dataset:
    folder = Path(root or os.environ.get("FEDMOS_DATA") or Path.home() / ".cache" / "fedmos")
    path = folder / f"{name}.npz"
    if not path.exists():
        raise FileNotFoundError(
            f"Cannot load {name!r} because {path} does not exist; put NAME.npz with x_train, y_train, x_test and "
            "y_test there, or name its folder in 'root' or $FEDMOS_DATA"
        )
    try:
        with path.open("rb") as raw, np.load(raw, allow_pickle=False) as file:
            x_train, y_train, x_test, y_test = (file[key] for key in ("x_train", "y_train", "x_test", "y_test"))
    except (KeyError, ValueError, OSError, zipfile.BadZipFile) as error:
        raise ValueError(f"Cannot load {path} because it is not a sound data set: {error}") from error
    train, test = (_checked(path, x, y) for x, y in ((x_train, y_train), (x_test, y_test)))
    return Dataset(name, *train, *test, _NORMALIZE[name])


def _checked(path: Path, x: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Images and labels in our layout, or what is wrong with them."""
    y = y.reshape(len(y), -1)[:, 0] if y.ndim == 2 and y.shape[1] == 1 else y
    problem = None
    if x.ndim not in (3, 4) or y.ndim != 1 or len(x) != len(y) or not len(x):
        problem = f"images of shape {x.shape} do not go with labels of shape {y.shape}"
    elif x.dtype.kind not in "uif" or y.dtype.kind not in "ui":
        problem = f"images are {x.dtype} and labels {y.dtype}"
    elif x.dtype.kind == "f" and not np.isfinite(x).all():
        problem = "images hold NaN or infinity"
    elif y.min() < 0:
        problem = f"labels must be ≥ 0, got {y.min()}"
    if problem is not None:
        raise ValueError(f"Cannot load {path} because it is not a sound data set: {problem}")
    return _images(x), y.astype(np.int64)


def _images(x: np.ndarray) -> np.ndarray:
    """(n, height, width[, channels]) as (n, channels, height, width)."""
    first = x.ndim == 4 and x.shape[1] in (1, 3) and x.shape[3] not in (1, 3)
    return np.ascontiguousarray(x if first else x[:, None] if x.ndim == 3 else np.moveaxis(x, -1, 1))
