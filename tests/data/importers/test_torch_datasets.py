"""Federations from data sets of PyTorch."""

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, Subset, TensorDataset

import fedmos as fm
from fedmos import FederatedData


class Items(Dataset):
    def __init__(self, items) -> None:
        self.items, self.read = items, []

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, i):
        self.read.append(i)
        if isinstance(self.items[i], Exception):
            raise self.items[i]
        return self.items[i]


def test_pairs_of_tensors():
    x, y = torch.randn(10, 3), torch.arange(10) % 2
    whole = TensorDataset(x, y)
    data = FederatedData.from_datasets([Subset(whole, range(4)), Subset(whole, range(4, 10))], test=whole)
    same = FederatedData.from_arrays([(x[:4], y[:4]), (x[4:], y[4:])], test=(x, y))
    assert data.fingerprint() == same.fingerprint()
    assert torch.equal(data.test[0], x)
    options = {"rounds": 2, "local_steps": 1, "batch_size": 2}
    model = fm.models.logistic(3, 2)
    runs = [fm.run(model, d, fm.FedAvg(lr=0.1), fm.Full(), **options).params for d in (data, same)]
    assert torch.equal(*runs)


def test_items_are_read_once_and_in_order():
    items = Items([(np.full((1, 2, 2), i, np.uint8), i) for i in range(5)])
    data = FederatedData.from_datasets({"north": items, "south": items})
    assert items.read == [*range(5), *range(5)]
    assert data.names == ["north", "south"]
    assert data.x.dtype == torch.uint8
    assert data.x.shape == (10, 1, 2, 2)
    assert data.client("south")[1].tolist() == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("key", ["labels", "outcome"])
def test_dictionaries_of_inputs(key):
    items = [{"tokens": torch.tensor([i, i + 1]), "mask": [True, i > 1], key: i % 2} for i in range(4)]
    data = FederatedData.from_datasets([Items(items)], target=None if key == "labels" else key)
    x, y = data.client(0)
    assert x["tokens"].tolist() == [[0, 1], [1, 2], [2, 3], [3, 4]]
    assert x["mask"].dtype == torch.bool
    assert y.tolist() == [0, 1, 0, 1]
    nested = FederatedData.from_datasets([Items([({"a": 1.5, "b": [i]}, i) for i in range(3)])])
    assert nested.client(0)[0]["b"].tolist() == [[0], [1], [2]]


def test_sequences_of_unequal_length():
    items = [Items([(torch.arange(n), 0) for n in (3, 1)]), Items([(torch.arange(2), 1)])]
    data = FederatedData.from_datasets(items, padding=-1, mask="mask")
    assert data.client(0)[0]["x"].tolist() == [[0, 1, 2], [0, -1, -1]]
    assert data.client(1)[0]["mask"].tolist() == [[True, True, False]]
    with pytest.raises(ValueError, match="x of client 0 must be an array of numbers, got sequences of length 1 to 3"):
        FederatedData.from_datasets(items)


class Stream(IterableDataset):
    def __iter__(self):
        return iter([(1, 2)])


@pytest.mark.parametrize(
    ("datasets", "sentence"),
    [
        ([DataLoader([1])], "__getitem__ and __len__, got DataLoader; use its .dataset"),
        ([Stream()], "client 0 must be a map-style data set with __getitem__ and __len__, got Stream"),
        (Items([(1, 2)]), "'datasets' must be a list with a data set per client, got Items"),
        ({"north": Items([])}, "client 'north' must have at least one sample, got none"),
        ([Items([1, 2])], "sample 0 of client 0 must be a pair (x, y) or a dictionary, got 'int'"),
        ([Items([{"a": 1, "b": 2}])], "'target' must be one of a, b, the keys of sample 0 of client 0, got None"),
        (
            [Items([([1.0], 0), OSError("the disk is gone")])],
            "Cannot read sample 1 of client 0 because the disk is gone",
        ),
        ([Items([([1.0], "cat")])], "y of client 0 must be an array of numbers"),
        ([Items([({"a": 1}, 0), ({"b": 1}, 0)])], "sample 1 of client 0 must have the inputs of sample 0"),
        ([], "'clients' must hold at least one client, got none"),
    ],
)
def test_what_cannot_be_read_gets_a_sentence(datasets, sentence):
    with pytest.raises(ValueError) as error:
        FederatedData.from_datasets(datasets)
    assert sentence in str(error.value)


def test_images_need_a_transform():
    image = pytest.importorskip("PIL.Image").new("L", (4, 4))
    with pytest.raises(ValueError, match="client 0 must hold tensors or arrays, got images; use a transform"):
        FederatedData.from_datasets([Items([(image, 0)])])
