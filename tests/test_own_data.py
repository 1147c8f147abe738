"""The user's own data: tables, image folders, Hugging Face data sets and Flower's partitioners."""

import io
import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import fedmos as fm
from fedmos import FederatedData

pa = pytest.importorskip("pyarrow")
pd = pytest.importorskip("pandas")
pl = pytest.importorskip("polars")
Image = pytest.importorskip("PIL.Image")

ROWS = {
    "user": ["b", "a", "b", "c", "a", "b"],
    "height": [0.5, 1.5, 2.5, 3.5, 4.5, 5.5],
    "age": [10, 20, 30, 40, 50, 60],
    "member": [True, False, True, True, False, False],
    "label": ["dog", "cat", "emu", "dog", "dog", "cat"],
}
COLUMNS = {"client_column": "user", "target_column": "label"}


def parquet(rows, folder: Path) -> Path:
    import pyarrow.parquet

    path = folder / f"rows{len(list(folder.iterdir()))}.parquet"
    pyarrow.parquet.write_table(pa.table(rows), path)
    return path


KINDS: dict[str, Callable] = {
    "pandas": lambda rows, folder: pd.DataFrame(rows),
    "polars": lambda rows, folder: pl.DataFrame(rows),
    "lazy polars": lambda rows, folder: pl.DataFrame(rows).lazy(),
    "pyarrow": lambda rows, folder: pa.table(rows),
    "parquet": parquet,
    "parquet by name": lambda rows, folder: str(parquet(rows, folder)),
}
every_kind = pytest.mark.parametrize("kind", KINDS)


def clients(data: FederatedData) -> list[tuple[list, list]]:
    return [tuple(part.tolist() for part in data.client(i)) for i in range(len(data))]


def rows(**changes) -> dict:
    return ROWS | changes


# ---------------------------------------------------------------------------------------------- tables


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
    assert one.x.dtype == torch.float32
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
def test_numbers_in_disguise_are_classes(label):
    """Whether they keep their numbers or are coded 0, 1, 2 under the names 0, 3, 7, they are labels."""
    data = FederatedData.from_frame(pd.DataFrame(rows(label=label)), **COLUMNS)
    told = clients(data)[1][1]
    assert (told if data.labels is None else [int(data.labels[c]) for c in told]) == [3, 3, 7]


@pytest.mark.parametrize("kind", ["pandas", "polars", "pyarrow", "parquet"])
@pytest.mark.parametrize(
    ("column", "values"),
    [
        ("user", ["b", None, "b", "c", "a", "b"]),
        ("user", [1, None, 1, 2, 2, 1]),
        ("user", [1.5, None, 1.5, 2.0, 2.0, 1.5]),
        ("label", ["dog", "cat", None, "dog", "dog", "cat"]),
        ("label", [1, 0, None, 1, 1, 0]),
        ("label", [True, False, None, True, True, False]),
        ("label", [0.5, None, 1.0, 1.0, 1.0, 1.0]),
        ("age", [10, None, 30, 40, 50, 60]),
        ("height", [0.5, float("nan"), 2.5, 3.5, 4.5, 5.5]),
        ("height", [0.5, float("inf"), 2.5, 3.5, 4.5, 5.5]),
        ("member", [True, None, True, True, False, False]),
    ],
)
def test_missing_values_are_refused_by_column(kind, column, values, tmp_path):
    with pytest.raises(ValueError, match=f"from_frame: column '{column}'"):
        FederatedData.from_frame(KINDS[kind](rows(**{column: values}), tmp_path), **COLUMNS)


@pytest.mark.parametrize(
    ("column", "values"),
    [
        ("user", pd.array(["b", None, "b", "c", "a", "b"], dtype="string")),
        ("user", pd.Categorical(["b", None, "b", "c", "a", "b"])),
        ("user", pd.array([1, None, 1, 2, 2, 1], dtype="Int64")),
        ("user", pd.to_datetime(["2020-01-01", None, "2020-01-01", "2020-01-02", "2020-01-02", "2020-01-02"])),
        ("label", pd.array(["dog", "cat", None, "dog", "dog", "cat"], dtype="string")),
        ("label", pd.Categorical(["dog", "cat", None, "dog", "dog", "cat"])),
        ("label", pd.array([1, 0, None, 1, 1, 0], dtype="Int64")),
        ("label", pd.Series([None, "cat", "cat", "dog", "dog", "cat"], dtype=object)),
        ("age", pd.array([10, None, 30, 40, 50, 60], dtype="Int32")),
        ("height", pd.array([0.5, None, 2.5, 3.5, 4.5, 5.5], dtype="Float64")),
    ],
)
def test_missing_values_of_pandas_are_refused_by_column(column, values):
    with pytest.raises(ValueError, match=f"from_frame: column '{column}'"):
        FederatedData.from_frame(pd.DataFrame(rows(**{column: values})), **COLUMNS)


