"""Partitions that use the partitioners of Flower Datasets."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any

import numpy as np

from ...core.validation import needs
from .split import ClientSplit


@dataclass(frozen=True)
class FromFlower:
    """A Flower Datasets partitioner as a partition; `Dataset.partition` and `from_hf` create it automatically.

    The partitioner defines the seed and the number of clients. It receives a table of the labels, in the column
    that it divides by, but not the samples.

    Args:
        partitioner: A partitioner of `flwr_datasets`.

    Raises:
        ValueError: If it is not a partitioner.

    Example:
        >>> from flwr_datasets.partitioner import IidPartitioner
        >>> len(fm.datasets.load("digits").partition(IidPartitioner(num_partitions=10)))
        10
    """

    partitioner: Any
    sets_clients = True

    def __post_init__(self) -> None:
        if not is_flower(self.partitioner):
            raise ValueError(f"FromFlower: 'partitioner' must be one of flwr_datasets', got {self.partitioner!r}")

    @property
    def divides(self) -> str:
        """ "owner" for Flower's natural partitioners, which divide by a column of owners, else "label"."""
        return "owner" if "NaturalId" in type(self.partitioner).__name__ else "label"

    @property
    def dataset(self) -> Any:
        """The Hugging Face data set of the partitioner."""
        if self.partitioner._dataset is None:
            raise ValueError("Cannot use the partitioner because it has no data set; set its 'dataset' first")
        return self.partitioner.dataset

    def split(self, labels: np.ndarray, clients: int | None, seed: int) -> ClientSplit:
        """Divide the samples among clients; `seed` has no effect."""
        hf = needs("datasets", "datasets", "use Flower's partitioners")
        column = getattr(self.partitioner, "_partition_by", None) or "label"
        split = rows_of(self.partitioner, hf.Dataset.from_dict({column: labels}))
        if clients is not None and clients != len(split):
            raise ValueError(
                f"Cannot make {clients} clients because the partitioner makes {len(split)}; leave 'clients' out"
            )
        return split


_ROW = "fedmos row number"


def rows_of(partitioner: Any, table: Any) -> ClientSplit:
    """Return the split of a Hugging Face table by a partitioner.

    If the partitioner has divided this table already, the result is the same.
    """
    held, partitioner._dataset = partitioner._dataset, None  # Flower's setter refuses a second table
    try:
        worker = copy.deepcopy(partitioner)
    finally:
        partitioner._dataset = held
    if held is not table:
        _reset(worker)
    worker.dataset = table.add_column(_ROW, np.arange(len(table))).with_format("numpy")
    parts = []
    try:
        for i in range(worker.num_partitions):
            part = worker.load_partition(i)
            if _ROW not in part.column_names:
                raise ValueError(
                    f"Cannot use {type(worker).__name__} because it divides columns instead of samples; use another"
                )
            parts.append(np.asarray(part[_ROW][:], dtype=np.int64))
    except IndexError:
        raise ValueError(
            f"Cannot divide {len(table)} samples among {worker.num_partitions} clients with "
            f"{type(worker).__name__}; use fewer partitions"
        ) from None
    return ClientSplit.of(parts)


def _reset(partitioner: Any) -> None:
    """Clear everything that a partitioner has computed for another table."""
    for name, value in vars(partitioner).items():
        if name.startswith("_partition_id_to"):
            setattr(partitioner, name, {} if isinstance(value, dict) else False if isinstance(value, bool) else value)
    if isinstance(getattr(partitioner, "_rng", None), np.random.Generator):
        partitioner._rng = np.random.default_rng(seed=partitioner._seed)


def is_flower(scheme: object) -> bool:
    """Return whether it is a Flower partitioner, by its class: properties of the object itself trigger computations."""
    return all(hasattr(type(scheme), name) for name in ("load_partition", "num_partitions", "dataset"))
