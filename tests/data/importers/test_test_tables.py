"""Tables for testing, and tables divided by a partition."""

import numpy as np
import pytest
import torch

import fedmos as fm
from fedmos import FederatedData
from helpers.own_data import COLUMNS, KINDS, ROWS, clients, every_kind, rows

pd = pytest.importorskip("pandas")


@every_kind
def test_the_test_table_is_coded_like_the_other(kind, tmp_path):
    test = {
        "label": ["emu", "emu", "dog"],
        "extra": [1, 2, 3],
        "member": [False] * 3,
        "age": [1, 2, 3],
        "height": [0.25] * 3,
    }
    for other in (kind, "polars"):
        data = FederatedData.from_frame(KINDS[kind](ROWS, tmp_path), **COLUMNS, test=KINDS[other](test, tmp_path))
        x, y = data.test
        assert x.dtype == torch.float32
        assert x.tolist() == [[0.25, 1, 0], [0.25, 2, 0], [0.25, 3, 0]]
        assert y.dtype == torch.int64
        assert y.tolist() == [2, 2, 1]
        assert data.labels == ["cat", "dog", "emu"]


@pytest.mark.parametrize(
    ("test", "sentence"),
    [
        (
            rows(label=["cat", "yak", "cat", "cat", "cat", "cat"]),
            "test targets must be among the training targets, got 'yak'",
        ),
        ({k: v for k, v in ROWS.items() if k != "age"}, "'age'"),
        ({k: v for k, v in ROWS.items() if k != "label"}, "'label'"),
        (rows(age=[1, None, 3, 4, 5, 6]), "column 'age' must hold finite numbers"),
        (rows(label=["cat", None, "cat", "cat", "cat", "cat"]), "test"),
        ({k: [] for k in ROWS}, "rows"),
    ],
    ids=["unknown class", "no input", "no target", "gap in input", "gap in target", "empty"],
)
def test_test_tables_that_do_not_fit_get_a_sentence(test, sentence):
    with pytest.raises(ValueError, match="from_frame") as error:
        FederatedData.from_frame(pd.DataFrame(ROWS), **COLUMNS, test=pd.DataFrame(test))
    assert sentence in str(error.value)


@pytest.mark.parametrize(
    ("train", "test"),
    [
        ([0, 1, 2, 0, 1, 2], [2.0, 1.0, 0.0, 0.0, 1.0, 2.0]),
        ([0, 1, 2, 0, 1, 2], [0.5, 1.5, 0.0, 0.0, 1.0, 2.0]),
        ([0, 1, 2, 0, 1, 2], ["1", "2", "1", "1", "2", "1"]),
        ([0.5, 1.5, 2.0, 0.0, 1.0, 2.0], [2, 1, 0, 0, 1, 2]),
        ([0.5, 1.5, 2.0, 0.0, 1.0, 2.0], ["1", "2", "1", "1", "2", "1"]),
    ],
    ids=["classes, whole floats", "classes, floats", "classes, words", "floats, whole numbers", "floats, words"],
)
def test_targets_for_testing_mean_what_those_for_training_mean(train, test):
    """Class 1 of the training data is class 1 of the test data, or there is an error; and real targets stay real."""
    frame, tested = pd.DataFrame(rows(label=train)), pd.DataFrame(rows(label=test))
    try:
        data = FederatedData.from_frame(frame, **COLUMNS, test=tested)
    except ValueError as error:
        assert "test" in str(error) or "label" in str(error)  # noqa: PT017
    else:
        assert data.test[1].dtype == data.y.dtype
        assert data.test[1].tolist() == [float(v) for v in test]


def test_tables_can_be_divided_by_a_partition():
    frame = pd.DataFrame({"label": ["x", "y"] * 30, "a": np.arange(60)})
    data = FederatedData.from_frame(frame, partition=fm.partition.ByClass(classes=1, size=5), clients=6, seed=3)
    assert data.sizes.tolist() == [5] * 6
    assert data.names is None
    assert data.labels == ["x", "y"]
    for x, y in clients(data):
        assert len({*y}) == 1
        assert all(int(a[0]) % 2 == label for a, label in zip(x, y, strict=True))
    same, other = (
        FederatedData.from_frame(frame, partition=fm.partition.IID(), clients=6, seed=seed).index for seed in (1, 2)
    )
    assert not torch.equal(same, other)
    few = FederatedData.from_frame(pd.DataFrame(ROWS), **COLUMNS, partition=fm.partition.Natural(least=2))
    assert few.names == ["a", "b"]