@pytest.mark.parametrize("column", ["user", "label"])
def test_words_and_numbers_in_one_column_are_refused_or_told_apart(column):
    frame = pd.DataFrame(rows(**{column: pd.Series(["b", 1, "b", 2, 1, "b"], dtype=object)}))
    try:
        data = FederatedData.from_frame(frame, **COLUMNS)
    except ValueError as error:
        assert f"column '{column}'" in str(error)  # noqa: PT017
    else:
        assert sorted(data.names if column == "user" else data.labels) == ["1", "2", "b"]


@pytest.mark.parametrize("column", ["height", "label"])
def test_numbers_too_large_for_float32_are_refused_by_column(column):
    frame = pd.DataFrame(rows(**{column: [0.5, 1e39, 2.5, 3.5, 4.5, 5.5]}))
    with pytest.raises(ValueError, match=f"from_frame: column '{column}'"):
        FederatedData.from_frame(frame, **COLUMNS)


def test_lists_too_large_for_float32_are_refused_by_column():
    frame = pd.DataFrame(rows(signal=[[0.5, 1e39]] * 6))
    with pytest.raises(ValueError, match="from_frame: column 'signal'"):
        FederatedData.from_frame(frame, **COLUMNS, input_columns="signal")


@every_kind
@pytest.mark.parametrize(
    ("columns", "sentence"),
    [
        (
            {"client_column": "usr"},
            "'client_column' must be one of user, height, age, member, label, got 'usr' (did you mean 'user'?)",
        ),
        (
            {"target_column": "lable"},
            "'target_column' must be one of user, height, age, member, label, got 'lable' (did you mean 'label'?)",
        ),
        (
            {"input_columns": "hight"},
            "'input_columns' must be one of user, height, age, member, label, got 'hight' (did you mean 'height'?)",
        ),
        ({"input_columns": ["age", "hight"]}, "got 'hight' (did you mean 'height'?)"),
        ({"input_columns": ["age", "user"]}, "column 'user' must hold numbers to be an input among others"),
        ({"input_columns": "user"}, "column 'user' must hold numbers, lists or images to be an input"),
    ],
)
def test_wrong_columns_get_a_sentence(kind, columns, sentence, tmp_path):
    with pytest.raises(ValueError) as error:
        FederatedData.from_frame(KINDS[kind](ROWS, tmp_path), **(COLUMNS | columns))
    assert sentence in str(error.value)
    assert str(error.value).startswith("from_frame: ")


@every_kind
def test_tables_that_lack_something_get_a_sentence(kind, tmp_path):
    def table(*names, n=6):
        return KINDS[kind]({name: ROWS[name][:n] for name in names}, tmp_path)

    with pytest.raises(ValueError, match="from_frame: the table must have rows, got none"):
        FederatedData.from_frame(table(*ROWS, n=0), **COLUMNS)
    with pytest.raises(ValueError, match="from_frame: there must be a column of inputs beside user, label"):
        FederatedData.from_frame(table("user", "label"), **COLUMNS)
    with pytest.raises(ValueError, match="from_frame: 'target_column' must be given: one of user, age"):
        FederatedData.from_frame(table("user", "age"), client_column="user")
    with pytest.raises(ValueError, match="from_frame: 'partition' must be given"):
        FederatedData.from_frame(table("age", "label"))
    with pytest.raises(ValueError, match="'clients' must be an integer ≥ 1, got None"):
        FederatedData.from_frame(table("age", "label"), partition=fm.partition.IID())


@pytest.mark.parametrize("thing", [[1, 2], {"label": [1]}, np.zeros((3, 2)), None, 5, pd.Series([1, 2])])
def test_what_is_no_table_is_refused(thing):
    with pytest.raises(ValueError, match="from_frame: 'frame' must be a pandas or polars frame, a pyarrow table"):
        FederatedData.from_frame(thing, **COLUMNS)
    if thing is not None:
        with pytest.raises(ValueError, match="from_frame: 'test' must be a pandas or polars frame, a pyarrow table"):
            FederatedData.from_frame(pd.DataFrame(ROWS), **COLUMNS, test=thing)


