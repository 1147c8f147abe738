"""Hugging Face data sets and Flower's partitioners."""

import numpy as np
import pytest
import torch

import fedmos as fm
from fedmos import FederatedData
from helpers.own_data import LABELS, PARTITIONERS, ROWS, N, clients, pictures

pd = pytest.importorskip("pandas")
Image = pytest.importorskip("PIL.Image")


def numbers(data: FederatedData) -> list[list[int]]:
    return [data.client(i)[0].flatten().to(torch.int64).tolist() for i in range(len(data))]


def test_hugging_face_data_by_client(numbered):
    kept = numbered.column_names, numbered.format, numbered._fingerprint
    data = FederatedData.from_hf(numbered, client_column="user")
    assert data.names == sorted(set(numbered["user"]))
    assert data.labels == ["zebra", "ant", "mole"]
    assert data.x.dtype == torch.int64
    for i, name in enumerate(data.names):
        assert numbers(data)[i] == [n for n, user in enumerate(numbered["user"]) if user == name]
        assert data.client(i)[1].tolist() == LABELS[numbers(data)[i]].tolist()
    assert (numbered.column_names, numbered.format, numbered._fingerprint) == kept


def test_hugging_face_data_in_any_state(numbered):
    """Shuffled, selected, or with a format of its own: the rows it shows are the rows we take."""
    for view in (numbered.shuffle(seed=1), numbered.select(range(50, 10, -1)), numbered.with_format("torch")):
        data = FederatedData.from_hf(view, client_column="user")
        assert data.x.flatten().tolist() == [float(v) for v in view["number"]]
        assert data.y.tolist() == [int(v) for v in view["label"]]


def test_hugging_face_splits(hf, numbered):
    both = hf.DatasetDict(train=numbered, validation=numbered, test=numbered.select(range(5)))
    data = FederatedData.from_hf(both, client_column="user")
    assert data.test[0].flatten().tolist() == [0, 1, 2, 3, 4]
    assert data.test[1].tolist() == LABELS[:5].tolist()
    other = FederatedData.from_hf(both, client_column="user", test=numbered.select([7]))
    assert other.test[0].tolist() == [[7]]
    assert FederatedData.from_hf(hf.DatasetDict(train=numbered), client_column="user").test is None
    with pytest.raises(ValueError, match="from_hf: 'dataset' must have a split 'train', got validation"):
        FederatedData.from_hf(hf.DatasetDict(validation=numbered), client_column="user")


def test_hugging_face_images(hf):
    pixels = pictures(8, 6, 5, 3)
    features = hf.Features({"image": hf.Image(), "label": hf.ClassLabel(names=["b", "a"]), "who": hf.Value("int32")})
    made = hf.Dataset.from_dict(
        {"image": [Image.fromarray(p) for p in pixels], "label": [0, 1] * 4, "who": [3, 3, 3, 10, 10, 10, 2, 2]},
        features=features,
    )
    data = FederatedData.from_hf(made, client_column="who")
    assert data.x.dtype == torch.uint8
    assert np.array_equal(data.x, np.moveaxis(pixels, -1, 1))
    assert data.names == ["2", "3", "10"]
    assert data.labels == ["b", "a"]
    assert data.sizes.tolist() == [2, 3, 3]


def test_hugging_face_words_and_lists(hf):
    made = hf.Dataset.from_dict({"text": [[1, 2], [3, 4], [5, 6]], "target": ["q", "p", "q"], "user": ["a", "b", "a"]})
    tested = hf.Dataset.from_dict({"text": [[1, 2]], "target": ["q"]})
    data = FederatedData.from_hf(made, client_column="user", test=tested)
    assert clients(data) == [([[1, 2], [5, 6]], [1, 1]), ([[3, 4]], [0])]
    assert data.labels == ["p", "q"]
    assert data.test[1].tolist() == [1]
    features = hf.Features({"x": hf.Array2D((2, 3), "float32"), "y": hf.Value("float32"), "user": hf.Value("string")})
    x = np.arange(12, dtype=np.float32).reshape(2, 2, 3)
    data = FederatedData.from_hf(
        hf.Dataset.from_dict({"x": x.tolist(), "y": [0.5, 1.5], "user": ["a", "b"]}, features=features),
        client_column="user",
    )
    assert np.array_equal(data.x, x)
    assert data.y.dtype == torch.float32


