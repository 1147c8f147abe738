"""A bridge to Flower Datasets: its partitioners divide our data sets."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any

import numpy as np

from ...validate import needs
from .split import Split


@dataclass(frozen=True)
class FromFlower:
    """A Flower Datasets partitioner as a partition; `Dataset.partition` and `from_hf` wrap one by themselves.

    The partitioner brings its own seed and number of clients. It is shown a table of the labels, in the column
    that it divides by, and never the samples.
    """

    partitioner: Any
    sets_clients = True

    def __post_init__(self) -> None:
        if not is_flower(self.partitioner):
            raise ValueError(f"FromFlower: 'partitioner' must be one of flwr_datasets', got {self.partitioner!r}")

    @property
    def divides(self) -> str:
        """Flower's natural partitioners divide by a column of owners."""
        return "owner" if "NaturalId" in type(self.partitioner).__name__ else "label"

    @property
    def dataset(self) -> Any:
        """The Hugging Face data set that the partitioner was given."""
        if not self.partitioner.is_dataset_assigned():
            raise ValueError("Cannot use the partitioner because it has no data set; set its 'dataset' first")
        return self.partitioner.dataset

    def split(self, labels: np.ndarray, clients: int | None, seed: int) -> Split:
        """`seed` has no part in it."""
        hf = needs("datasets", "datasets", "use Flower's partitioners")
        column = getattr(self.partitioner, "_partition_by", None) or "label"
        split = rows_of(self.partitioner, hf.Dataset.from_dict({column: labels, "row": np.arange(len(labels))}), "row")
        if clients is not None and clients != len(split):
            raise ValueError(
                f"Cannot make {clients} clients because the partitioner makes {len(split)}; leave 'clients' out"
            )
        return split


def rows_of(partitioner: Any, table: Any, row: str) -> Split:
    """What a partitioner makes of a Hugging Face table, one of whose columns numbers its rows."""
    held, partitioner._dataset = partitioner._dataset, None  # Flower's setter refuses a second table
    original, partitioner = partitioner, copy.deepcopy(partitioner)
    original._dataset = held
    partitioner.dataset = table.with_format("numpy")
    parts = (partitioner.load_partition(i) for i in range(partitioner.num_partitions))
    try:
        return Split.of(part[row][:] for part in parts)
    except KeyError:
        raise ValueError(
            f"Cannot use {type(partitioner).__name__} because it divides columns instead of samples; use another"
        ) from None


def is_flower(scheme: object) -> bool:
    """Whether it looks like a Flower partitioner."""
    return not isinstance(scheme, type) and all(hasattr(scheme, name) for name in ("load_partition", "num_partitions"))