def test_parquet_files_that_are_none(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"nowhere\.parquet because it does not exist"):
        FederatedData.from_frame(tmp_path / "nowhere.parquet", **COLUMNS)
    (tmp_path / "bad.parquet").write_bytes(b"PAR1 but no more")
    with pytest.raises(ValueError, match=r"bad\.parquet because it is not a valid parquet file"):
        FederatedData.from_frame(tmp_path / "bad.parquet", **COLUMNS)
    whole = parquet(ROWS, tmp_path).read_bytes()
    (tmp_path / "cut.parquet").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(ValueError, match=r"cut\.parquet because it is not a valid parquet file"):
        FederatedData.from_frame(str(tmp_path / "cut.parquet"), **COLUMNS)


def test_columns_may_have_numbers_for_names():
    """As every `pd.DataFrame(array)` has."""
    frame = pd.DataFrame({0: [1.0, 2.0, 3.0], 1: [4.0, 5.0, 6.0], "user": ["a", "b", "a"], "label": [0, 1, 1]})
    data = FederatedData.from_frame(frame, **COLUMNS)
    assert clients(data) == [([[1, 4], [3, 6]], [0, 1]), ([[2, 5]], [1])]


def test_a_frame_made_of_an_array():
    frame = pd.DataFrame(np.array([[0, 5, 1], [1, 6, 0], [0, 7, 1]]))
    try:
        data = FederatedData.from_frame(frame, client_column=0, target_column=2)
    except ValueError as error:
        assert "column" in str(error)  # noqa: PT017
    else:
        assert clients(data) == [([[5], [7]], [1, 1]), ([[6]], [0])]


@every_kind
def test_lists_are_stacked(kind, tmp_path):
    tokens = [[1, 2, 3], [4, 5, 6], [7, 8, 9], [0, 1, 0], [2, 2, 2], [9, 9, 9]]
    data = FederatedData.from_frame(KINDS[kind](rows(text=tokens), tmp_path), **COLUMNS, input_columns="text")
    assert data.x.dtype == torch.int64
    assert clients(data)[0][0] == [tokens[1], tokens[4]]
    real = [[v + 0.5 for v in row] for row in tokens]
    data = FederatedData.from_frame(KINDS[kind](rows(text=real), tmp_path), **COLUMNS, input_columns="text")
    assert data.x.dtype == torch.float32
    assert clients(data)[0][0] == [real[1], real[4]]
    nested = [[row, row[::-1]] for row in tokens]
    data = FederatedData.from_frame(KINDS[kind](rows(text=nested), tmp_path), **COLUMNS, input_columns="text")
    assert clients(data)[0][0] == [nested[1], nested[4]]
    targets = FederatedData.from_frame(
        KINDS[kind](rows(text=real), tmp_path), **(COLUMNS | {"target_column": "text"}), input_columns="age"
    )
    assert targets.y.dtype == torch.float32
    assert clients(targets)[2][1] == [real[3]]


def test_polars_arrays_and_numpy_rows_are_stacked():
    tokens = np.arange(12).reshape(6, 2)
    for column in (pl.Series(tokens, dtype=pl.Array(pl.Int64, 2)), pl.Series(tokens.tolist(), dtype=pl.List(pl.Int64))):
        data = FederatedData.from_frame(pl.DataFrame(rows(text=column)), **COLUMNS, input_columns="text")
        assert data.x.tolist() == tokens.tolist()
    data = FederatedData.from_frame(
        pd.DataFrame(rows(text=list(tokens.astype(np.uint8)))), **COLUMNS, input_columns="text"
    )
    assert data.x.dtype == torch.uint8
    assert data.x.tolist() == tokens.tolist()


@pytest.mark.parametrize(
    "column",
    [
        [[1, 2], [0.5, 1.5], [3, 4], [1, 1], [1, 1], [1, 1]],
        [np.array([1, 2], np.uint8), np.array([300, -1]), *[np.array([0, 0])] * 4],
        [np.array([1, 2], np.int32), np.array([2**40, 1]), *[np.array([0, 0])] * 4],
        [np.array([True, False]), np.array([7, 8]), *[np.array([0, 0])] * 4],
    ],
    ids=["whole numbers first", "bytes first", "short numbers first", "truths first"],
)
def test_the_first_row_does_not_narrow_the_others(column):
    frame = pd.DataFrame(rows(text=pd.Series(column, dtype=object)))
    try:
        data = FederatedData.from_frame(frame, **COLUMNS, input_columns="text")
    except ValueError as error:
        assert "column 'text'" in str(error)  # noqa: PT017
    else:
        assert data.x.tolist() == [np.asarray(row).tolist() for row in column]


