"""Naturally federated tables: conversion, fetching from small local files, loading."""

import gzip
import hashlib
import re
import struct
import urllib.error
import zlib
from dataclasses import replace

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

import fedmos as fm
from fedmos.cli.commands import app
from fedmos.data.natural import NATURAL, fetch, find, flamby, multilevel, sources
from fedmos.data.natural.r_tables import read_table

HOSPITALS = ("cleveland", "hungarian", "switzerland", "va")


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("FEDMOS_DATA", str(tmp_path / "home"))
    (tmp_path / "home").mkdir()
    return tmp_path / "home"


@pytest.fixture(autouse=True)
def offline(monkeypatch):
    def refuse(*arguments, **options):
        raise urllib.error.URLError("no network in tests")

    monkeypatch.setattr(sources.urllib.request, "urlopen", refuse)


# ------------------------------------------------------------------------------------------------ FLamby's tables
@pytest.fixture
def patients(tmp_path, monkeypatch):
    """A folder with twelve patients of each hospital, one of whom lacks a value."""
    rng, sums = np.random.default_rng(0), {}
    for hospital in HOSPITALS:
        lines = []
        for i in range(12):
            values = [50 + rng.integers(20), i % 2, 1 + i % 4, 120, 200 + rng.integers(50), 0, i % 3, 150, 0, 1.5]
            values += ["?", "?", "?", i % 2 * (1 + i % 3)]
            lines.append(",".join(map(str, values)))
        lines[3] = lines[3].replace("120", "?")
        content = "\n".join(lines).encode() + b"\n"
        (tmp_path / f"processed.{hospital}.data").write_bytes(content.replace(b"\n", b"\r\n"))
        sums[hospital] = hashlib.md5(content).hexdigest()
    monkeypatch.setattr(flamby, "_HOSPITALS", sums)
    for name in ("heart_disease", "heart_disease_pooled"):
        monkeypatch.setitem(NATURAL, name, replace(NATURAL[name], samples=44))
    return tmp_path


def test_patients_are_standardised_by_hospital_or_over_all(patients):
    for name, groups in (("heart_disease", 4), ("heart_disease_pooled", 1)):
        fetch(NATURAL[name], str(patients))
        _, arrays = find(NATURAL[name])
        assert arrays.x.shape == (44, 13)
        train = ~arrays.held_out
        for group in range(groups):
            mine = train & (arrays.owner == group) if groups > 1 else train
            spread = arrays.x[mine].std(0, ddof=1)
            assert np.allclose(arrays.x[mine].mean(0), 0, atol=1e-5)
            assert np.all(np.isclose(spread, 1, atol=1e-5) | (spread == 0))
        assert set(np.unique(arrays.y)) == {0.0, 1.0}


def test_clients_have_their_own_test_samples_and_the_server_all(patients):
    fetch(NATURAL["heart_disease"], str(patients))
    data = fm.datasets.load("heart_disease").partition(fm.partition.Natural())
    assert data.names == list(HOSPITALS)
    assert data.tests.sizes.tolist() == [4] * 4
    assert data.sizes.tolist() == [7] * 4
    assert len(data.test[1]) == 16
    fetch(NATURAL["heart_disease_pooled"], str(patients))  # the server's test samples are standardised over all
    pooled = fm.datasets.load("heart_disease_pooled").partition(fm.partition.Natural())
    assert torch.equal(data.test[0], pooled.test[0])
    assert torch.equal(pooled.test[0], torch.cat([x for x, _ in pooled.tests]))
    assert not torch.equal(data.test[0], torch.cat([x for x, _ in data.tests]))


def test_a_file_that_is_not_the_published_one_is_refused(patients):
    path = patients / "processed.va.data"
    path.write_bytes(path.read_bytes().replace(b"150", b"151"))
    with pytest.raises(ValueError, match=r"processed\.va\.data is not the published file"):
        fetch(NATURAL["heart_disease"], str(patients))


def test_survival_times_and_regions(tmp_path):
    header = "pid," + ",".join(f"f{i}" for i in range(39)) + ",E,T\n"
    rows = [f"P{i}," + ",".join(str(i * j % 7) for j in range(39)) + f",{i % 2},{10 * i}\n" for i in range(5)]
    split = "pid,fold,fold2\n" + "".join(f"P{i},x,{'test' if i == 3 else 'train'}_{i % 2}\n" for i in range(4))
    arrays = flamby.tcga_brca({"brca.csv": (header + "".join(rows)).encode(), "train_test_split.csv": split.encode()})
    assert arrays.y.tolist() == [[0, 0], [10, 1], [20, 0], [30, 1]]  # a patient without a region is left out
    assert arrays.owner.tolist() == [0, 1, 0, 1]
    assert arrays.held_out.tolist() == [False, False, False, True]
    assert arrays.x[2].tolist() == [2 * j % 7 for j in range(39)]


# ------------------------------------------------------------------------------------------------ tables of R
def _string(text):
    return struct.pack(">ii", 9 | 64 << 12, len(text)) + text.encode()


def _strings(texts):
    return struct.pack(">ii", 16, len(texts)) + b"".join(map(_string, texts))


def _pair(name, item):
    return struct.pack(">i", 2 | 1024) + struct.pack(">i", 1) + _string(name) + item


_END = struct.pack(">i", 254)


def _reals(values):
    return struct.pack(">ii", 14, len(values)) + struct.pack(f">{len(values)}d", *values)


def _integers(values, attributes=b""):
    flags = 13 | (512 if attributes else 0)
    return struct.pack(">ii", flags, len(values)) + struct.pack(f">{len(values)}i", *values) + attributes


def _factor(codes, levels):
    return _integers(codes, _pair("levels", _strings(levels)) + _END)


