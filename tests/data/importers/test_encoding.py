"""Integers, categories and missing values of tables, and CSV files."""

import json

import numpy as np
import pytest
import torch
from torch import nn

import fedmos as fm
from fedmos import FederatedData
from fedmos.data.importers.encoding import Encoding
from helpers.own_data import KINDS

pd = pytest.importorskip("pandas")
pl = pytest.importorskip("polars")

every_frame = pytest.mark.parametrize("kind", ["pandas", "polars", "pyarrow", "parquet"])

PATIENTS = {
    "site": ["b", "a", "b", "a", "c", "b"],
    "sex": ["m", "f", None, "f", "m", "f"],
    "age": [30, 41, None, 60, 29, 50],
    "weight": [70.5, None, 80.0, 91.5, 60.0, 78.0],
    "label": [0, 1, 1, 0, 1, 0],
}


def table(kind, tmp_path, **columns):
    return KINDS[kind](columns, tmp_path)


def load(frame, **options):
    return FederatedData.from_frame(frame, "site", "label", **options)


# Integers


@every_frame
def test_integers_stay_integers(kind, tmp_path):
    ids = [2**24, 2**24 + 1, 2**53 + 1, 7]
    data = load(table(kind, tmp_path, site=list("aabb"), user=ids, item=[1, 2, 3, 4], label=[0, 1, 0, 1]))
    assert data.x.dtype == torch.int64
    assert data.x[:, 0].tolist() == ids


@every_frame
@pytest.mark.parametrize("wrong", [2**24 + 1, -(2**24) - 1, 2**60 + 1])
def test_integers_that_float32_rounds_are_refused_beside_real_numbers(kind, wrong, tmp_path):
    columns = {"site": list("aabb"), "user": [1, 2, 3, wrong], "height": [0.5, 1.0, 1.5, 2.0], "label": [0, 1, 0, 1]}
    frame = table(kind, tmp_path, **columns)
    with pytest.raises(ValueError, match=f"column 'user' must hold integers that float32 holds exactly, got {wrong};"):
        load(frame)
    with pytest.raises(ValueError, match="column 'user' must hold integers that float32"):
        load(frame, input_columns="user", dtype="float32")
    if abs(wrong) < 2**53:
        assert load(frame, dtype=torch.float64).x[3].tolist() == [wrong, 2.0]
    codes = load(frame, categorical=["user"])
    assert codes.encoding.features == [*(f"user={v}" for v in sorted([1, 2, 3, wrong])), "height"]


@every_frame
def test_identifiers_with_gaps_are_not_rounded(kind, tmp_path):
    """With missing values, pandas has float64 for integers."""
    columns = {"site": list("aabb"), "user": [2**24 + 1, None, 3, 5], "label": [0, 1, 0, 1]}
    frame = table(kind, tmp_path, **columns)
    data = load(frame, missing=0)
    assert data.x.dtype == torch.int64
    assert data.x[:, 0].tolist() == [2**24 + 1, 0, 3, 5]
    with pytest.raises(ValueError, match="column 'user' must hold integers that float32"):
        load(frame, missing="mean")


@every_frame
def test_a_mean_of_integers_that_is_none_fills_their_gaps(kind, tmp_path):
    columns = {"site": list("aabb"), "age": [1, 2, None, 4], "label": [0, 1, 0, 1]}
    data = load(table(kind, tmp_path, **columns), missing="mean")
    assert data.x.dtype == torch.float32
    assert data.x[:, 0].tolist() == pytest.approx([1, 2, 7 / 3, 4])
    with pytest.raises(ValueError, match=r"column 'age' must hold integers of 64 bits, got 2\.33"):
        load(table(kind, tmp_path, **columns), missing="mean", dtype="int64")