@pytest.mark.parametrize(
    ("column", "sentence"),
    [
        (
            [[1, 2], [1], [1, 2], [1, 2], [1, 2], [1, 2]],
            "column 'text' must hold equal shapes, got (2,) and, in row 1, (1,)",
        ),
        ([[1, 2], None, [1, 2], [1, 2], [1, 2], [1, 2]], "column 'text', row 1: a list of numbers is wanted, got None"),
        ([[1, 2], [1, None], [1, 2], [1, 2], [1, 2], [1, 2]], "column 'text', row 1: "),
        (
            [[1.0, 2.0], [1.0, float("nan")], [1.0, 2.0], [1.0, 2.0], [1.0, 2.0], [1.0, 2.0]],
            "column 'text', row 1: numbers must be finite",
        ),
        ([["a"], ["b"], ["c"], ["d"], ["e"], ["f"]], "column 'text', row 0: a list of numbers is wanted"),
        ([[[1], [2, 3]]] * 6, "column 'text', row 0: "),
        ([None] * 6, "column 'text' must hold numbers, lists or images"),
    ],
    ids=["ragged", "no list", "a gap", "nan", "words", "ragged inside", "nothing"],
)
def test_lists_that_cannot_be_stacked_get_a_sentence(column, sentence):
    with pytest.raises(ValueError) as error:
        FederatedData.from_frame(
            pd.DataFrame(rows(text=pd.Series(column, dtype=object))), **COLUMNS, input_columns="text"
        )
    assert sentence in str(error.value)


def png(pixels: np.ndarray) -> bytes:
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, format="PNG")
    return file.getvalue()


def pictures(n: int, *shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (n, *shape), dtype=np.uint8)


@every_kind
@pytest.mark.parametrize(
    "wrap", [lambda b: b, lambda b: {"bytes": b, "path": "1.png"}], ids=["bytes", "as Hugging Face"]
)
@pytest.mark.parametrize("shape", [(4, 5), (4, 5, 3)], ids=["grey", "colour"])
def test_images_keep_their_pixels(kind, shape, wrap, tmp_path):
    pixels = pictures(6, *shape)
    expected = pixels[:, None] if len(shape) == 2 else np.moveaxis(pixels, -1, 1)
    column = [wrap(png(p)) for p in pixels]
    table = KINDS[kind]({"image": column, "user": ROWS["user"], "label": ROWS["label"]}, tmp_path)
    data = FederatedData.from_frame(table, **COLUMNS)
    assert data.x.dtype == torch.uint8
    assert np.array_equal(data.x, expected)
    assert np.array_equal(data.client(0)[0], expected[[1, 4]])


def test_images_that_are_none_get_a_sentence(tmp_path):
    good = png(pictures(1, 4, 5)[0])
    (tmp_path / "secret.png").write_bytes(good)

    def load(column):
        return FederatedData.from_frame(pd.DataFrame(rows(image=column)), **COLUMNS, input_columns="image")

    with pytest.raises(ValueError, match="column 'image', row 1: not a valid image"):
        load([good, b"no", *[good] * 4])
    with pytest.raises(ValueError, match="column 'image', row 2: not a valid image"):
        load([good, good, good[:-30], *[good] * 3])
    with pytest.raises(ValueError, match=r"must hold equal shapes, got \(1, 4, 5\) and, in row 1, \(1, 4, 6\)"):
        load([good, png(pictures(1, 4, 6)[0]), *[good] * 4])
    with pytest.raises(ValueError, match="column 'image', row 3: an image must come as bytes"):
        load([good, good, good, None, good, good])
    with pytest.raises(ValueError, match="column 'image', row 0: an image must come as bytes"):
        load([{"bytes": None, "path": str(tmp_path / "secret.png")}] * 6)  # never opens a path it finds in a table


# ------------------------------------------------------------------------------------ tables for testing


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


# --------------------------------------------------------------------------------------------- folders


def save(root: Path, name: str, pixels: np.ndarray) -> None:
    (root / name).parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels).save(root / name)


@pytest.fixture
def album(tmp_path) -> tuple[Path, np.ndarray]:
    """Clients ann and bob, classes cat and größe 2, two grey images each but one; and the pixels in that order."""
    pixels = pictures(7, 4, 5)
    names = [f"{c}/{k}/{i}.png" for c in ("ann", "bob") for k in ("cat", "größe 2") for i in range(2)][:7]
    for name, p in reversed(list(zip(names, pixels, strict=True))):
        save(tmp_path / "album", name, p)
    return tmp_path / "album", pixels


