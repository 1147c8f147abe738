"""Hugging Face data sets."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any

from ..dataset import Dataset
from ..partition import Fixed, Partition
from ..partition.flower import is_flower, rows_of
from .columns import choose, dataset_from
from .fit import EncodingOptions

_CALLER = "from_hf"


def dataset_from_hf(
    dataset: Any,
    client: Hashable | None,
    target: Hashable | None,
    inputs: Hashable | Sequence[Hashable] | None,
    test: Any,
    partition: Partition | None,
    options: EncodingOptions,
    split: Hashable | None = None,
) -> tuple[Dataset, Partition | None]:
    """Read a Hugging Face data set; see `FederatedData.from_hf`.

    Returns:
        The data set and the partition; a Flower partitioner has been applied and is returned as `Fixed`.
    """
    if isinstance(dataset, dict):  # a DatasetDict
        if "train" not in dataset:
            raise ValueError(f"{_CALLER}: 'dataset' must have a split 'train', got {', '.join(dataset) or 'none'}")
        test = dataset.get("test") if test is None else test
        dataset = dataset["train"]
    if not hasattr(dataset, "features") or not hasattr(dataset, "with_format") or not hasattr(dataset, "__len__"):
        raise ValueError(
            f"{_CALLER}: 'dataset' must be a datasets.Dataset or DatasetDict, got {type(dataset).__name__}"
        )
    scheme = partition
    if is_flower(partition):
        scheme = Fixed(rows_of(partition, dataset))
        used = getattr(partition, "_partition_by", None)
        if inputs is None and used not in (None, client, target) and used in dataset.column_names:
            dataset = dataset.remove_columns(used)  # it identifies the client and is not an input
    columns = choose(_CALLER, dataset, client, target, inputs, split)
    tested = None if test is None else test.with_format("arrow")[:]
    names = getattr(dataset.features[columns.target], "names", None)
    made = dataset_from(_CALLER, "hf", dataset.with_format("arrow")[:], tested, columns, names, options)
    return made, scheme
