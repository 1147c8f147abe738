"""Missing values, wrong columns, lists and images in tables."""

import numpy as np
import pytest
import torch

import fedmos as fm
from fedmos import FederatedData
from helpers.own_data import COLUMNS, KINDS, ROWS, clients, every_kind, parquet, pictures, png, rows

pd = pytest.importorskip("pandas")
pl = pytest.importorskip("polars")


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
def test_objects_that_are_not_tables_are_refused(thing):
    with pytest.raises(ValueError, match="from_frame: 'frame' must be a pandas or polars frame, a pyarrow table"):
        FederatedData.from_frame(thing, **COLUMNS)
    if thing is not None:
        with pytest.raises(ValueError, match="from_frame: 'test' must be a pandas or polars frame, a pyarrow table"):
            FederatedData.from_frame(pd.DataFrame(ROWS), **COLUMNS, test=thing)


def test_invalid_parquet_files_are_refused(tmp_path):
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
        (
            [[1, 2], None, [1, 2], [1, 2], [1, 2], [1, 2]],
            "column 'text', row 1: it must be a list of numbers, got None",
        ),
        ([[1, 2], [1, None], [1, 2], [1, 2], [1, 2], [1, 2]], "column 'text', row 1: "),
        (
            [[1.0, 2.0], [1.0, float("nan")], [1.0, 2.0], [1.0, 2.0], [1.0, 2.0], [1.0, 2.0]],
            "column 'text', row 1: numbers must be finite",
        ),
        ([["a"], ["b"], ["c"], ["d"], ["e"], ["f"]], "column 'text', row 0: it must be a list of numbers"),
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


def test_invalid_images_are_refused(tmp_path):
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