def test_objects_that_are_not_hugging_face_data_are_refused(hf, numbered):
    for thing in (numbered.to_iterable_dataset(), pd.DataFrame(ROWS), [1], None):
        with pytest.raises(ValueError, match=r"from_hf: 'dataset' must be a datasets\.Dataset or DatasetDict"):
            FederatedData.from_hf(thing, client_column="user")
    with pytest.raises(ValueError, match=r"from_hf: 'client_column' must be one of .* \(did you mean 'user'\?\)"):
        FederatedData.from_hf(numbered, client_column="usr")
    with pytest.raises(ValueError, match="from_hf: the table must have rows, got none"):
        FederatedData.from_hf(numbered.select([]), client_column="user")
    with pytest.raises(ValueError, match="from_hf: 'partition' must be given"):
        FederatedData.from_hf(numbered, input_columns="number")


every_partitioner = pytest.mark.parametrize("name", PARTITIONERS)


def rows_by_flower(partitioner, table) -> list[list[int]]:
    partitioner.dataset = table
    return [list(partitioner.load_partition(i)["number"]) for i in range(partitioner.num_partitions)]


@every_partitioner
def test_partitioners_divide_hugging_face_data_as_flower_does(flower, numbered, name):
    expected = rows_by_flower(PARTITIONERS[name](flower), numbered)
    partitioner = PARTITIONERS[name](flower)
    columns = {} if name == "NaturalId" else {"input_columns": "number"}  # it says itself which column is the client
    kept = numbered._fingerprint
    for _ in range(2):
        data = FederatedData.from_hf(numbered, partition=partitioner, **columns)
        assert numbers(data) == expected
        assert data.x.shape == (N, 1)
        assert [y.tolist() for y in (data.client(i)[1] for i in range(len(data)))] == [
            LABELS[part].tolist() for part in expected
        ]
        assert data.labels == ["zebra", "ant", "mole"]
        assert not partitioner.is_dataset_assigned()
    if name == "NaturalId":
        users = np.array(numbered["user"])
        assert data.names is None or data.names == [users[part[0]] for part in expected]
    assert numbered._fingerprint == kept
    assert rows_by_flower(partitioner, numbered) == expected


@every_partitioner
def test_partitioners_that_have_their_data(flower, numbered, name):
    expected = rows_by_flower(PARTITIONERS[name](flower), numbered)
    partitioner = PARTITIONERS[name](flower)
    partitioner.dataset = numbered
    columns = {} if name == "NaturalId" else {"input_columns": "number"}
    for _ in range(2):
        data = FederatedData.from_flower(partitioner, test=numbered.select([3]), **columns)
        assert numbers(data) == expected
        assert data.test[0].tolist() == [[3]]
        assert partitioner.dataset is numbered
    assert [list(partitioner.load_partition(i)["number"]) for i in range(len(expected))] == expected
    assert numbers(FederatedData.from_flower(partitioner, **columns)) == expected


@every_partitioner
def test_partitioners_without_data_are_refused_in_words(flower, name):
    with pytest.raises(
        ValueError, match="Cannot use the partitioner because it has no data set; set its 'dataset' first"
    ):
        FederatedData.from_flower(PARTITIONERS[name](flower))


def test_objects_that_are_not_partitioners_are_refused(hf):
    for thing in (5, None, "Iid", fm.partition.IID()):
        with pytest.raises(ValueError, match="'partitioner' must be one of flwr_datasets'"):
            FederatedData.from_flower(thing)


def test_partitioners_divide_tables_and_folders_too(flower, album):
    partitioner = flower.IidPartitioner(num_partitions=3)
    frame = pd.DataFrame({"label": np.arange(9) % 2, "number": np.arange(9)})
    data = FederatedData.from_frame(frame, partition=partitioner)
    assert numbers(data) == [[0, 1, 2], [3, 4, 5], [6, 7, 8]]
    assert len(FederatedData.from_folder(album[0], partition=partitioner)) == 3