def _list(items):
    body = b"".join(items.values())
    return struct.pack(">ii", 19 | 512, len(items)) + body + _pair("names", _strings(list(items))) + _END


def _serialised(item):
    return b"X\n" + struct.pack(">iii", 2, 0x30000, 0x20300) + item


def r_package(**tables):
    """The files of an R package with data frames; columns are lists of numbers or pairs (codes, levels)."""
    database, places = b"", {}
    for name, columns in tables.items():
        made = {key: _factor(*v) if isinstance(v, tuple) else _reals(v) for key, v in columns.items()}
        raw = _serialised(_list(made))
        entry = struct.pack(">I", len(raw)) + zlib.compress(raw)
        places[name] = _integers([len(database), len(entry)])
        database += entry
    index = _serialised(_list({"variables": _list(places)}))
    return {"Rdata.rdx": gzip.compress(index), "Rdata.rdb": database}


def test_columns_of_r(tmp_path):
    files = r_package(other={"a": [1.0]}, mine={"x": [1.5, 2.5, -3.0], "f": ([2, 1, 2], ["no", "yes"])})
    table = read_table(files["Rdata.rdx"], files["Rdata.rdb"], "mine", ["f", "x"])
    assert table["x"].tolist() == [1.5, 2.5, -3.0]
    assert table["f"].tolist() == ["yes", "no", "yes"]
    with pytest.raises(ValueError, match="it has no table theirs, but mine, other"):
        read_table(files["Rdata.rdx"], files["Rdata.rdb"], "theirs", ["x"])


def test_missing_values_and_damage_of_r_tables():
    files = r_package(mine={"x": [1.0, float("nan")], "f": ([-(2**31), 1], ["no"])})
    for column in ("x", "f"):
        with pytest.raises(ValueError, match=f"the column {column} has missing values"):
            read_table(files["Rdata.rdx"], files["Rdata.rdb"], "mine", [column])
    with pytest.raises((ValueError, zlib.error)):
        read_table(files["Rdata.rdx"], files["Rdata.rdb"][:30], "mine", ["x"])
    code = gzip.compress(_serialised(struct.pack(">i", 6)))  # a call, which R would evaluate
    with pytest.raises(ValueError, match="type 6 are not read"):
        read_table(code, b"", "mine", ["x"])


def test_pupils_and_ratings(tmp_path):
    pupils = r_package(
        Hsb82={
            "school": ([1, 1, 2], ["a", "b"]),
            "minrty": ([1, 2, 1], ["No", "Yes"]),
            "sx": ([1, 2, 2], ["Male", "Female"]),
            "ses": [0.5, -0.5, 1.0],
            "meanses": [0.0, 0.0, 1.0],
            "sector": ([1, 1, 2], ["Public", "Catholic"]),
            "mAch": [5.0, 6.0, 7.0],
        }
    )
    arrays = multilevel.hsb82(pupils)
    assert arrays.x.tolist() == [[0, 0, 0.5, 0, 0], [1, 1, -0.5, 0, 0], [0, 1, 1, 1, 1]]
    assert arrays.y.tolist() == [[5], [6], [7]]
    assert (arrays.owner.tolist(), arrays.owners) == ([0, 0, 1], ["a", "b"])

    text = '"","s","d","studage","lectage","service","dept","y"\n"1","7","10","2","1","0","2",5\n"2","9","4","8","1","1","15",1\n'
    ratings = multilevel.insteval({"InstEval.csv": text.encode()})
    assert ratings.x.tolist() == [[1, 0, 0, 0, 0], [0, 1, 0, 1, 1]]
    assert (ratings.y.ravel().tolist(), ratings.owners) == ([5, 1], ["7", "9"])


# ------------------------------------------------------------------------------------------------ the command
def test_a_source_that_cannot_be_reached_is_named():
    done = CliRunner().invoke(app, ["data", "get", "tcga_brca"])
    assert done.exit_code != 0
    words = " ".join(str(done.exception or done.output).split())
    assert "brca.csv cannot be reached (no network in tests)" in words
    assert "fedmos data get tcga_brca --from FOLDER" in words


def test_the_command_converts_files_of_a_folder_and_keeps_what_is_there(patients, home):
    done = CliRunner().invoke(app, ["data", "get", "heart_disease", "--from", str(patients)])
    assert done.exit_code == 0, done.output
    before = (home / "heart_disease.npz").read_bytes()
    done = CliRunner().invoke(app, ["data", "get", "heart_disease"])
    assert "kept" in done.output
    assert (home / "heart_disease.npz").read_bytes() == before
    listed = CliRunner().invoke(app, ["data", "info", "heart_disease"])
    assert re.search(r"heart_disease +44 +16 +13 +4", listed.output)


def test_wrong_sizes_missing_files_and_damaged_archives_are_refused(patients, home, tmp_path, monkeypatch):
    monkeypatch.setitem(NATURAL, "heart_disease", replace(NATURAL["heart_disease"], samples=45))
    with pytest.raises(ValueError, match="44 samples of 4 clients, not 45 samples of 4 clients"):
        fetch(NATURAL["heart_disease"], str(patients))
    with pytest.raises(ConnectionError, match=r"has no file brca\.csv"):
        fetch(NATURAL["tcga_brca"], str(patients))
    with pytest.raises(FileNotFoundError, match="fedmos data get heart_disease"):
        fm.datasets.load("heart_disease")
    np.savez(home / "hsb82.npz", x=np.zeros((3, 2)), y=np.zeros((3, 1)), owner=np.array([0, 1, 2]), owners=["a", "b"])
    with pytest.raises(ValueError, match="owner must be 0 … 1"):
        fm.datasets.load("hsb82")
