"""Broken and malicious npz, IDX and CIFAR files: each is refused with a sentence, after little work."""

import gzip
import os
import pickle
import struct
import zipfile
from pathlib import Path

import numpy as np
import pytest

import fedmos as fm
from helpers.hostile import npy, refused
from helpers.sources import (
    small,
    write_cifar,
    write_idx,
    write_npz,
)

pytestmark = pytest.mark.usefixtures("home")


class Payload:
    """A pickle that writes a file when it is opened."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self):
        return os.mkdir, (str(self.path),)


# ── npz ──────────────────────────────────────────────────────────────────────────────────────────────────────────────
def changed(**change):
    return lambda arrays: arrays | {k: v(arrays) if callable(v) else v for k, v in change.items()}


BAD_ARRAYS = {
    "label 255": (changed(y_train=np.full(25, 255, np.uint8)), "labels must be 0 … 9, got 255"),
    "label -1": (changed(y_test=np.full(10, -1)), "labels must be 0 … 9, got -1"),
    "labels of 64 bits": (changed(y_train=np.full(25, 2**63, np.uint64)), "labels must be 0 … 9, got 9223372036854775808"),
    "fractions for labels": (changed(y_train=np.zeros(25)), "targets float64"),
    "one-hot labels": (changed(y_train=np.eye(10, dtype=int)[np.zeros(25, int)]), "do not match targets of shape (25, 10)"),
    "a label short": (changed(y_train=np.zeros(24, int)), "25 samples do not match 24 labels (train)"),
    "nan": (changed(x_train=np.full((25, 28, 28), np.nan)), "images hold NaN or infinity"),
    "infinity": (changed(x_test=np.full((10, 28, 28), np.inf, np.float32)), "images hold NaN or infinity"),
    "normalised": (changed(x_train=np.full((25, 28, 28), -0.4), x_test=np.zeros((10, 28, 28))), "must be in 0 … 1 or 0 … 255"),
    "large pixels": (changed(x_train=np.full((25, 28, 28), 300)), "pixels must be 0 … 255, got 300"),
    "mixed types": (changed(x_test=np.zeros((10, 28, 28), np.float32)), "training samples are uint8"),
    "mixed sizes": (changed(x_test=np.zeros((10, 27, 28), np.uint8)), "test samples uint8 of (1, 27, 28)"),
    "flat": (changed(x_train=np.zeros((25, 784), np.uint8)), "images must be (n, height, width)"),
    "a scalar": (changed(x_train=np.uint8(3)), "x_train has the shape ()"),
    "five dimensions": (changed(x_train=np.zeros((25, 1, 1, 1, 1), np.uint8)), "x_train has the shape"),
    "nothing": (changed(x_train=np.zeros((0, 28, 28), np.uint8), y_train=np.zeros(0, int)), "0 training and 10 test samples"),
    "no pixels": (changed(x_train=np.zeros((25, 0, 28), np.uint8)), "are empty"),
    "texts": (changed(x_train=np.full((25, 28, 28), "x")), "inputs are <U1"),
    "complex": (changed(x_train=np.zeros((25, 28, 28), complex)), "x_train is complex128, not numbers"),
    "structured": (changed(x_train=np.zeros(25, [("a", "u1"), ("b", "O")])), "pickled objects"),
    "no x_test": (lambda a: {k: v for k, v in a.items() if k != "x_test"}, "it has no x_test"),
    "owners short": (changed(owner=np.zeros(24, int)), "do not match 24 owners"),
    "owners of fractions": (changed(owner=np.zeros(25)), "owner must be one number or name"),
    "owners beyond the names": (changed(owner=np.full(25, 3), owners=np.array(["a"])), "owner must be 0 … 0, got 3"),
    "owners alike": (changed(owner=np.arange(25) % 2, owners=np.array(["a", "a"])), "different names"),
    "long names": (changed(owner=np.full(25, "x" * 300)), "owner is <U300, not numbers"),
    "wrong names of classes": (changed(labels=np.array(["a"])), "labels must be 10 names"),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD_ARRAYS)
def test_unsound_arrays_are_refused(case, tmp_path):
    change, sentence = BAD_ARRAYS[case]
    refused("mnist", write_npz(tmp_path, "mnist", change(small("mnist"))), sentence)


def test_a_pickle_in_an_npz_is_never_opened(tmp_path):
    mark = tmp_path / "opened"
    objects = np.array([Payload(mark)] * 25, dtype=object)
    for key in ("x_train", "y_train", "owner", "labels"):
        path = write_npz(tmp_path, "mnist", small("mnist") | {key: objects})
        refused("mnist", path, f"{key} holds pickled objects")
    path.write_bytes(pickle.dumps(Payload(mark)))
    refused("mnist", path, "not a zip file")
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("x_train.npy", pickle.dumps(Payload(mark)))
        archive.writestr("y_train.npy", b"")
    refused("mnist", path, "magic string")
    assert not mark.exists()


def test_members_with_strange_names_are_left_alone(tmp_path):
    path = write_npz(tmp_path, "mnist", small("mnist"))
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr("../../escaped.npy", b"x")
        archive.writestr(str(tmp_path / "absolute.npy"), b"x")
        archive.writestr("__import__('os').npy", b"x")
    assert len(fm.datasets.load("mnist", path).x_train) == 25
    assert not list(tmp_path.parent.rglob("escaped*"))
    assert not list(tmp_path.rglob("absolute*"))


@pytest.mark.parametrize("keep", [0, 1, 100, 0.3, 0.9, 0.999])
def test_cut_archives_are_refused(keep, tmp_path):
    path = write_npz(tmp_path, "mnist", small("mnist"))
    raw = path.read_bytes()
    path.write_bytes(raw[: keep if isinstance(keep, int) else int(keep * len(raw))])
    refused("mnist", path, "not a valid data set")


def test_flipped_bits_are_noticed(tmp_path):
    path = write_npz(tmp_path, "mnist", small("mnist"))
    raw = bytearray(path.read_bytes())
    raw[len(raw) // 3] ^= 0x10
    path.write_bytes(raw)
    refused("mnist", path, "not a valid data set")


HEADERS = {
    "huge": (npy("(60000, 60000, 60000)"), "x_train would be"),
    "beyond 64 bits": (npy(f"({2**70}, 28, 28)"), "x_train would be"),
    "negative": (npy("(-25, 28, 28)"), "x_train has the shape"),
    "longer than the file": (npy("(25, 28, 28)", bytes(100)), "x_train is not as long as its header says"),
    "shorter than the file": (npy("(25, 28, 28)", bytes(25 * 784 + 1)), "x_train is not as long as its header says"),
    "not a tuple": (npy("25"), "shape is not valid"),
    "code": (npy("__import__('os').mkdir('opened')"), "malformed node"),
    "endless": (npy("(25, 28, 28)" + " " * 20_000), "max_header_size"),
    "deep": (npy("(" * 3000 + ")" * 3000), "not a valid data set"),
    "object": (npy("(25,)", b"cos\nsystem\n", descr="|O"), "pickled objects"),
    "unknown version": (npy("(25, 28, 28)", version=9), "unknown header"),
    "unknown type": (npy("(25, 28, 28)", bytes(25 * 784), descr="|V1"), "not numbers"),
    "nonsense": (b"\x93NUMPY\x01\x00\xff\xff", "not a valid data set"),
}


@pytest.mark.parametrize("case", HEADERS)
def test_headers_that_lie_are_refused(case, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    raw, sentence = HEADERS[case]
    path = write_npz(tmp_path, "mnist", {k: v for k, v in small("mnist").items() if k != "x_train"})
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr("x_train.npy", raw)
    refused("mnist", path, sentence)
    assert not (tmp_path / "opened").exists()


@pytest.mark.parametrize("declared", [10, 10**9, 2**32 - 2])
def test_an_entry_whose_size_lies_is_refused(declared, tmp_path):
    path = write_npz(tmp_path, "mnist", small("mnist"))
    raw = bytearray(path.read_bytes())
    where = raw.index(b"x_train.npy", raw.index(b"PK\x01\x02"))
    struct.pack_into("<I", raw, where - 46 + 24, declared)  # the size in the central directory
    path.write_bytes(raw)
    refused("mnist", path, "x_train")


@pytest.mark.parametrize("method", [zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_compressions_that_cannot_be_bounded_are_refused(method, tmp_path):
    path = tmp_path / "mnist.npz"
    with zipfile.ZipFile(path, "w", method) as archive:
        archive.writestr("x_train.npy", npy("(25, 28, 28)", bytes(25 * 784)))
    refused("mnist", path, "compressed in a way that numpy does not use")


# ── IDX and CIFAR ────────────────────────────────────────────────────────────────────────────────────────────────────
IDX = {
    "cut": (lambda raw: raw[:-1], "it ends 1 bytes early"),
    "longer": (lambda raw: raw + b"!", "the file is longer than its header declares"),
    "no header": (lambda raw: raw[:3], "it ends 1 bytes early"),
    "empty": (lambda raw: b"", "it ends 4 bytes early"),
    "other magic": (lambda raw: b"\x00\x00\x0d\x03" + raw[4:], "does not begin like an IDX file"),
    "labels for images": (lambda raw: b"\x00\x00\x08\x01" + raw[4:], "does not begin like an IDX file"),
    "huge": (lambda raw: raw[:4] + b"\xff" * 12 + raw[16:], "the array would be"),
    "other count": (lambda raw: raw[:4] + struct.pack(">I", 24) + raw[8:], "24 images for the 25 labels"),
    "no pixels": (lambda raw: raw[:8] + struct.pack(">I", 0) + raw[12:], "are empty"),
}


@pytest.mark.parametrize("gz", [False, True])
@pytest.mark.parametrize("case", IDX)
def test_unsound_idx_files_are_refused(case, gz, tmp_path):
    change, sentence = IDX[case]
    write_idx(tmp_path, small("mnist"), gz=gz)
    path = next(tmp_path.glob("train-images*"))
    raw = gzip.decompress(path.read_bytes()) if gz else path.read_bytes()
    path.write_bytes(gzip.compress(change(raw)) if gz else change(raw))
    refused("mnist", tmp_path, sentence)


@pytest.mark.parametrize("keep", [2, 20, -1, -9])
def test_cut_gzip_files_are_refused(keep, tmp_path):
    write_idx(tmp_path, small("mnist"))
    path = next(tmp_path.glob("train-labels*"))
    path.write_bytes(path.read_bytes()[:keep])
    refused("mnist", tmp_path, "Cannot load")
    path.write_bytes(b"not gzip at all")
    refused("mnist", tmp_path, "Not a gzipped file")


def test_unsound_cifar_files_are_refused(tmp_path):
    write_cifar(tmp_path, "cifar10", small("cifar10"))
    path = tmp_path / "data_batch_2.bin"
    raw = path.read_bytes()
    path.write_bytes(raw[:-1])
    refused("cifar10", tmp_path, "are not a number of records of 3073 bytes")
    path.write_bytes(b"\xff" + raw[1:])
    refused("cifar10", tmp_path, "labels must be 0 … 9, got 255")
    path.write_bytes(b"")
    refused("cifar10", tmp_path, "its 0 bytes")


@pytest.mark.parametrize("name", ["cifar10", "cifar100"])
def test_cifar_s_pickles_are_refused_by_name(name, tmp_path):
    mark = tmp_path / "opened"
    folder = tmp_path / {"cifar10": "cifar-10-batches-py", "cifar100": "cifar-100-python"}[name]
    folder.mkdir()
    for file in ("data_batch_1", "test_batch", "train", "test", "meta"):
        (folder / file).write_bytes(pickle.dumps(Payload(mark)))
    with pytest.raises(FileNotFoundError, match="a pickle, which could run code when opened; get the binary version"):
        fm.datasets.load(name, tmp_path)
    with pytest.raises(ValueError, match=r"not one of the supported files of cifar|a pickle"):
        fm.datasets.load(name, folder / "data_batch_1")
    (tmp_path / "mnist.pkl").write_bytes(pickle.dumps(Payload(mark)))
    refused("mnist", tmp_path / "mnist.pkl", "not one of the supported files of mnist")
    assert not mark.exists()