def test_folders_of_clients(album):
    root, pixels = album
    for given in (root, str(root)):
        data = FederatedData.from_folder(given)
        assert data.names == ["ann", "bob"]
        assert data.labels == ["cat", "größe 2"]
        assert data.x.dtype == torch.uint8
        assert np.array_equal(data.x, pixels[:, None])
        assert np.array_equal(data.client(1)[0], pixels[4:, None])
        assert data.client(0)[1].tolist() == [0, 0, 1, 1]
        assert data.client(1)[1].tolist() == [0, 0, 1]
        assert data.test is None
    shown = data.inputs(data.x)
    assert shown.numpy() == pytest.approx(pixels[:, None] / 127.5 - 1, abs=1e-5)


def test_folders_of_classes(tmp_path):
    pixels = pictures(6, 3, 3, 3)
    for i, p in enumerate(pixels):
        save(tmp_path, f"{'xy'[i % 2]}/{i}.png", p)
    data = FederatedData.from_folder(tmp_path, fm.partition.Dirichlet(alpha=0), clients=2)
    assert data.names is None
    assert data.labels == ["x", "y"]
    seen = {int(y[0]): x for x, y in (data.client(i) for i in range(2))}
    for label in (0, 1):
        order = np.moveaxis(pixels[label::2], -1, 1)
        assert sorted(x.tolist() for x in seen[label]) == sorted(order.tolist())
    with pytest.raises(ValueError, match="from_folder: 'partition' must be given"):
        FederatedData.from_folder(tmp_path)


def test_folders_for_training_and_testing(tmp_path):
    pixels = pictures(9, 3, 4)
    for i, p in enumerate(pixels[:6]):
        save(tmp_path, f"train/u{i % 2}/{'xyz'[i % 3]}/{i}.png", p)
    for i, p in enumerate(pixels[6:8]):
        save(tmp_path, f"test/{'zy'[i]}/{i}.png", p)
    save(tmp_path, "elsewhere/q/1.png", pixels[8])  # neither
    data = FederatedData.from_folder(tmp_path)
    assert data.names == ["u0", "u1"]
    assert data.labels == ["x", "y", "z"]
    assert data.sizes.tolist() == [3, 3]
    assert data.test[1].tolist() == [1, 2]
    assert np.array_equal(data.test[0], pixels[[7, 6], None])
    save(tmp_path, "test/new/1.png", pixels[8])
    with pytest.raises(ValueError, match="test images have a class that training images lack: new"):
        FederatedData.from_folder(tmp_path)


def test_a_stray_image_beside_the_test_classes_is_refused(tmp_path):
    for name in ("train/x/1.png", "train/y/1.png", "test/x/1.png", "test/stray.png"):
        save(tmp_path, name, pictures(1, 3, 3)[0])
    with pytest.raises(ValueError, match="Cannot read"):
        FederatedData.from_folder(tmp_path, fm.partition.IID(), clients=2)


def test_grey_images_among_coloured_ones_have_three_equal_channels(tmp_path):
    grey, colour = pictures(1, 4, 4)[0], pictures(1, 4, 4, 3)[0]
    save(tmp_path, "a/x/1.png", grey)
    save(tmp_path, "a/x/2.png", colour)
    data = FederatedData.from_folder(tmp_path)
    assert data.x.shape == (2, 3, 4, 4)
    assert np.array_equal(data.x[0], np.stack([grey] * 3))
    assert np.array_equal(data.x[1], np.moveaxis(colour, -1, 0))


def test_images_of_many_kinds(tmp_path):
    """Truth values, transparency, JPEG, a suffix in capitals: as Pillow reads them."""
    colour = pictures(1, 8, 8, 3)[0]
    mask = Image.fromarray(pictures(1, 8, 8)[0]).convert("1")
    (tmp_path / "a" / "x").mkdir(parents=True)
    mask.save(tmp_path / "a/x/1.png")
    Image.fromarray(np.dstack([colour, np.full((8, 8), 255, np.uint8)])).save(tmp_path / "a/x/2.png")
    Image.fromarray(colour).save(tmp_path / "a/x/3.JPEG")
    Image.fromarray(colour).save(tmp_path / "a/x/4.BMP")
    data = FederatedData.from_folder(tmp_path)
    assert np.array_equal(data.x[0], np.stack([np.asarray(mask.convert("L"))] * 3))
    assert np.array_equal(data.x[1], np.moveaxis(colour, -1, 0))
    with Image.open(tmp_path / "a/x/3.JPEG") as image:
        assert np.array_equal(data.x[2], np.moveaxis(np.asarray(image.convert("RGB")), -1, 0))
    assert np.array_equal(data.x[3], data.x[1])