def test_integers_up_to_2_24_go_with_real_numbers():
    frame = pd.DataFrame({"site": list("ab"), "n": [2**24, -(2**24)], "h": [0.5, 1.5], "label": [0, 1]})
    assert load(frame).x.tolist() == [[2**24, 0.5], [-(2**24), 1.5]]
    assert load(frame).x.dtype == torch.float32
    with pytest.raises(ValueError, match=r"column 'h' must hold integers of 64 bits, got 0\.5"):
        load(frame, dtype="int64")
    with pytest.raises(ValueError, match="'dtype' must be 'int64', 'float32' or 'float64', got 'int8'"):
        load(frame, dtype="int8")
    truths = pd.DataFrame({"site": list("ab"), "t": [True, False], "label": [0, 1]})
    assert load(truths).x.dtype == torch.float32


OPTIONS = {"rounds": 2, "local_steps": 2, "batch_size": 2}


class Embedded(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.table, self.head = nn.Embedding(10, 3), nn.Linear(3, 2)

    def forward(self, x):
        return self.head(self.table(x).mean(1))


@pytest.mark.parametrize("engine", ["loop", "batched"])
def test_a_model_gets_integers_or_real_numbers_as_it_takes(engine):
    frame = pd.DataFrame({"site": list("aabb"), "p": [1, 2, 3, 4], "q": [5, 6, 7, 8], "label": [0, 1, 0, 1]})
    data, model = load(frame, test=frame), fm.models.logistic(features=2, classes=2)
    found = fm.run(model, data, fm.FedAvg(lr=0.1), fm.Full(), engine=engine, **OPTIONS)
    real = load(frame, dtype="float32", test=frame)
    assert torch.equal(found.params, fm.run(model, real, fm.FedAvg(lr=0.1), fm.Full(), engine=engine, **OPTIONS).params)
    fm.run(Embedded(), data, fm.FedAvg(lr=0.1), fm.Full(), engine=engine, **OPTIONS)
    large = load(frame.assign(q=[5, 6, 7, 2**24 + 1]))
    with pytest.raises(ValueError, match="Cannot use column 'q' as a number because float32 would round its integers"):
        fm.run(model, large, fm.FedAvg(lr=0.1), fm.Full(), engine=engine, **OPTIONS)
    with pytest.raises(ValueError, match=r"torch\.float32"):  # an embedding of real numbers
        fm.run(Embedded(), real, fm.FedAvg(lr=0.1), fm.Full(), engine=engine, **OPTIONS)


# Categories and missing values


@every_frame
def test_categories_and_missing_values_are_encoded_alike_for_all_clients(kind, tmp_path):
    data = load(table(kind, tmp_path, **PATIENTS), categorical=["sex"], missing="mean")
    assert data.names == ["a", "b", "c"]
    assert data.encoding.features == ["sex=f", "sex=m", "sex=(missing)", "age", "weight"]
    assert data.x.dtype == torch.float32
    assert data.x.tolist() == [
        [0, 1, 0, 30, 70.5],
        [1, 0, 0, 41, 76.0],
        [0, 0, 1, 42, 80.0],
        [1, 0, 0, 60, 91.5],
        [0, 1, 0, 29, 60.0],
        [1, 0, 0, 50, 78.0],
    ]
    new = table(kind, tmp_path, weight=[None, 60.5], age=[None, 20], sex=["f", None], other=["x", "y"])
    assert data.encoding.transform(new).tolist() == [[1, 0, 0, 42, 76], [0, 0, 1, 20, 60.5]]
    one = pd.DataFrame({"weight": [60.5], "age": [None], "sex": [None]})
    assert data.encoding.transform(one).tolist() == [[0, 0, 1, 42, 60.5]]


@every_frame
def test_a_choice_per_column(kind, tmp_path):
    choice = {"sex": "most_frequent", "age": "median", "weight": -1}
    data = load(table(kind, tmp_path, **PATIENTS), categorical={"sex": ["m", "f", "x"]}, missing=choice)
    assert data.encoding.features == ["sex=m", "sex=f", "sex=x", "age", "weight"]
    assert data.x[2].tolist() == [0, 1, 0, 41, 80]
    assert data.x[1, 4] == -1


@every_frame
def test_categories_as_numbers(kind, tmp_path):
    frame = table(kind, tmp_path, **{k: PATIENTS[k] for k in ("site", "sex", "label")}, ward=[3, 3, 9, 1, 1, 9])
    data = load(frame, categorical=["sex", "ward"], missing="most_frequent", one_hot=False)
    assert data.x.dtype == torch.int64
    assert data.x.tolist() == [[1, 1], [0, 1], [0, 2], [0, 0], [1, 0], [0, 2]]
    assert data.encoding.columns[1].categories == ("1", "3", "9")


def test_all_columns_of_words_at_once():
    frame = pd.DataFrame(PATIENTS).drop(columns=["age", "weight"]).assign(town=["x", "y"] * 3)
    assert load(frame, categorical=True, missing="category").encoding.features == [
        "sex=f",
        "sex=m",
        "sex=(missing)",
        "town=x",
        "town=y",
    ]


def test_test_tables_and_other_clients_are_encoded_as_the_training_rows():
    frame = pd.DataFrame(PATIENTS).dropna()
    data = load(frame, categorical=["sex"], test=frame.iloc[:1])
    assert torch.equal(data.test[0], data.x[:1])
    stored = Encoding.from_dict(json.loads(json.dumps(data.encoding.to_dict())))
    assert stored == data.encoding
    alone = load(frame.iloc[:1], encoding=stored)
    assert torch.equal(alone.x, data.x[:1])
    with pytest.raises(ValueError, match=r"column 'sex' must hold one of f, m, got 'd'; declare all categories"):
        load(frame, categorical=["sex"], test=frame.assign(sex="d"))
    with pytest.raises(ValueError, match="Cannot use 'missing' beside 'encoding'"):
        load(frame, encoding=stored, missing=0)
    with pytest.raises(ValueError, match="transform: the table must have a column 'age', got sex"):
        data.encoding.transform(frame[["sex"]])


@every_frame
@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({}, "column 'sex' must hold numbers to be an input among others, got str; add it to 'categorical'"),
        ({"categorical": ["sex"]}, "column 'sex' must have a category in each row, got none in 1 of 6"),
        (
            {"categorical": ["sex"], "missing": {"sex": "category"}},
            "column 'age' must hold finite numbers, got none in 1 of 6 rows; choose a value for them, as "
            "missing={'age': 'median'}",
        ),
        ({"categorical": ["sx"]}, "'categorical' must name input columns (sex, age, weight), got 'sx' (did you mean"),
        ({"categorical": "sex"}, "'categorical' must be True, a list of columns or {column: categories}, got 'sex'"),
        ({"categorical": ["sex"], "missing": {"aeg": 1}}, "'missing' must name input columns (sex, age, weight), got"),
        ({"categorical": ["sex"], "missing": "average"}, "'missing' must be 'mean', 'median', 'most_frequent' or a"),
        ({"categorical": ["sex"], "missing": {"sex": "mean"}}, "'missing' must be 'category' or 'most_frequent' for"),
        ({"categorical": {"sex": ["f"]}, "missing": 0}, "column 'sex' must hold one of f, (missing), got 'm'"),
    ],
)
def test_what_has_no_encoding_gets_a_sentence(kind, options, sentence, tmp_path):
    with pytest.raises(ValueError) as error:
        load(table(kind, tmp_path, **PATIENTS), **options)
    assert sentence in str(error.value)
    assert str(error.value).startswith("from_frame: ")


