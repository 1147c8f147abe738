"""The user's own tables: the same federation from every kind."""

import numpy as np
import pytest
import torch

from fedmos import FederatedData
from helpers.own_data import COLUMNS, KINDS, ROWS, clients, every_kind, rows

pa = pytest.importorskip("pyarrow")
pd = pytest.importorskip("pandas")
pl = pytest.importorskip("polars")


@every_kind
def test_every_kind_of_table_gives_the_same_federation(kind, tmp_path):
    data = FederatedData.from_frame(KINDS[kind](ROWS, tmp_path), **COLUMNS)
    assert data.names == ["a", "b", "c"]
    assert data.labels == ["cat", "dog", "emu"]
    assert data.x.dtype == torch.float32
    assert data.y.dtype == torch.int64
    assert clients(data) == [
        ([[1.5, 20, 0], [4.5, 50, 0]], [0, 1]),
        ([[0.5, 10, 1], [2.5, 30, 1], [5.5, 60, 0]], [1, 2, 0]),
        ([[3.5, 40, 1]], [1]),
    ]
    assert data.importance.tolist() == pytest.approx([2 / 6, 3 / 6, 1 / 6])
    assert data.test is None


@every_kind
def test_columns_are_chosen_by_name_and_in_the_order_named(kind, tmp_path):
    table = KINDS[kind](ROWS, tmp_path)
    data = FederatedData.from_frame(table, **COLUMNS, input_columns=["age", "height"])
    assert clients(data)[2] == ([[40.0, 3.5]], [1])
    one = FederatedData.from_frame(table, **COLUMNS, input_columns="age")
    assert one.x.shape == (6, 1)
    assert one.x.dtype == torch.int64
    usual = FederatedData.from_frame(table, client_column="user", input_columns="age")  # "label" is the obvious target
    assert usual.labels == ["cat", "dog", "emu"]
    real = FederatedData.from_frame(
        table, client_column="user", target_column="height", input_columns=("age", "member")
    )
    assert real.y.dtype == torch.float32
    assert real.labels is None
    assert clients(real)[0] == ([[20, 0], [50, 0]], [1.5, 4.5])


def test_the_users_frames_stay_as_they_are(tmp_path):
    frame, polar, arrow = (
        KINDS[kind](ROWS | {"label": [1, 0, 2, 1, 1, 0]}, tmp_path) for kind in ("pandas", "polars", "pyarrow")
    )
    kept = frame.copy(deep=True), polar.clone(), pa.table(arrow.to_pydict())
    for table in (frame, polar, polar.lazy(), arrow):
        for inputs in (None, "height"):
            data = FederatedData.from_frame(table, **COLUMNS, input_columns=inputs, test=table)
            data.x.add_(1)  # whoever writes into the federation does not write into the frame
            data.y.add_(1)
            data.test[0].zero_()
            data.test[1].zero_()
    pd.testing.assert_frame_equal(frame, kept[0])
    assert polar.equals(kept[1])
    assert arrow.equals(kept[2])


@pytest.mark.parametrize(
    ("user", "label"),
    [
        (pd.Categorical(ROWS["user"], categories=["z", "c", "b", "a"]), pd.Categorical(ROWS["label"])),
        (pd.array(ROWS["user"], dtype="string"), pd.array(ROWS["label"], dtype="string")),
        (pd.Series(ROWS["user"], dtype=object), pd.Series(ROWS["label"], dtype=object)),
        (
            pd.Series(ROWS["user"], dtype=pd.ArrowDtype(pa.string())),
            pd.Series(ROWS["label"], dtype=pd.ArrowDtype(pa.string())),
        ),
        (np.array(ROWS["user"]), np.array(ROWS["label"])),
    ],
    ids=["categories", "strings", "objects", "arrow strings", "numpy strings"],
)
def test_words_in_pandas(user, label):
    data = FederatedData.from_frame(pd.DataFrame(rows(user=user, label=label)), **COLUMNS)
    assert data.names == ["a", "b", "c"]
    assert data.labels == ["cat", "dog", "emu"]
    assert clients(data)[0] == ([[1.5, 20, 0], [4.5, 50, 0]], [0, 1])


@pytest.mark.parametrize(
    ("user", "label"),
    [
        (pl.Series(ROWS["user"], dtype=pl.Categorical), pl.Series(ROWS["label"], dtype=pl.Categorical)),
        (
            pl.Series(ROWS["user"], dtype=pl.Enum(["c", "b", "a"])),
            pl.Series(ROWS["label"], dtype=pl.Enum(["emu", "dog", "cat"])),
        ),
    ],
    ids=["categories", "enumerations"],
)
def test_words_in_polars(user, label):
    data = FederatedData.from_frame(pl.DataFrame(rows(user=user, label=label)), **COLUMNS)
    assert data.names == ["a", "b", "c"]
    assert clients(data)[1][1] == [data.labels.index(word) for word in ("dog", "emu", "cat")]


def test_words_in_dictionaries_and_chunks():
    coded = pa.table(
        rows(user=pa.array(ROWS["user"]).dictionary_encode(), label=pa.array(ROWS["label"]).dictionary_encode())
    )
    data = FederatedData.from_frame(pa.concat_tables([coded.slice(0, 2), coded.slice(2)]), **COLUMNS)
    assert data.names == ["a", "b", "c"]
    assert clients(data)[1] == ([[0.5, 10, 1], [2.5, 30, 1], [5.5, 60, 0]], [1, 2, 0])


def test_numbers_as_clients_are_sorted_as_numbers():
    data = FederatedData.from_frame(pd.DataFrame(rows(user=[10, 2, 10, -5, 2, 10**15])), **COLUMNS)
    assert data.names == ["-5", "2", "10", str(10**15)]
    assert data.sizes.tolist() == [1, 2, 2, 1]


def test_class_numbers_stay_the_users():
    for label in (
        [3, 7, 3, 0, 7, 7],
        np.array([3, 7, 3, 0, 7, 7], np.uint8),
        pd.array([3, 7, 3, 0, 7, 7], dtype="Int64"),
    ):
        data = FederatedData.from_frame(pd.DataFrame(rows(label=label)), **COLUMNS)
        assert data.labels is None
        assert clients(data)[1][1] == [3, 3, 7]
    yes = FederatedData.from_frame(pd.DataFrame(rows(label=ROWS["member"])), **COLUMNS)
    assert clients(yes)[1][1] == [1, 1, 0]


@pytest.mark.parametrize(
    "label",
    [pd.Categorical([3, 7, 3, 0, 7, 7]), pd.Series([3, 7, 3, 0, 7, 7], dtype=object)],
    ids=["categories", "objects"],
)
def test_integers_of_other_types_are_classes(label):
    """Whether they keep their numbers or are coded 0, 1, 2 under the names 0, 3, 7, they are labels."""
    data = FederatedData.from_frame(pd.DataFrame(rows(label=label)), **COLUMNS)
    told = clients(data)[1][1]
    assert (told if data.labels is None else [int(data.labels[c]) for c in told]) == [3, 3, 7]