def test_palettes_with_transparency_are_sound_images(tmp_path):
    colour = np.zeros((4, 4, 4), np.uint8)
    colour[:2] = (200, 10, 30, 255)
    colour[2:] = (0, 90, 60, 128)
    (tmp_path / "a" / "x").mkdir(parents=True)
    image = Image.fromarray(colour).quantize(4)
    image.save(tmp_path / "a/x/1.png")
    data = FederatedData.from_folder(tmp_path)
    assert data.x.shape == (1, 3, 4, 4)
    assert data.x[0, :, 0, 0].tolist() == [200, 10, 30]


def test_deep_grey_images_are_scaled_or_refused(tmp_path):
    """Sixteen bits become eight; they are not cut off at 255."""
    deep = np.array([[0, 255, 256, 1000], [20_000, 40_000, 65_535, 30_000]], np.uint16)
    (tmp_path / "a" / "x").mkdir(parents=True)
    Image.fromarray(deep).save(tmp_path / "a/x/1.png")
    try:
        data = FederatedData.from_folder(tmp_path)
    except ValueError as error:
        assert "1.png" in str(error)  # noqa: PT017
    else:
        assert np.abs(data.x[0, 0].numpy() - deep / 257).max() <= 1


@pytest.mark.parametrize("size", [6, (6, 6), [6, 6], np.int64(6), (np.int64(3), 7)])
def test_images_are_resized(album, size):
    root, pixels = album
    save(root, "ann/cat/9.png", pictures(1, 9, 2)[0])
    height, width = (size, size) if isinstance(size, int | np.integer) else size
    data = FederatedData.from_folder(root, size=size)
    assert data.x.shape == (8, 1, height, width)
    expected = Image.fromarray(pixels[0]).resize((int(width), int(height)), Image.Resampling.BILINEAR)
    assert np.array_equal(data.x[0, 0], np.asarray(expected))


@pytest.mark.parametrize("size", [0, -1, 2.5, "8", (8,), (8, 8, 8), (0, 8), True])
def test_bad_sizes_get_a_sentence(album, size):
    with pytest.raises(ValueError, match=r"from_folder: 'size' must be an integer ≥ 1 or \(height, width\)"):
        FederatedData.from_folder(album[0], size=size)


def test_images_of_unequal_size_are_refused_by_name(album):
    save(album[0], "bob/cat/9.png", pictures(1, 4, 6)[0])
    with pytest.raises(ValueError, match=r"0\.png is 4×5, .*bob.cat.9\.png 4×6\); give 'size'"):
        FederatedData.from_folder(album[0])


def test_hidden_files_and_other_files_are_passed_over(album):
    root, pixels = album
    (root / "ann" / "cat" / ".0.png").write_bytes(b"no image")
    (root / "ann" / "cat" / "notes.txt").write_text("no image")
    (root / "ann" / "cat" / "Thumbs.db").write_bytes(b"no image")
    (root / "README.md").write_text("no image")
    (root / ".git" / "x").mkdir(parents=True)
    (root / ".git" / "x" / "1.png").write_bytes(b"no image")
    (root / "ann" / ".cache").mkdir()
    (root / "ann" / ".cache" / "1.png").write_bytes(b"no image")
    (root / "carl" / "cat").mkdir(parents=True)  # a client without images is none
    data = FederatedData.from_folder(root)
    assert np.array_equal(data.x, pixels[:, None])
    assert data.names == ["ann", "bob"]


@pytest.mark.parametrize(
    "harm", [lambda b: b"no", lambda b: b"", lambda b: b[:-40], lambda b: b[:40] + b"\0" * 30 + b[70:]]
)
def test_corrupt_images_are_refused_by_name(album, harm):
    path = album[0] / "bob" / "cat" / "1.png"
    path.write_bytes(harm(path.read_bytes()))
    with pytest.raises(ValueError, match=r"Cannot read .*bob.cat.1\.png because it is not a valid image"):
        FederatedData.from_folder(album[0])


def test_links_must_stay_inside(album, tmp_path):
    root, pixels = album
    save(tmp_path, "outside/cat/1.png", pictures(1, 4, 5, seed=1)[0])
    inside = root / "ann" / "cat" / "5.png"
    inside.symlink_to(root / "bob" / "cat" / "0.png")
    assert np.array_equal(FederatedData.from_folder(root).x[2], pixels[4, None])
    inside.unlink()
    inside.symlink_to(tmp_path / "outside" / "cat" / "1.png")
    with pytest.raises(ValueError, match=r"ann.cat.5\.png because it is a link that leads out of"):
        FederatedData.from_folder(root)
    inside.unlink()
    inside.symlink_to(os.path.join("..", "..", "..", "outside", "cat", "1.png"))
    with pytest.raises(ValueError, match=r"ann.cat.5\.png because it is a link that leads out of"):
        FederatedData.from_folder(root)