def test_many_categories_are_refused():
    frame = pd.DataFrame({"site": ["a"] * 1200, "name": [f"n{i}" for i in range(1200)], "label": [0, 1] * 600})
    with pytest.raises(ValueError, match="column 'name' must have at most 1,000 categories, got 1,200; use one_hot"):
        load(frame, categorical=["name"])
    assert load(frame, categorical=["name"], one_hot=False).x.dtype == torch.int64


def test_options_do_not_go_with_lists():
    frame = pd.DataFrame({"site": ["a", "b"], "signal": [[1.0, 2.0], [3.0, 4.0]], "label": [0, 1]})
    with pytest.raises(ValueError, match="'missing' must not be given for column 'signal' because it holds list"):
        load(frame, missing=0)


# CSV files

CSV = """hospital,sex,age,id,outcome
north,f,30,1,0
south,m,,16777217,1
north,,51,3,1
"""


def write(tmp_path, text, name="rows.csv"):
    path = tmp_path / name
    path.write_text(text, encoding="utf-8")
    return path


def test_csv_files(tmp_path):
    path, test = write(tmp_path, CSV), write(tmp_path, "sex,age,id,outcome\nm,40,5,1\n", "test.csv")
    options = {"client": "hospital", "target": "outcome", "categorical": ["sex"], "missing": {"sex": "category"}}
    data = FederatedData.from_csv(path, inputs=["sex", "id"], test=test, one_hot=False, **options)
    assert data.names == ["north", "south"]
    assert [x.tolist() for x in data.client(1)] == [[[1, 16777217]], [1]]
    assert data.test[0].tolist() == [[1, 5]]
    with pytest.raises(ValueError, match="from_csv: column 'age' must hold finite numbers, got none in 1 of 3 rows"):
        FederatedData.from_csv(str(path), **options)
    same = FederatedData.from_csv(
        write(tmp_path, CSV.replace(",", ";"), "semi.csv"),
        delimiter=";",
        **options,
        one_hot=False,
        inputs=["sex", "id"],
    )
    assert torch.equal(same.x, data.x)


