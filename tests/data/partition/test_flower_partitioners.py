"""Flower's partitioners."""

import numpy as np
import pytest

from fedmos.data.partition import (
    FromFlower,
)
from helpers.partitions import VALUES, dataset, labels


def dirichlet(p, column):
    return p.DirichletPartitioner(num_partitions=5, partition_by=column, alpha=0.5, min_partition_size=1, seed=3)


FLOWER = {
    "Iid": lambda p: p.IidPartitioner(num_partitions=5),
    "Dirichlet": lambda p: dirichlet(p, "label"),
    "Pathological": lambda p: p.PathologicalPartitioner(5, partition_by="label", num_classes_per_partition=2, seed=3),
    "Shard": lambda p: p.ShardPartitioner(5, partition_by="label", num_shards_per_partition=2, seed=3),
    "Size": lambda p: p.SizePartitioner([100, 150, 50]),
    "Linear": lambda p: p.LinearPartitioner(num_partitions=4),
    "Square": lambda p: p.SquarePartitioner(num_partitions=4),
    "Exponential": lambda p: p.ExponentialPartitioner(num_partitions=4),
    "NaturalId": lambda p: p.NaturalIdPartitioner(partition_by="user"),
    "GroupedNaturalId": lambda p: p.GroupedNaturalIdPartitioner(partition_by="user", group_size=2),
}


@pytest.fixture
def flower():
    pytest.importorskip("flwr_datasets")
    import flwr_datasets.partitioner as partitioner

    return partitioner


def rows_by_flower(partitioner, y) -> list[list[int]]:
    """What Flower itself makes of the labels."""
    import datasets

    table = datasets.Dataset.from_dict({"label": y, "user": y, "number": np.arange(len(y))})
    partitioner.dataset = table
    return [list(partitioner.load_partition(i)["number"]) for i in range(partitioner.num_partitions)]


@pytest.mark.filterwarnings("ignore::FutureWarning")  # pyarrow's, about Flower's sorting
@pytest.mark.parametrize("name", FLOWER)
def test_flowers_partitioners_give_flowers_rows(flower, name):
    y = labels([100, 100, 100], VALUES)
    expected = rows_by_flower(FLOWER[name](flower), y)
    partitioner = FLOWER[name](flower)
    for _ in range(2):  # and the partitioner can be used again
        data = dataset(y).partition(partitioner)
        assert [data.client(i)[0].tolist() for i in range(len(data))] == expected
        assert not partitioner.is_dataset_assigned()
    assert [part.tolist() for part in FromFlower(partitioner).split(y, None, 7)] == expected
    with pytest.raises(ValueError, match=f"because the partitioner makes {len(expected)}; leave 'clients' out"):
        dataset(y).partition(partitioner, clients=len(expected) + 1)
    assert rows_by_flower(partitioner, y) == expected


def test_a_partitioner_that_was_used_elsewhere_starts_anew(flower):
    y = labels([100, 100, 100])
    expected = rows_by_flower(FLOWER["Dirichlet"](flower), y)
    used = FLOWER["Dirichlet"](flower)
    elsewhere = rows_by_flower(used, labels([40, 30, 50], seed=9))
    data = dataset(y).partition(used)
    assert [data.client(i)[0].tolist() for i in range(len(data))] == expected
    assert [list(used.load_partition(i)["number"]) for i in range(5)] == elsewhere


def test_the_label_column_may_have_any_name(flower):
    y = labels([100, 100, 100])
    expected = rows_by_flower(FLOWER["Dirichlet"](flower), y)
    for column in ("target", "row", "fedmos_row"):
        assert [part.tolist() for part in FromFlower(dirichlet(flower, column)).split(y, None, 0)] == expected


def test_partitioners_that_divide_columns_are_refused_in_words(flower):
    with pytest.raises(ValueError, match="because it divides columns instead of samples"):
        dataset(labels([10, 10])).partition(flower.VerticalEvenPartitioner(num_partitions=2))


def test_flower_partitioners_that_do_not_fit_are_refused_in_words(flower):
    made = dataset(labels([10, 10]))
    with pytest.raises(ValueError) as error:
        made.partition(flower.IidPartitioner(num_partitions=21))
    assert "21" in str(error.value)
    with pytest.raises(ValueError, match="'scheme' must be a partition"):
        made.partition(flower.IidPartitioner)
    with pytest.raises(ValueError, match="FromFlower: 'partitioner' must be one of flwr_datasets"):
        FromFlower(5)