@pytest.mark.parametrize("where", ["carl", "ann/dog", "train"])
def test_folders_that_are_links_must_stay_inside(album, tmp_path, where):
    """Neither read nor left out in silence: somebody who links to a folder expects it to count."""
    root, _ = album
    save(tmp_path, "outside/cat/1.png", pictures(1, 4, 5, seed=1)[0])
    save(tmp_path, "outside/1.png", pictures(1, 4, 5, seed=1)[0])
    (root / where).symlink_to(tmp_path / "outside")
    with pytest.raises(ValueError, match="because it is a link that leads out of"):
        FederatedData.from_folder(root)


def test_folders_that_are_none_get_a_sentence(album, tmp_path):
    with pytest.raises(FileNotFoundError, match="nowhere because it is not a folder"):
        FederatedData.from_folder(tmp_path / "nowhere")
    with pytest.raises(FileNotFoundError, match=r"0\.png because it is not a folder"):
        FederatedData.from_folder(album[0] / "ann" / "cat" / "0.png")
    (tmp_path / "empty" / "x").mkdir(parents=True)
    with pytest.raises(ValueError, match="CLASS/image or in CLIENT/CLASS/image; there are none"):
        FederatedData.from_folder(tmp_path / "empty")
    save(album[0], "loose.png", pictures(1, 4, 5)[0])
    with pytest.raises(ValueError, match=r"CLASS/image or in CLIENT/CLASS/image; folders are \[0, 2\] deep"):
        FederatedData.from_folder(album[0])


# --------------------------------------------------------------------------- Hugging Face and Flower


@pytest.fixture(scope="module")
def hf():
    datasets = pytest.importorskip("datasets")
    datasets.disable_progress_bars()
    return datasets


@pytest.fixture(scope="module")
def flower(hf):
    pytest.importorskip("flwr_datasets")
    import flwr_datasets.partitioner as partitioner

    return partitioner


N = 120
LABELS = np.random.default_rng(5).integers(0, 3, N)


@pytest.fixture
def numbered(hf):
    """Rows whose only input is their own number."""
    features = hf.Features(
        {
            "number": hf.Value("int64"),
            "label": hf.ClassLabel(names=["zebra", "ant", "mole"]),
            "user": hf.Value("string"),
        }
    )
    users = [f"u{i}" for i in np.random.default_rng(6).integers(0, 7, N)]
    return hf.Dataset.from_dict({"number": list(range(N)), "label": LABELS.tolist(), "user": users}, features=features)


def numbers(data: FederatedData) -> list[list[int]]:
    return [data.client(i)[0].flatten().to(torch.int64).tolist() for i in range(len(data))]


def test_hugging_face_data_by_client(numbered):
    kept = numbered.column_names, numbered.format, numbered._fingerprint
    data = FederatedData.from_hf(numbered, client_column="user")
    assert data.names == sorted(set(numbered["user"]))
    assert data.labels == ["zebra", "ant", "mole"]
    assert data.x.dtype == torch.float32
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


def test_what_is_no_hugging_face_data_is_refused(hf, numbered):
    for thing in (numbered.to_iterable_dataset(), pd.DataFrame(ROWS), [1], None):
        with pytest.raises(ValueError, match=r"from_hf: 'dataset' must be a datasets\.Dataset or DatasetDict"):
            FederatedData.from_hf(thing, client_column="user")
    with pytest.raises(ValueError, match=r"from_hf: 'client_column' must be one of .* \(did you mean 'user'\?\)"):
        FederatedData.from_hf(numbered, client_column="usr")
    with pytest.raises(ValueError, match="from_hf: the table must have rows, got none"):
        FederatedData.from_hf(numbered.select([]), client_column="user")
    with pytest.raises(ValueError, match="from_hf: 'partition' must be given"):
        FederatedData.from_hf(numbered, input_columns="number")


PARTITIONERS = {
    "Iid": lambda p: p.IidPartitioner(num_partitions=4),
    "Dirichlet": lambda p: p.DirichletPartitioner(
        num_partitions=4, partition_by="label", alpha=0.5, min_partition_size=1, seed=3
    ),
    "Pathological": lambda p: p.PathologicalPartitioner(4, partition_by="label", num_classes_per_partition=2, seed=3),
    "Linear": lambda p: p.LinearPartitioner(num_partitions=4),
    "NaturalId": lambda p: p.NaturalIdPartitioner(partition_by="user"),
}
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