def test_csv_files_that_are_wrong(tmp_path):
    path = write(tmp_path, CSV)
    with pytest.raises(
        ValueError, match=r"from_csv: 'client' must be one of hospital, sex, age, id, outcome, got 'hos"
    ):
        FederatedData.from_csv(path, client="hospitals", target="outcome")
    with pytest.raises(ValueError, match="from_csv: 'target' must be given"):
        FederatedData.from_csv(path, client="hospital")
    with pytest.raises(FileNotFoundError, match=r"nothing\.csv because it does not exist"):
        FederatedData.from_csv(tmp_path / "nothing.csv", client="hospital", target="outcome")
    with pytest.raises(ValueError, match="because it is not a valid CSV file"):
        FederatedData.from_csv(write(tmp_path, "a,b\n1,2\n1,2,3\n", "bad.csv"), client="a", target="b")
    with pytest.raises(ValueError, match="'path' must be the path of a CSV file, got DataFrame"):
        FederatedData.from_csv(pd.DataFrame(PATIENTS), client="site", target="label")
    with pytest.raises(ValueError, match="from_csv: the columns must have different names, got 'a' twice"):
        FederatedData.from_csv(write(tmp_path, "a,a,y\n1,2,3\n", "twice.csv"), client="a", target="y")
    long = "site,id,y\na,99999999999999999998,0\nb,99999999999999999999,1\n"
    with pytest.raises(ValueError, match="column 'id' must hold integers of 64 bits, got 9999999999999999999"):
        FederatedData.from_csv(write(tmp_path, long, "long.csv"), client="site", target="y")
    large = "site,v,y\na,1e30,0\nb,2.5e20,1\n"
    data = FederatedData.from_csv(write(tmp_path, large, "large.csv"), client="site", target="y")
    assert data.x.dtype == torch.float32
    assert np.allclose(data.x[:, 0], [1e30, 2.5e20])


# Rounding in a run


def test_a_run_that_rounds_integers_warns():
    frame = pd.DataFrame({"site": list("aabb"), "p": [2**24 + 1, 2, 3, 4], "q": [0.5] * 4, "label": [0, 1, 0, 1]})
    model = fm.models.logistic(features=2, classes=2)
    data = load(frame, dtype="float64")
    with pytest.warns(UserWarning, match="The integers of the inputs are rounded in float32, e.g. 16777217; use dtype"):
        fm.run(model, data, fm.FedAvg(lr=0.1), fm.Full(), **OPTIONS)
    fm.run(model, data, fm.FedAvg(lr=0.1), fm.Full(), dtype=torch.float64, **OPTIONS)
    clients = [(np.array([[2**24 + 1, 5], [1, 2]]), np.array([0, 1]))]
    whole = FederatedData.from_arrays(clients).declare(normalize=fm.Normalize(mean=0.0, std=2.0**24))
    with pytest.warns(UserWarning, match="The integers of the inputs are rounded in float32"):
        fm.run(model, whole, fm.FedAvg(lr=0.1), fm.Full(), **OPTIONS)
