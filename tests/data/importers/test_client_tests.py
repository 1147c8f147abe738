"""Test samples of clients from tables, folders and data sets of PyTorch."""

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import torch
from torch.utils.data import TensorDataset

import fedmos as fm


def frame(split=("train", "test", "train", "train", "test", "train")):
    return pd.DataFrame(
        {
            "user": ["b", "a", "a", "b", "b", "a"],
            "age": [1.0, 100.0, np.nan, 4.0, 5.0, 7.0],
            "kind": ["x", "x", "y", "x", "y", "y"],
            "label": ["no", "no", "yes", "yes", "no", "no"],
            "part": list(split),
        }
    )


FRAMES = {
    "pandas": lambda f: f,
    "pyarrow": pa.Table.from_pandas,
    "polars": lambda f: pytest.importorskip("polars").DataFrame(f.to_dict("list")),
}


@pytest.mark.parametrize("kind", FRAMES)
def test_a_column_says_which_rows_are_test_samples(kind):
    options = {"split_column": "part", "categorical": ["kind"], "missing": "mean"}
    source = FRAMES[kind](frame().fillna({"age": 3.0}))
    data = fm.FederatedData.from_frame(source, "user", "label", **options)
    assert data.names == ["a", "b"]
    assert data.encoding.features == ["age", "kind=x", "kind=y"]
    assert [data.client(i)[0][:, 0].tolist() for i in (0, 1)] == [[3.0, 7.0], [1.0, 4.0]]
    assert [x[:, 0].tolist() for x, _ in data.tests] == [[100.0], [5.0]]
    assert [y.tolist() for _, y in data.tests] == [[0], [0]]


def test_the_encoding_is_that_of_the_training_rows():
    data = fm.FederatedData.from_frame(frame(), "user", "label", ["age"], split_column="part", missing="mean")
    filled = float(np.mean([1.0, 4.0, 7.0]))  # without the 100 of a test row
    assert data.client("a")[0].flatten().tolist() == pytest.approx([filled, 7.0])


def test_truth_values_and_partitions_keep_the_order_of_the_rows():
    source = frame([False, True, False, False, True, False]).assign(age=range(6))
    parts = fm.partition.Fixed([[0, 1, 2], [3, 4, 5]])
    data = fm.FederatedData.from_frame(source, None, "label", ["age"], partition=parts, split_column="part")
    assert [x.flatten().tolist() for x, _ in data.tests] == [[1], [4]]
    assert [data.client(i)[0].flatten().tolist() for i in (0, 1)] == [[0, 2], [3, 5]]


@pytest.mark.parametrize(
    ("split", "sentence"),
    [
        (["train", "test", "valid", "train", "test", "train"], "'train' or 'test', or a truth value"),
        (["test"] * 6, "must have a row for training, got none"),
        (
            ["train", "test", "test", "train", "train", "test"],
            "every client must have a row for training, got none of 'a'",
        ),
    ],
)
def test_invalid_columns_get_a_sentence(split, sentence):
    with pytest.raises(ValueError, match="from_frame") as error:
        fm.FederatedData.from_frame(frame(split), "user", "label", ["age"], split_column="part", missing=0)
    assert sentence in str(error.value)
    with pytest.raises(ValueError, match="'split_column' must be one of"):
        fm.FederatedData.from_frame(frame(split), "user", "label", ["age"], split_column="parts")


def test_holdout_of_tables_and_csv_files(tmp_path):
    source = frame().drop(columns="part").fillna(0)
    source.to_csv(tmp_path / "rows.csv", index=False)
    for data in (
        fm.FederatedData.from_frame(source, "user", "label", ["age"], holdout=0.3),
        fm.FederatedData.from_csv(tmp_path / "rows.csv", "user", "label", ["age"], holdout=0.3),
    ):
        assert data.tests.sizes.tolist() == [1, 1]
        assert data.sizes.tolist() == [2, 2]
    frame().fillna(0).to_csv(tmp_path / "rows.csv", index=False)
    data = fm.FederatedData.from_csv(tmp_path / "rows.csv", "user", "label", ["age"], split="part")
    assert data.tests.sizes.tolist() == [1, 1]


def test_folders_of_images(tmp_path):
    image = pytest.importorskip("PIL.Image")
    for path in ("a/train/cat/1", "a/train/dog/2", "a/test/cat/3", "b/train/cat/4"):
        file = tmp_path / f"{path}.png"
        file.parent.mkdir(parents=True, exist_ok=True)
        image.new("L", (2, 2), int(file.stem)).save(file)
    data = fm.FederatedData.from_folder(tmp_path)
    assert data.names == ["a", "b"]
    assert [int(x.sum()) // 4 for x, _ in data.tests] == [3, 0]
    assert data.sizes.tolist() == [2, 1]
    (tmp_path / "b" / "valid" / "cat").mkdir(parents=True)
    image.new("L", (2, 2)).save(tmp_path / "b" / "valid" / "cat" / "5.png")
    with pytest.raises(ValueError, match="CLIENT/test/CLASS"):
        fm.FederatedData.from_folder(tmp_path)


def test_data_sets_of_pytorch():
    def of(n):
        return TensorDataset(torch.full((n, 2), float(n)), torch.zeros(n, dtype=torch.int64))

    data = fm.FederatedData.from_datasets([of(3), of(4)], tests=[None, of(2)])
    assert data.tests.sizes.tolist() == [0, 2]
    data = fm.FederatedData.from_datasets({"a": of(3), "b": of(4)}, tests={"a": of(1)})
    assert data.tests.sizes.tolist() == [1, 0]
    with pytest.raises(ValueError, match="'tests' must be a list"):
        fm.FederatedData.from_datasets([of(3)], tests=of(2))
