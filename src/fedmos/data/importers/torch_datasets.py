"""Data sets of PyTorch: `torch.utils.data.Dataset`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from torch.utils.data import DataLoader, IterableDataset
from torch.utils.data import Dataset as TorchDataset

from ...core.formatting import format_value, one_line
from ..arrays import plain

_TARGETS = ("label", "labels", "target", "y")
_CALLER = "from_datasets"


def clients_of(datasets: Any, target: str | None) -> list[tuple[Any, Any]] | dict[str, tuple[Any, Any]]:
    """Read one data set per client, or a dictionary of data sets by the client's name."""
    if isinstance(datasets, Mapping):
        return {str(name): samples_of(d, f"client {name!r}", target) for name, d in datasets.items()}
    if isinstance(datasets, TorchDataset) or not isinstance(datasets, Sequence):
        got = type(datasets).__name__
        raise ValueError(f"{_CALLER}: 'datasets' must be a list with a data set per client, got {got}")
    return [samples_of(d, f"client {i}", target) for i, d in enumerate(datasets)]


def tests_of(tests: Any, target: str | None) -> list[Any] | dict[str, Any]:
    """Read a data set of test samples per client, None for a client without any; or a dictionary of them by name."""
    if isinstance(tests, Mapping):
        return {str(name): _tests(d, f"the test set of client {name!r}", target) for name, d in tests.items()}
    if isinstance(tests, TorchDataset) or not isinstance(tests, Sequence):
        raise ValueError(f"{_CALLER}: 'tests' must be a list with a data set per client, got {type(tests).__name__}")
    return [_tests(d, f"the test set of client {i}", target) for i, d in enumerate(tests)]


def _tests(dataset: Any, owner: str, target: str | None) -> tuple[Any, Any] | None:
    empty = dataset is None or (hasattr(dataset, "__len__") and not len(dataset))
    return None if empty else samples_of(dataset, owner, target)


def samples_of(dataset: Any, owner: str, target: str | None) -> tuple[Any, Any]:
    """Read all items of a data set once, in order, and return inputs and targets.

    Raises:
        ValueError: If the data set is not map-style, or an item is not a pair (x, y) or a dictionary with a target.
    """
    if isinstance(dataset, IterableDataset) or not (hasattr(dataset, "__getitem__") and hasattr(dataset, "__len__")):
        got = type(dataset).__name__ + ("; use its .dataset" if isinstance(dataset, DataLoader) else "")
        raise ValueError(f"{_CALLER}: {owner} must be a map-style data set with __getitem__ and __len__, got {got}")
    if not len(dataset):
        raise ValueError(f"{_CALLER}: {owner} must have at least one sample, got none")
    pairs = []
    for i in range(len(dataset)):
        try:
            item = dataset[i]
        except Exception as error:  # whatever the user's data set raises
            raise ValueError(f"Cannot read sample {i} of {owner} because {one_line(str(error))}") from error
        pairs.append(_pair(item, f"sample {i} of {owner}", target))
    return _stack([x for x, _ in pairs], owner), _stack([y for _, y in pairs], owner)


def _pair(item: Any, owner: str, target: str | None) -> tuple[Any, Any]:
    """Divide an item into inputs and target."""
    if isinstance(item, Mapping):
        name = target if target is not None else next((name for name in _TARGETS if name in item), None)
        if name is None or name not in item:
            listed = ", ".join(map(str, item))
            raise ValueError(f"{_CALLER}: 'target' must be one of {listed}, the keys of {owner}, got {target!r}")
        return {key: v for key, v in item.items() if key != name}, item[name]
    if not isinstance(item, tuple | list) or len(item) != 2:
        raise ValueError(
            f"{_CALLER}: {owner} must be a pair (x, y) or a dictionary, got {format_value(type(item).__name__)}"
        )
    return item[0], item[1]


def _stack(items: list[Any], owner: str) -> Any:
    """Return items of one shape as an array, others as a list, and dictionaries as a dictionary of these."""
    if isinstance(items[0], Mapping):
        for i, item in enumerate(items):
            if not isinstance(item, Mapping) or set(item) != set(items[0]):
                raise ValueError(f"{_CALLER}: sample {i} of {owner} must have the inputs of sample 0")
        return {str(name): _stack([item[name] for item in items], owner) for name in items[0]}
    if hasattr(items[0], "getbands"):
        raise ValueError(f"{_CALLER}: {owner} must hold tensors or arrays, got images; use a transform")
    arrays = [plain(item) for item in items]
    if len({(a.shape, a.dtype.kind == "f") for a in arrays}) > 1:
        return arrays
    return np.stack(arrays)