def test_what_is_no_partitioner_is_refused(hf):
    for thing in (5, None, "Iid", fm.partition.IID()):
        with pytest.raises(ValueError, match="'partitioner' must be one of flwr_datasets'"):
            FederatedData.from_flower(thing)


def test_partitioners_divide_tables_and_folders_too(flower, album):
    partitioner = flower.IidPartitioner(num_partitions=3)
    frame = pd.DataFrame({"label": np.arange(9) % 2, "number": np.arange(9)})
    data = FederatedData.from_frame(frame, partition=partitioner)
    assert numbers(data) == [[0, 1, 2], [3, 4, 5], [6, 7, 8]]
    assert len(FederatedData.from_folder(album[0], partition=partitioner)) == 3


# -------------------------------------------------------------------------------------- one round of each


class Tokens(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.out = nn.Embedding(10, 4), nn.Linear(4, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.out(self.embedding(x).mean(1))


def play(data: FederatedData, model: nn.Module, **more) -> fm.Record:
    before = data.x.clone(), data.y.clone()
    algorithm, selection = fm.FedMoS(lr=0.01), fm.Uniform(m=min(2, len(data)))
    records = [
        fm.run(
            model=model,
            data=data,
            algorithm=algorithm,
            selection=selection,
            rounds=1,
            local_steps=2,
            batch_size=2,
            engine=engine,
            **more,
        ).history[-1]
        for engine in ("loop", "batched")
    ]
    assert torch.equal(data.x, before[0])
    assert torch.equal(data.y, before[1])
    assert np.isfinite(records[0].train_loss)
    assert records[0].train_loss == pytest.approx(records[1].train_loss, rel=1e-4)
    return records[0]


@every_kind
def test_a_round_on_a_table(kind, tmp_path):
    table = KINDS[kind](rows(age=[0.1, 0.2, 0.3, 0.4, 0.5, 0.6]), tmp_path)
    data = FederatedData.from_frame(table, **COLUMNS, test=table)
    record = play(data, fm.models.logistic(features=3, classes=3))
    assert 0 <= record.accuracy <= 1
    real = FederatedData.from_frame(
        table, client_column="user", target_column="height", input_columns=["age", "member"], test=table
    )
    record = play(real, nn.Sequential(nn.Linear(2, 1), nn.Flatten(0)), loss="mse")
    assert np.isfinite(record.test_loss)
    tokens = FederatedData.from_frame(
        KINDS[kind](rows(text=[[1, 2], [3, 4], [5, 6], [7, 8], [9, 0], [1, 1]]), tmp_path),
        **COLUMNS,
        input_columns="text",
    )
    play(tokens, Tokens())


def test_a_round_on_a_folder(album):
    play(FederatedData.from_folder(album[0]), fm.models.logistic(features=20, classes=2))


def images_in_a_table() -> FederatedData:
    frame = pd.DataFrame({"image": [png(p) for p in pictures(6, 4, 5)], "user": ROWS["user"], "label": ROWS["label"]})
    return FederatedData.from_frame(frame, **COLUMNS, test=frame)


def images_of_hugging_face() -> FederatedData:
    hf = pytest.importorskip("datasets")
    made = hf.Dataset.from_dict(
        {"image": [Image.fromarray(p) for p in pictures(6, 4, 5)], "user": ROWS["user"], "label": ROWS["label"]},
        features=hf.Features({"image": hf.Image(), "user": hf.Value("string"), "label": hf.Value("string")}),
    )
    return FederatedData.from_hf(made, client_column="user", test=made)


@pytest.mark.parametrize("make", [images_in_a_table, images_of_hugging_face])
def test_a_round_on_other_images(make):
    play(make().declare(normalize=fm.Normalize(mean=0.5, std=0.5)), fm.models.logistic(features=20, classes=3))


@pytest.mark.parametrize("make", [images_in_a_table, images_of_hugging_face])
def test_a_round_on_other_images_needs_no_more_than_one_on_a_folder(make):
    """Images from a folder are ready for a model; the same images from elsewhere should be as well."""
    play(make(), fm.models.logistic(features=20, classes=3))


def test_a_round_on_hugging_face_data(flower, numbered):
    small = numbered.map(lambda row: {"number": row["number"] % 5})
    play(FederatedData.from_hf(small, client_column="user", test=small), fm.models.logistic(features=1, classes=3))
    partitioner = PARTITIONERS["Dirichlet"](flower)
    partitioner.dataset = small
    data = FederatedData.from_flower(partitioner, input_columns="number")
    play(data, fm.models.logistic(features=1, classes=3))
